"""The door for a test file: one parametrized test function out of the registry."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardproof_suites import _preload  # noqa: F401
from shardproof_suites._items import DOOR, IMPLEMENTATION, OUTCOME, rerun_command
from shardproof_suites.case import Case
from shardproof_suites.cases import all_cases
from shardproof_suites.importing import absolute
from shardproof_suites.outcome import Kind, Outcome
from shardproof_suites.running import Run, Verdict, judge

if TYPE_CHECKING:
    from shardproof import Launch


def conformance(implementation: str | None = None) -> Callable[..., None]:
    """Make a test function that runs every case, one test each.

    Assign it to a name that starts with `test_`. The ids are `name[area/behaviour/variant]`.

    Args:
        implementation: `package.module:Class`, or `path/file.py:Class` with a path relative to
            the calling file. None takes it from `--implementation` or the ini file.
    """
    if implementation is not None:
        caller = Path(sys._getframe(1).f_globals["__file__"])
        implementation = absolute(implementation, caller.parent)

    @pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in all_cases()])
    def test_conformance(
        case: Case, launch: Launch, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        _hold(case, launch, tmp_path, request.node)

    setattr(test_conformance, DOOR, implementation)
    return test_conformance


def _hold(case: Case, launch: Launch, folder: Path, item: pytest.Item) -> None:
    """Hold the item's implementation to a case."""
    try:
        verdict = judge(case, Run(launch, item.stash[IMPLEMENTATION], folder))
    except pytest.skip.Exception as skipped:
        item.stash[OUTCOME] = Outcome(Kind.NOT_RUN, str(skipped.msg))
        raise
    except Exception:
        verdict = Verdict(Outcome(Kind.HARNESS_ERROR), traceback.format_exc())
    outcome = item.stash[OUTCOME] = verdict.outcome
    if outcome.kind is Kind.UNSUPPORTED:
        pytest.skip(str(outcome))
    if outcome.failed:
        command = rerun_command(item)
        pytest.fail(f"{verdict.text}\nrerun: {command}", pytrace=False)
