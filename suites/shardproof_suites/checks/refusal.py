"""Ask for what must be refused: every rank has to raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardproof_suites.checks.round_trip import Trip, loads_in_place, save_stage
from shardproof_suites.subject import LoadRaised, Setup, Subject
from shardproof_suites.training import LOADING_OPTIONS
from shardproof_suites.violation import Code, Violation

if TYPE_CHECKING:
    from shardproof_suites.case import Case
    from shardproof_suites.implementation import Ref
    from shardproof_suites.running import Run


def check_refused_load(run: Run, case: Case) -> Sequence[Sequence[Violation]]:
    """Save at the first cell, and load at a last one that the checkpoint doesn't fit."""
    saved = run.stage(save_stage, case.cells[0], case.data)
    found = [one.violations for one in saved]
    if any(found):
        return found
    return run.stage(refused_load_stage, case.cells[-1], case.data, saved[0].ref, case.clause)


def refused_load_stage(setup: Setup, trip: Trip, ref: Ref, clause: str) -> list[Violation]:
    """On a rank: load, and find a violation if that works."""
    try:
        if loads_in_place(setup):
            Subject(setup, trip.model, LOADING_OPTIONS).load(ref)
        else:
            Subject(setup, trip.model, LOADING_OPTIONS, resume=ref)
    except LoadRaised:
        return []
    details = f"wanted an error on loading into {setup.cell.dtype.value}", "found none"
    return [Violation(clause, Code.NOT_REFUSED, "the load", details)]
