"""Subtests: what failed is its test's failure; what did not is told once for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shardproof._conversation import Ending
from shardproof._outcomes import add_section, is_marked, revived, say
from shardproof._report import fold_alike


def add_failures(report: Any, failed: list[Any]) -> None:
    """Make a test fail by its subtests; what is told first is its own failure, if it has one.

    Else it is the first subtest's, with its name in the summary. The others are sections of it.
    """
    if not report.failed:
        first, *failed = failed
        report.outcome, report.longrepr = "failed", first.longrepr
        vars(report).pop("wasxfail", None)
        if hasattr(report.longrepr, "reprcrash"):
            crash = report.longrepr.reprcrash
            crash.message = f"{first.head_line}: {crash.message}"
    for other in failed:
        add_section(report, f"also failed: {other.head_line}", str(other.longrepr))


class Subtests:
    """In the pytest process: the subtests of all ranks, but for those that failed.

    Args:
        config: pytest's configuration.
        endings: Every rank's ending.
    """

    def __init__(self, config: pytest.Config, endings: Sequence[Ending]) -> None:
        self._endings = endings
        self._of_ranks = [_of(config, ending) for ending in endings]

    def merged(self) -> list[pytest.TestReport]:
        """Return the subtests that have not failed, those that several ranks have run once."""
        found: list[pytest.TestReport] = []
        seen: set[str] = set()
        for ending in self._endings:
            failed = [m.fields["failed"] for m in ending.messages if m.kind == "failed_subtest"]
            seen.update(f"{name} passed" for name in failed)
        for of_rank in self._of_ranks:
            found += [report for report in of_rank if _say(report) not in seen]
            seen.update(map(_say, of_rank))
        return found

    def left_out_alike(self) -> bool:
        """Say whether the ranks have left out the same subtests, in whatever order and why."""
        names = [
            (ending.rank, "\n".join(sorted(report.head_line for report in _left_out(of_rank))))
            for ending, of_rank in zip(self._endings, self._of_ranks, strict=True)
        ]
        return len(fold_alike(names)) < 2

    def say_left_out(self) -> list[list[str]]:
        """Say for each rank which subtests it has left out."""
        return [[_say(report) for report in _left_out(of_rank)] for of_rank in self._of_ranks]


def _of(config: pytest.Config, ending: Ending) -> list[pytest.TestReport]:
    """Return the reports of a rank's subtests, but for those that failed."""
    found = []
    for message in ending.messages:
        if message.kind == "subtest":
            data = message.fields["report"]
            report = revived(config, data)
            # Reviving has made representations of what are representations.
            report.context.kwargs.update(data["_subtest.context"]["kwargs"])
            found.append(report)
    return found


def _left_out(subtests: Sequence[Any]) -> list[Any]:
    """Return the subtests that a rank has skipped, or left by `pytest.xfail`."""
    return [report for report in subtests if not (report.passed or is_marked(report))]


def _say(report: Any) -> str:
    return f"{report.head_line} {say(report)}"
