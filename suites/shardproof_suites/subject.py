"""The implementation under test on one rank, with a model of the zoo and what it must hold."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from shardproof import World, current_world
from torch.distributed.checkpoint.api import CheckpointException

from shardproof_suites.cell import Cell
from shardproof_suites.expectation import Expectation
from shardproof_suites.implementation import LoadResult, Ref, TrainState, Unsupported
from shardproof_suites.importing import load_implementation
from shardproof_suites.live import (
    Number,
    buffer_shards,
    live_parameters,
    optimizer_numbers,
    optimizer_shards,
    parameter_shards,
    sharding_violations,
)
from shardproof_suites.models import ZOO
from shardproof_suites.oracle import LocalShard, fill_, poison_, step_value
from shardproof_suites.training import Options, make_adamw, take_step
from shardproof_suites.values import value_violations
from shardproof_suites.violation import Code, Violation

T = TypeVar("T")

# Neither what a new optimizer counts from nor a step of the oracle.
_POISON_STEP = 99


class PrepareRaised(Exception):
    """The constructor, `prepare` or a step with what it made raised."""


class SaveRaised(Exception):
    """`save` raised."""


class LoadRaised(Exception):
    """`load_` raised, or `prepare` with a checkpoint to resume from."""


RAISED = {
    "PrepareRaised": Code.PREPARE_RAISED,
    "SaveRaised": Code.SAVE_RAISED,
    "LoadRaised": Code.LOAD_RAISED,
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What every stage is told.

    Attributes:
        implementation: Import string.
        cell: What the implementation is constructed with.
        root: Folder for checkpoints.
    """

    implementation: str
    cell: Cell
    root: Path


class Subject:
    """One implementation with one model, on one rank of one stage.

    Args:
        setup: What the stage was told.
        model: Name in the zoo.
        options: Options of the two parameter groups.
        resume: A checkpoint to load in `prepare`.
    """

    def __init__(
        self, setup: Setup, model: str, options: Options, resume: Ref | None = None
    ) -> None:
        self.world: World = current_world()
        self.cell = setup.cell
        self._root = setup.root
        self._model = ZOO[model]
        self._dtype: torch.dtype = getattr(torch, setup.cell.dtype.value)
        module = self._model.build(self._dtype)
        self.expected = Expectation.of(module)
        found = load_implementation(setup.implementation)
        with _calling(LoadRaised if resume else PrepareRaised):
            self.implementation = found(setup.cell)
            state = self.implementation.prepare(module, make_adamw(options), resume)
            self.state = _typed("prepare", TrainState, state)

    def step(self) -> None:
        """Train one step; collective."""
        with _calling(PrepareRaised):
            take_step(self.state, self._model, self._dtype, self.world.rank)

    def save(self) -> Ref:
        """Save, and wait until it is done; collective."""
        with _calling(SaveRaised):
            saved = self.implementation.save(self.state, self._root, 1)
            return _typed("save", Ref, saved if isinstance(saved, Ref) else saved.wait())

    def load(self, ref: Ref) -> None:
        """Load in place; collective."""
        with _calling(LoadRaised):
            result = _typed("load_", LoadResult, self.implementation.load_(self.state, ref))
            if result.missing or result.unexpected:
                raise ValueError(f"a strict load ended with {result}")

    def fill(self) -> None:
        """Give everything its expected values, except the options of the groups."""
        for shard in self._shards():
            fill_(shard, self.expected.oracle)
        for number in self._numbers():
            number.set(step_value(number.fqns[0], self.expected.oracle))

    def poison(self) -> None:
        """Make everything wrong in each element."""
        for shard in self._shards():
            poison_(shard, self.expected.oracle)
        for number in self._numbers():
            number.set(_POISON_STEP)

    def wrong_sharding(self) -> list[Violation]:
        """Compare how the model is sharded with the cell."""
        return sharding_violations(self.state.modules, self.cell, self.expected.units)

    def wrong_values(self, clause: str) -> list[Violation]:
        """Compare everything that this rank holds with what it must hold."""
        return value_violations(self.state, self.expected, clause)

    def anyone(self, found: list[Violation]) -> bool:
        """Say whether any rank has found something, so that all stop together; collective."""
        return any(self.world.gather(bool(found)))

    def _shards(self) -> list[LocalShard]:
        parameters = live_parameters(self.state.modules)
        return [
            *parameter_shards(parameters),
            *buffer_shards(self.state.modules),
            *optimizer_shards(self.state.optimizers, parameters),
        ]

    def _numbers(self) -> list[Number]:
        return optimizer_numbers(self.state.optimizers, live_parameters(self.state.modules))


def _typed(call: str, wanted: type[T], found: T) -> T:
    if not isinstance(found, wanted):
        raise TypeError(f"{call} returned {type(found).__name__}, wanted {wanted.__name__}")
    return found


@contextmanager
def _calling(error: type[Exception]) -> Iterator[None]:
    """Tell what an implementation raises from what the suites raise.

    A warning is no error there, whatever the session's filters say: outcomes are the same
    everywhere.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            yield
    except Unsupported:
        raise
    # torch's CheckpointException is a BaseException.
    except (Exception, CheckpointException) as cause:
        raise error(f"{type(cause).__name__}: {cause}") from cause
