"""Run one case and tell how it ended; the controller's side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardproof import RankFailure
from shardproof._report import say_ranks

from shardproof_suites.capability import Capability
from shardproof_suites.importing import load_implementation
from shardproof_suites.message import describe
from shardproof_suites.outcome import Kind, Outcome, worst
from shardproof_suites.subject import RAISED, Setup
from shardproof_suites.violation import Code, Violation

if TYPE_CHECKING:
    from shardproof import Launch, RankOutcome

    from shardproof_suites.case import Case
    from shardproof_suites.cell import Cell
    from shardproof_suites.implementation import Implementation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """What a check works with.

    Attributes:
        launch: Runs a function on fresh ranks.
        implementation: Import string of the implementation under test.
        root: An empty folder that all ranks see.
    """

    launch: Launch
    implementation: str
    root: Path

    def stage(self, function: Callable[..., T], cell: Cell, *args: Any) -> list[T]:
        """Run `function(setup, *args)` on the cell's ranks, in processes of its own."""
        setup = Setup(self.implementation, cell, self.root)
        return self.launch(function, setup, *args, world_size=cell.world_size)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a case ended.

    Attributes:
        outcome: In the vocabulary of reports.
        text: For the person who sees it; empty for a pass.
    """

    outcome: Outcome
    text: str = ""


def judge(case: Case, run: Run) -> Verdict:
    """Run a case, whatever happens in its ranks."""
    implementation = load_implementation(run.implementation)
    try:
        found = case.check(run, case)
    except RankFailure as failure:
        return _of_failure(case, implementation, failure)
    if any(found):
        return _of_violations(case, found)
    if case.capability not in implementation.capabilities:
        return _not_refused(case, implementation)
    return Verdict(Outcome(Kind.PASS))


def _of_violations(case: Case, found: Sequence[Sequence[Violation]]) -> Verdict:
    first = next(violation for one in found for violation in one)
    return Verdict(Outcome(Kind.VIOLATION, first.code.value), describe(found))


def _not_refused(case: Case, implementation: type[Implementation]) -> Verdict:
    violation = Violation(
        "refusing.1",
        Code.NOT_REFUSED,
        f"capability {case.capability.value!r}",
        ("wanted Unsupported on every rank", "found that it did something else"),
    )
    return _of_violations(case, [[violation]])


def _of_failure(case: Case, implementation: type[Implementation], failure: RankFailure) -> Verdict:
    """Read the ranks' ends; ranks that only lost their peers say nothing."""
    ends = [(rank, _end_of_rank(rank, case, implementation)) for rank in failure.ranks]
    told = [(rank, end) for rank, end in ends if end is not None]
    if not told:
        return Verdict(Outcome(Kind.HARNESS_ERROR, "no rank says why it failed"), str(failure))
    outcome = worst(end for _, end in told)
    if outcome.kind is Kind.UNSUPPORTED and any(rank.kind == "returned" for rank in failure.ranks):
        return _not_refused(case, implementation)
    ranks = [rank for rank, end in told if end == outcome]
    # Whatever the case is about, a model that can't be prepared breaks the first clause of all.
    broken = "sharding.1" if outcome.detail == Code.PREPARE_RAISED.value else case.clause
    clause = f" of clause {broken}" if outcome.kind is Kind.VIOLATION else ""
    where = f"on {say_ranks(rank.rank for rank in ranks)} of {len(failure.ranks)}"
    cause = next((f": {_cause(rank)}" for rank in ranks if rank.kind == "raised"), "")
    return Verdict(outcome, f"{outcome}{clause} {where}{cause}\n{failure}")


def _cause(rank: RankOutcome) -> str:
    """Give the first line of what was raised, without the class that says who raised it."""
    return rank.message.partition(": ")[2].partition("\n")[0]


def _end_of_rank(
    rank: RankOutcome, case: Case, implementation: type[Implementation]
) -> Outcome | None:
    if rank.kind in ("returned", "woken"):
        return None
    if rank.kind in ("died", "timeout"):
        return Outcome(Kind.CRASH if rank.kind == "died" else Kind.TIMEOUT)
    name = rank.exception_type.rpartition(".")[2]
    if name in RAISED:
        return Outcome(Kind.VIOLATION, RAISED[name].value)
    if name == "Unsupported":
        return _refused(rank.message, case, implementation)
    return Outcome(Kind.HARNESS_ERROR)


def _refused(message: str, case: Case, implementation: type[Implementation]) -> Outcome:
    """Judge a refusal: right for what the case needs and isn't claimed, else a violation."""
    name = message.partition(": ")[2].partition(":")[0]
    needed = {case.capability, Capability.LOAD}
    needed |= {Capability[cell.state_dict_type.name] for cell in case.cells}
    if name not in {one.value for one in needed - implementation.capabilities}:
        return Outcome(Kind.VIOLATION, Code.CLAIM_REFUSED.value)
    return Outcome(Kind.UNSUPPORTED, Capability.named(name).missing(implementation.name))
