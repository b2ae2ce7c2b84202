"""What a tool said of a fault, read from its own pytest's reports and from what it printed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._fault_files import Fault, faulty_name, healthy_name

# Words of the tools for a rank; the second is of torchrun's summary, the third before its lines.
_RANK_1 = re.compile(r"\b(rank|process)s? ?1\b|\brank *: 1\b|\[default1\]", re.IGNORECASE)
_RANK_0 = re.compile(r"\b(rank|process)s? ?0\b|\brank *: 0\b", re.IGNORECASE)
# Lines that blame nobody: on each process's start, and torch's own source in a long traceback.
_NO_BLAME = re.compile(r"Started process \d|# Rank \d")


@dataclass(frozen=True, slots=True)
class Said:
    """One report of a phase of a test.

    Attributes:
        process: Which of torchrun's ranks it comes from, or an empty string.
        test: The test function's name.
        phase: `setup`, `call` or `teardown`.
        outcome: `passed`, `failed` or `skipped`.
        text: The failure with its head line and sections.
    """

    process: str
    test: str
    phase: str
    outcome: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one fault.

    Attributes:
        word: `right`, `cause not shown`, `blamed wrong`, `passed`, `skipped`, `no test named`
            or `hung`.
        following: What came of the healthy test after it: `passes`, `fails`, `skipped` or
            `not run`.
    """

    word: str
    following: str

    def __str__(self) -> str:
        return f"{self.word}; next {self.following}"


def read(folder: Path) -> list[Said]:
    """Return all that the recorder has written in a folder."""
    found = []
    for file in sorted(folder.glob("said*.jsonl")):
        process = file.stem.removeprefix("said")
        for line in file.read_text().splitlines():
            nodeid, phase, outcome, text = json.loads(line)
            found.append(Said(process, nodeid.rpartition("::")[2], phase, outcome, text))
    return found


def judge(
    fault: Fault, index: int, said: Sequence[Said], printed: str, hung: bool, processes: int
) -> Verdict:
    """Judge what a run said of one fault.

    Args:
        fault: The fault.
        index: Its place in the file.
        said: All reports of the run.
        printed: What it printed, where this was the only fault, else an empty string.
        hung: It had to be killed.
        processes: How many pytest processes report each test.
    """
    faulty = [one for one in said if one.test == faulty_name(index, fault)]
    healthy = [one for one in said if one.test == healthy_name(index)]
    following = _following(healthy, processes)
    return Verdict(_word(fault, faulty, following, printed, hung), following)


def _word(fault: Fault, faulty: Sequence[Said], following: str, printed: str, hung: bool) -> str:
    failures = [one for one in faulty if one.outcome == "failed"]
    if failures:
        text = "\n".join([*(f"[default{one.process}] {one.text}" for one in failures), printed])
        lines = "\n".join(line for line in text.splitlines() if not _NO_BLAME.search(line))
        if _RANK_1.search(lines) and re.search(fault.deed, lines, re.IGNORECASE):
            return "right"
        return "blamed wrong" if _RANK_0.search(lines) else "cause not shown"
    if following == "fails":
        return "blamed wrong"
    if hung:
        return "hung"
    calls = {one.outcome for one in faulty}
    if "skipped" in calls:
        return "skipped"
    if any(one.phase == "call" for one in faulty):
        return "passed"
    return "no test named"


def _following(healthy: Sequence[Said], processes: int) -> str:
    outcomes = [one.outcome for one in healthy]
    if "failed" in outcomes:
        return "fails"
    if "skipped" in outcomes:
        return "skipped"
    passed = [one for one in healthy if one.phase == "call"]
    return "passes" if len(passed) == processes else "not run"
