"""Compares what a soak's session said with what was planned, and looks for what it has left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from shardproof._report import say_ranks

from benchmarks._soak_tests import Planned

DESCRIPTORS = 8  # more than that many at the end than after the first tests is a leak
_SHOWN = 30  # lines of a wrong test's text


@dataclass(frozen=True, slots=True)
class Found:
    """What JUnit's XML has of one test.

    Attributes:
        outcome: `passed`, or the name of the element that says otherwise; several, joined.
        text: The message, the failure and the output.
    """

    outcome: str
    text: str


def read(report: Path) -> dict[str, Found]:
    """Return what the report has, by the tests' names."""
    if not report.exists():
        return {}
    cases = ElementTree.parse(report).iter("testcase")
    return {case.attrib["name"]: _found(case) for case in cases}


def _found(case: ElementTree.Element) -> Found:
    outcomes = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
    texts = [f"{child.get('message', '')}\n{child.text or ''}" for child in case]
    return Found(" ".join(outcomes) or "passed", "\n".join(texts))


def wrong(planned: Sequence[Planned], found: dict[str, Found], printed: str) -> Iterator[str]:
    """Yield what is not as planned, each with what the report has of it."""
    for name in sorted(found.keys() - {one.name for one in planned}):
        yield f"{name}: was not planned"
    for one in planned:
        if one.name not in found:
            yield f"{one.name}: was not reported"
            continue
        told = found[one.name]
        if told.outcome != one.outcome:
            yield _shown(one, f"is {told.outcome}, not {one.outcome}", told.text)
        elif not one.told.search(told.text):
            yield _shown(one, f"the report lacks {one.told.pattern!r}", told.text)
        elif one.kind and not _head(one).search(printed):
            yield _shown(one, f"nothing printed matches {_head(one).pattern!r}", told.text)


def _head(one: Planned) -> re.Pattern[str]:
    """Return the head line that the printed failure must have, with the ranks that it names."""
    assert one.kind is not None
    # ranks that hang or disagree are all named
    named = range(one.world) if one.kind.chosen == "some" else one.ranks
    who = say_ranks(named)
    suffix = "" if one.style == "launch" else rf" \({who} of {one.world}\)"
    return re.compile(rf"^_+ (ERROR at \w+ of )?{one.name}{suffix} _+$", re.MULTILINE)


def _shown(one: Planned, what: str, text: str) -> str:
    lines = [f"  | {line[:200]}" for line in text.splitlines()[:_SHOWN]]
    where = f"{one.style}, ranks {one.ranks} of {one.world}"
    return "\n".join([f"{one.name} ({where}): {what}", *lines])


def left(folder: Path, temporary: Path) -> Iterator[str]:
    """Yield what a session has left on disk and in memory, by its samples."""
    for path in sorted(temporary.rglob("*")):
        yield f"temporary file is left: {path.relative_to(temporary)}"
    for scratch in sorted({sample["scratch"] for one in samples(folder) for sample in one}):
        if Path(scratch).exists():
            yield f"folder in memory is left: {scratch}"


def samples(folder: Path) -> list[list[dict[str, Any]]]:
    """Return each process's samples, in order."""
    files = sorted(folder.glob("sample*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def growth(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield a process's name, and its descriptors and MiB at the first and at the last sample."""
    for one in samples(folder):
        for name in ("controller", "zygote", "rank"):
            used = [sample[name] for sample in one if sample[name]]
            if used:
                yield name, used[0][0], used[-1][0], used[0][1], used[-1][1]
