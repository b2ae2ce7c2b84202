"""One report out of the ranks' reports: a test passes if it passed on every rank."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)

from shardproof._conversation import Ending
from shardproof._outcomes import add_section, is_marked, kind, revived, say
from shardproof._report import death, ended_late, fold, fold_alike, hang, say_ranks
from shardproof._subtests import Subtests

# Frames in these are not the test's own.
_NOT_OWN = ("site-packages", str(Path(__file__).parent), sysconfig.get_paths()["stdlib"])
_PHASES = ("setup", "call", "teardown")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a phase did not pass on one rank.

    Attributes:
        rank: The rank.
        phase: In which phase.
        at: When, in monotonic seconds.
        secondary: It only follows from another rank's failure.
        report: pytest's report, or None for a rank that died or was killed.
        text: The failure as text.
    """

    rank: int
    phase: str
    at: float
    secondary: bool
    report: pytest.TestReport | None
    text: str


class Merger:
    """Merges what the ranks say about one item.

    Args:
        item: The item.
        endings: Every rank's ending.
        timeout: The deadline that the item had, in seconds.
        elapsed: Seconds that it took, for ranks that could not report.
    """

    def __init__(
        self, item: pytest.Item, endings: Sequence[Ending], timeout: float, elapsed: float
    ) -> None:
        self._item = item
        self._endings = endings
        self._timeout = timeout
        self._elapsed = elapsed
        self._reports = [_reports_of(item.config, ending) for ending in endings]
        self._subtests = Subtests(item.config, endings)

    def reports(self) -> list[pytest.TestReport]:
        """Return the merged reports, in the order of the phases that count."""
        excused = self._excuse(("setup", "call"))
        problems = self._problems(("setup", "call"))
        causes = _causes(problems)
        failed_in = causes[0].phase if causes else ""
        merged = [self._phase("setup", problems if failed_in == "setup" else [], failed_in)]
        only_setup = self._item.config.getoption("setuponly", False)  # also with --setup-plan
        if merged[0].passed and not only_setup:
            merged.append(self._phase("call", problems, failed_in))
        teardown = self._teardown(excused or any(kind(report) != "passed" for report in merged))
        return [*merged, teardown] if teardown else merged

    def subtests(self) -> list[pytest.TestReport]:
        """Return the subtests that have not failed, those that several ranks have run once."""
        return self._subtests.merged()

    def _excuse(self, phases: Sequence[str]) -> bool:
        """Have failures that follow only from an expected one, by a mark, count as expected too.

        Args:
            phases: Where both are looked for.

        Returns:
            Whether there are any.
        """
        expected = [report for phase in phases for report in self._of(phase) if is_marked(report)]
        problems = self._problems(phases)
        if not (expected and problems and all(problem.secondary for problem in problems)):
            return False
        for problem in problems:
            report: Any = problem.report
            if report is None:
                report = copy(expected[0])
                report.sections = []
            report.outcome = "skipped"
            report.longrepr = expected[0].longrepr
            report.wasxfail = expected[0].wasxfail
            self._reports[problem.rank][report.when] = report
        return True

    def _phase(self, phase: str, problems: list[Problem], failed_in: str) -> pytest.TestReport:
        reports = self._of(phase)
        cut_short = failed_in == "call" and phase == "setup"
        if cut_short:
            # A rank whose setup was cut short by the call's failure is told of there.
            reports = [report for report in reports if kind(report) != "failed"]
        everywhere = len(reports) == len(self._endings) or cut_short
        kinds = {kind(report) for report in reports}
        expected = "xfailed" in kinds and not failed_in  # a death is never expected
        # Setup and teardown may have failed, as expected, on some ranks only.
        beside = {"xpassed"} if phase == "call" else {"xpassed", "passed"}
        if everywhere and expected and kinds <= {"xfailed", *beside}:
            return self._joined(_first(reports, "xfailed"))
        alike = len(kinds) == 1 and (phase != "call" or self._subtests.left_out_alike())
        if everywhere and alike and not problems:
            return self._joined(reports[0])
        left_early = kinds & {"skipped", "xfailed"}
        if problems and not (left_early and all(problem.secondary for problem in problems)):
            return self._failure(phase, problems)
        return self._disagreement(phase)

    def _teardown(self, left_early: bool) -> pytest.TestReport | None:
        self._excuse(("teardown",))
        reports = self._of("teardown")
        problems = self._problems(("teardown",))
        told = any(not problem.secondary for problem in problems) or any(
            kind(report) == "xfailed" and not report.ranks_facts[1] for report in reports
        )
        if left_early and not told:
            # Why has been told; what the teardown says of a lost group follows from it.
            return self._joined(_as_passed(reports)) if reports else None
        return self._phase("teardown", problems, "teardown" if problems else "")

    def _of(self, phase: str) -> list[pytest.TestReport]:
        return [by_phase[phase] for by_phase in self._reports if phase in by_phase]

    def _problems(self, phases: Sequence[str]) -> list[Problem]:
        """Return what failed in some phases, at most one problem a rank."""
        found = []
        for ending, by_phase in zip(self._endings, self._reports, strict=True):
            failed = [by_phase[p] for p in phases if p in by_phase and by_phase[p].failed]
            if failed and kind(failed[0]) == "failed":
                found.append(_failed(ending, failed[0]))
            elif ending.death and _ended_in(by_phase) in phases:
                found.append(self._lost(ending, _ended_in(by_phase)))
        return found

    def _lost(self, ending: Ending, phase: str) -> Problem:
        at = ending.failed_at or 0.0
        if ending.killed == "deadline":
            text = hang(self._endings, _limit(self._endings, self._timeout), "the test")
        elif ending.killed:
            text = f"rank {ending.rank} {ended_late(ending)}"
        else:
            text = death(ending)
        return Problem(ending.rank, phase, at, ending.killed == "grace", None, text)

    def _failure(self, phase: str, problems: list[Problem]) -> pytest.TestReport:
        causes = _causes(problems)
        first, *others = fold_alike((problem.rank, problem.text) for problem in causes)
        chosen = next(problem for problem in causes if problem.rank == first[0][0])
        report = self._blank(phase, "failed") if chosen.report is None else chosen.report
        report.when = phase  # type: ignore[assignment]
        if chosen.report is None:
            report.longrepr = self._native(chosen.text)
        self._name_ranks(report, first[0], [rank for ranks, _ in others for rank in ranks])
        report.sections = self._sections()
        followed = [problem for problem in problems if problem not in causes]
        if followed:
            add_section(report, "followed from it", _followed(followed))
        for ranks, text in others:
            add_section(report, f"also failed: {say_ranks(ranks)}", text)
        if any(problem.report is None for problem in problems):
            report.duration = self._elapsed
        return self._joined(report, sections=False)

    def _disagreement(self, phase: str) -> pytest.TestReport:
        says = []
        for ending, by_phase, left_out in zip(
            self._endings, self._reports, self._subtests.say_left_out(), strict=True
        ):
            report = by_phase.get(phase)
            said = "did not run it" if report is None else say(report)
            says.append((ending.rank, ", ".join([said, *left_out])))
        lines = [f"{say_ranks(ranks)} {text}" for ranks, text in fold(says)]
        report = self._blank(phase, "failed")
        report.longrepr = self._native("the ranks disagree: " + "; ".join(lines))
        self._name_ranks(report, [])
        return self._joined(report)

    def _name_ranks(
        self, report: pytest.TestReport, ranks: Sequence[int], others: Sequence[int] = ()
    ) -> None:
        """Put the ranks into the failure's head line and its line in the summary."""
        path, line, name = report.location
        world = len(self._endings)
        who = say_ranks(ranks or range(world))
        also = f"also failed: {say_ranks(others)}" if others else ""
        suffix = f"{who} of {world}; {also}" if also else f"{who} of {world}"
        report.location = (path, line, f"{name} ({suffix})")
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None and ranks and not crash.message.startswith("rank"):
            begin = f"{who} ({also})" if also else who
            crash.message = f"{begin}: {crash.message}"

    def _native(self, text: str) -> ExceptionChainRepr:
        """Return a failure's text in the form that pytest and xdist can show and send."""
        path, line, _ = self._item.location
        entries = [ReprEntryNative([text_line + "\n" for text_line in text.splitlines()])]
        crash = ReprFileLocation(path, (line or 0) + 1, text.splitlines()[0])
        return ExceptionChainRepr([(ReprTraceback(entries, None, "native"), crash, None)])

    def _blank(self, phase: str, outcome: Any) -> pytest.TestReport:
        return pytest.TestReport(
            nodeid=self._item.nodeid,
            location=self._item.location,
            keywords={name: 1 for name in self._item.keywords},
            outcome=outcome,
            longrepr=None,
            when=phase,  # type: ignore[arg-type]
            duration=self._elapsed,
        )

    def _joined(self, report: pytest.TestReport, sections: bool = True) -> pytest.TestReport:
        """Give one rank's report every rank's time span and output."""
        same = [by[report.when] for by in self._reports if report.when in by]
        if same:
            report.duration = max(report.duration, *(other.duration for other in same))
            report.start = min(other.start for other in same)
            report.stop = max(other.stop for other in same)
        if sections:
            report.sections = self._sections(report.when)
        return report

    def _sections(self, phase: str | None = None) -> list[tuple[str, str]]:
        """Return the captured output of all ranks, the same output once."""
        titles: dict[str, list[tuple[int, str]]] = {}
        for ending, by_phase in zip(self._endings, self._reports, strict=True):
            for title, content in _last_sections(by_phase, phase):
                titles.setdefault(title, []).append((ending.rank, content))
            if ending.output.strip() and phase is None:
                titles.setdefault("Output", []).append((ending.rank, ending.output))
        return [
            (f"{title} ({say_ranks(ranks)})", content)
            for title, contents in titles.items()
            for ranks, content in fold(contents)
        ]


