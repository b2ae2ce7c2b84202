"""The matrix at the end of a run: strategy and dtype against state-dict type; loads no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

import pytest

from shardproof_suites._items import result_of
from shardproof_suites.cell import Dtype, StateDictType, Strategy
from shardproof_suites.outcome import Kind, Outcome, worst

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_ROWS = [f"{strategy.value} {dtype.value}" for strategy in Strategy for dtype in Dtype]
_COLUMNS = [kind.name for kind in StateDictType]


class Matrix:
    """Collects the outcomes of a session's cases, from xdist's workers too."""

    def __init__(self) -> None:
        # By node id, so that a test that is run again counts once.
        self._outcomes: dict[str, Outcome] = {}
        self._places: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a case's outcome from its report."""
        result = result_of(report)
        if result is not None:
            self._outcomes[report.nodeid] = Outcome.parse(result["outcome"])
            self._places[report.nodeid] = result["row"], result["column"]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Fail a run in which no case said anything: nothing run is never a pass."""
        if self._said_nothing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        yield

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Print the matrix and how often each outcome came."""
        if not self._outcomes:
            return
        terminalreporter.section("conformance")
        for line in self._lines():
            terminalreporter.line(line)
        counts = Counter(outcome.kind for outcome in self._outcomes.values())
        total = ", ".join(f"{counts[kind]} {kind.value}" for kind in Kind if counts[kind])
        terminalreporter.line(f"{len(self._outcomes)} cases: {total}")
        if self._said_nothing():
            terminalreporter.line("error: no case was run to its end", red=True)

    def _said_nothing(self) -> bool:
        outcomes = self._outcomes.values()
        silent = (Kind.NOT_RUN, Kind.UNSUPPORTED)
        return bool(outcomes) and all(outcome.kind in silent for outcome in outcomes)

    def _lines(self) -> Iterable[str]:
        places = self._places.values()
        rows = [name for name in _ROWS if name in {row for row, _ in places}]
        columns = [name for name in _COLUMNS if name in {column for _, column in places}]
        table = [["", *columns]]
        table += [[row, *(self._cell(row, column) for column in columns)] for row in rows]
        widths = [max(map(len, texts)) for texts in zip(*table, strict=True)]
        for line in table:
            padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
            yield "  ".join(padded).rstrip()

    def _cell(self, row: str, column: str) -> str:
        """Give the worst outcome and how many of the cell's cases ended so."""
        nodes = [node for node, place in self._places.items() if place == (row, column)]
        if not nodes:
            return "-"
        kind = worst(self._outcomes[node] for node in nodes).kind
        return f"{kind.value} {sum(self._outcomes[one].kind is kind for one in nodes)}/{len(nodes)}"
