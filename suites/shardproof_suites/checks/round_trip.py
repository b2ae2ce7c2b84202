"""Save in one set of processes, load in another, and check every rank's own shards.

Nothing is gathered, and nothing expected is stored: both sides compute what they must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardproof_suites.capability import Capability
from shardproof_suites.cell import StateDictType
from shardproof_suites.checks._authors import UNKNOWN, files_by_author, signed
from shardproof_suites.checks._share import share_violations
from shardproof_suites.implementation import Ref
from shardproof_suites.importing import load_implementation
from shardproof_suites.subject import Setup, Subject
from shardproof_suites.training import LOADING_OPTIONS, SAVED_OPTIONS
from shardproof_suites.violation import Violation

if TYPE_CHECKING:
    from shardproof_suites.case import Case
    from shardproof_suites.running import Run


@dataclass(frozen=True, slots=True)
class Trip:
    """What a round trip carries.

    Attributes:
        model: Name in the zoo.
        stepped: Whether the optimizer that is loaded into has state already.
    """

    model: str
    stepped: bool

    @property
    def name(self) -> str:
        """Name it in ids."""
        return f"{self.model}-{'stepped' if self.stepped else 'fresh'}"


@dataclass(frozen=True, slots=True)
class Saved:
    """What one rank of the saving stage has to say."""

    violations: list[Violation]
    ref: Ref | None = None


def check_round_trip(run: Run, case: Case) -> Sequence[Sequence[Violation]]:
    """Save at the first cell, load at the last."""
    saved = run.stage(save_stage, case.cells[0], case.data)
    found = [one.violations for one in saved]
    if any(found):
        return found
    return run.stage(load_stage, case.cells[-1], case.data, saved[0].ref, case.clause)


def check_saving(run: Run, case: Case) -> Sequence[Sequence[Violation]]:
    """Only save: the model was sharded, stays as it was, and each rank writes its share."""
    return [one.violations for one in run.stage(save_stage, case.cells[0], case.data)]


def save_stage(setup: Setup, trip: Trip) -> Saved:
    """On a rank: train a step, fill everything with the closed form, save."""
    subject = Subject(setup, trip.model, SAVED_OPTIONS)
    found = subject.wrong_sharding()
    if subject.anyone(found):
        return Saved(found)
    subject.step()
    subject.fill()
    with signed(subject.world.rank):
        ref = subject.save()
    found += subject.wrong_values("saving.2")
    if setup.cell.state_dict_type is StateDictType.SHARDED:
        subject.world.barrier()
        found += _wrong_share(subject, ref)
    return Saved(found, ref)


def load_stage(setup: Setup, trip: Trip, ref: Ref, clause: str) -> list[Violation]:
    """On a rank of another launch: make everything wrong, load, compare."""
    if not trip.stepped and not loads_in_place(setup):
        subject = Subject(setup, trip.model, LOADING_OPTIONS, resume=ref)
        return [*subject.wrong_sharding(), *subject.wrong_values(clause)]
    subject = Subject(setup, trip.model, LOADING_OPTIONS)
    found = subject.wrong_sharding()
    if subject.anyone(found):
        return found
    if trip.stepped:
        subject.step()
    subject.poison()
    subject.load(ref)
    return [*subject.wrong_sharding(), *subject.wrong_values(clause)]


def loads_in_place(setup: Setup) -> bool:
    """Say whether the implementation loads after wrapping; else it loads while it wraps."""
    return Capability.LOAD in load_implementation(setup.implementation).capabilities


def _wrong_share(subject: Subject, ref: Ref) -> list[Violation]:
    """Look at the files that this rank wrote; rank 0 at those that nobody signed, one by one.

    All below the root are looked at: a checkpoint's name need not cover what it consists of.
    """
    shards, expected = subject.cell.shard_group_size, subject.expected
    rank = subject.world.rank
    files = files_by_author(ref.root, subject.world.world_size)
    written = [(f"rank {rank}", files.get(rank, []))]
    if rank == 0:
        written += [(file.name, [file]) for file in files.get(UNKNOWN, [])]
    return [
        violation
        for name, files in written
        for violation in share_violations(name, files, expected.catalogue, shards, expected.oracle)
    ]
