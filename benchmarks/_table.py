"""The table of figures: measured, against what, and whether the target was reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEADINGS = ("measured", "ours", "against", "theirs", "ratio", "target", "reached")


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        measured: What was measured.
        ours: What was seen, with its unit.
        target: What is to be reached, in words.
        reached: Whether it was.
        against: What it is compared with.
        theirs: What was seen of that, with its unit.
        ratio: Ours against theirs, in words.
    """

    measured: str
    ours: str
    target: str
    reached: bool
    against: str = "-"
    theirs: str = "-"
    ratio: str = "-"


def duration(seconds: float) -> str:
    """Write seconds with three digits, in the unit that suits them."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def render(figures: Sequence[Figure]) -> str:
    """Lay the figures out as a Markdown table, its columns aligned."""
    return markdown([HEADINGS, *(_cells(figure) for figure in figures)])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Lay rows of cells, the headings first, out as a Markdown table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, _line(["-" * width for width in widths], widths))
    return "\n".join(lines)


def _cells(figure: Figure) -> tuple[str, ...]:
    reached = "yes" if figure.reached else "NO"
    return (
        figure.measured,
        figure.ours,
        figure.against,
        figure.theirs,
        figure.ratio,
        figure.target,
        reached,
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(map(str.ljust, cells, widths)) + " |"