def _causes(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems that follow from no other, the first place that failed first."""
    causes = [one for one in problems if not one.secondary] or sorted(problems, key=_when)[:1]
    first: dict[object, float] = {}
    for cause in sorted(causes, key=_when):
        first.setdefault(_place(cause), cause.at)
    return sorted(causes, key=lambda cause: (first[_place(cause)], cause.rank))


def _when(problem: Problem) -> float:
    return problem.at


def _place(problem: Problem) -> object:
    """Return where a rank failed: the same for ranks that fail alike but for their values."""
    crash = getattr(problem.report and problem.report.longrepr, "reprcrash", None)
    return (crash.path, crash.lineno) if crash else problem.text


def _reports_of(config: pytest.Config, ending: Ending) -> dict[str, pytest.TestReport]:
    found = {}
    for message in ending.messages:
        if message.kind == "report":
            report = revived(config, message.fields["report"])
            report.ranks_facts = (message.fields.get("at"), message.fields.get("lost_peer", ""))
            found[report.when] = report
    return found


def _first(reports: Sequence[pytest.TestReport], wanted: str) -> pytest.TestReport:
    return next(report for report in reports if kind(report) == wanted)


def _as_passed(reports: Sequence[pytest.TestReport]) -> pytest.TestReport:
    report = reports[0]
    report.outcome = "passed"
    report.longrepr = None
    vars(report).pop("wasxfail", None)
    return report


def _failed(ending: Ending, report: pytest.TestReport) -> Problem:
    at, lost_peer = report.ranks_facts
    text = str(report.longrepr)
    return Problem(ending.rank, str(report.when), at or 0.0, bool(lost_peer), report, text)


def _limit(endings: Sequence[Ending], timeout: float) -> float:
    """Return the deadline that has passed: the last one set on a rank that was killed, if any."""
    timers = [
        [message.fields["seconds"] for message in ending.messages if message.kind == "timer"]
        for ending in endings
        if ending.killed
    ]
    return min((told[-1] for told in timers if told and told[-1]), default=timeout)


def _ended_in(by_phase: dict[str, pytest.TestReport]) -> str:
    """Return the phase in which a rank died: the first that it sent no report of."""
    return next((phase for phase in _PHASES if phase not in by_phase), "teardown")


def _last_sections(
    by_phase: dict[str, pytest.TestReport], phase: str | None
) -> list[tuple[str, str]]:
    """Return the sections of a phase's report, or of the last one; later ones hold them all."""
    chosen = by_phase.get(phase) if phase else next(reversed(by_phase.values()), None)
    return chosen.sections if chosen else []


def _followed(problems: Sequence[Problem]) -> str:
    """Return a line for each way in which ranks failed because another one had."""
    lines = fold((problem.rank, _follow(problem)) for problem in problems)
    return "\n".join(f"{say_ranks(ranks)}: {text}" for ranks, text in lines)


def _follow(problem: Problem) -> str:
    report = problem.report
    if report is None:
        return problem.text.partition(" ")[2].partition(" ")[2]
    words = report.ranks_facts[1]
    return f"{_last_own_line(report)}lost a peer ({words})"


def _last_own_line(report: pytest.TestReport) -> str:
    """Return `file:line: ` of the innermost frame outside of installed packages, if it is known."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    for entry in reversed(entries):
        location = getattr(entry, "reprfileloc", None)
        if location is not None and not any(part in location.path for part in _NOT_OWN):
            return f"{location.path}:{location.lineno}: "
    return ""
