"""Shard, train a step, and look at the live model before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardproof_suites.subject import Setup, Subject
from shardproof_suites.training import SAVED_OPTIONS
from shardproof_suites.violation import Violation

if TYPE_CHECKING:
    from shardproof_suites.case import Case
    from shardproof_suites.running import Run


def check_sharding(run: Run, case: Case) -> Sequence[Sequence[Violation]]:
    """Run one stage; the case's data is the name of a model in the zoo."""
    return run.stage(sharding_stage, case.cells[0], case.data)


def sharding_stage(setup: Setup, model: str) -> list[Violation]:
    """On a rank: compare how the model is sharded with the cell."""
    subject = Subject(setup, model, SAVED_OPTIONS)
    found = subject.wrong_sharding()
    if subject.anyone(found):
        return found
    subject.step()
    return subject.wrong_sharding()
