"""What a case is: an id, what it proves, and one check function with its data."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from shardproof_suites.capability import Capability
from shardproof_suites.cell import Cell

if TYPE_CHECKING:
    from shardproof_suites.running import Run
    from shardproof_suites.violation import Violation

    # Runs stages and returns what each rank of the last one found.
    Check: TypeAlias = Callable[[Run, Any], Sequence[Sequence[Violation]]]

_SEGMENT = "[a-z0-9]+(?:-[a-z0-9]+)*"
_ID = re.compile(f"{_SEGMENT}/{_SEGMENT}/{_SEGMENT}(?:/{_SEGMENT})?")


class Tier(enum.Enum):
    """How early a case runs: a smoke failure blames the adapter, `full` is the whole matrix."""

    SMOKE = "smoke"
    CORE = "core"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that every implementation can be held to.

    Attributes:
        id: `area/behaviour/variant[/variant]`; stable, never reused.
        clause: Clause of docs/contract.md that it exists for.
        capability: What an implementation must claim; else it must refuse.
        tier: How early it runs.
        cells: Cell of each stage, in order; the first names its place in the matrix.
        check: What it does.
        data: What the check needs to know.
    """

    id: str
    clause: str
    capability: Capability
    tier: Tier
    cells: tuple[Cell, ...]
    check: Check
    data: Any

    @property
    def area(self) -> str:
        """The first part of the id."""
        return self.id.partition("/")[0]

    @property
    def world_size(self) -> int:
        """The most ranks that a stage starts."""
        return max(cell.world_size for cell in self.cells)


def lint(cases: Iterable[Case]) -> Iterator[str]:
    """Find ids that break the grammar or are used twice."""
    counts = Counter(case.id for case in cases)
    for text, count in counts.items():
        if not _ID.fullmatch(text):
            yield f"{text!r} is no area/behaviour/variant[/variant] of a-z, 0-9 and -"
        if count > 1:
            yield f"{text!r} is used {count} times"
