"""`--setup-show` and its kin: what each rank's fixtures do, printed once where the ranks agree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from shardproof._conversation import Ending
from shardproof._items import PUT_BACK_FIXTURE
from shardproof._report import fold, say_ranks

# Our own fixture is no business of the user's: its lines, and its name among those of a test.
_OWN = re.compile(
    rf"\n *(SETUP|TEARDOWN) +F {PUT_BACK_FIXTURE}\b.*"
    rf"| \(fixtures used: {PUT_BACK_FIXTURE}\)|\b{PUT_BACK_FIXTURE}, |, {PUT_BACK_FIXTURE}\b"
)


def attach(endings: Sequence[Ending], reports: Sequence[Any]) -> None:
    """Give each merged report what was shown in its phase."""
    for report in reports:
        if shown := _text(endings, str(report.when)):
            report.ranks_shown = shown


def write(config: pytest.Config, report: Any) -> None:
    """Print what a report has to show, where pytest does so for an ordinary test."""
    if hasattr(report, "ranks_shown"):
        config.get_terminal_writer().write(report.ranks_shown, flush=True)


def _text(endings: Sequence[Ending], phase: str) -> str:
    """Return what the ranks have shown in a phase; what differs is told with its ranks."""
    texts = [
        (ending.rank, _OWN.sub("", message.fields["shown"]))
        for ending in endings
        for message in ending.messages
        if message.kind == "report" and message.fields["report"]["when"] == phase
    ]
    groups = fold((rank, shown) for rank, shown in texts if shown)
    if len(groups) == 1 and len(groups[0][0]) == len(texts):
        return groups[0][1]
    return "".join(f"\n{say_ranks(ranks)}:{shown}" for ranks, shown in groups)
