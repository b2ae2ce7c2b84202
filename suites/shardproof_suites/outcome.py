"""How a case ends: one vocabulary for reports, expectations, the matrix and the gate."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Kind(enum.Enum):
    """The kinds of outcome, from the best to the worst.

    A violation can be expected, with its code. A crash, a timeout and an error of the harness
    can't, as nothing is known of what the case would have found.
    """

    PASS = "pass"
    NOT_RUN = "not-run"
    UNSUPPORTED = "unsupported"
    VIOLATION = "violation"
    TIMEOUT = "timeout"
    CRASH = "crash"
    HARNESS_ERROR = "harness-error"


_BADNESS = {kind: badness for badness, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case ended, or one rank of it.

    Attributes:
        kind: The kind.
        detail: The code of a violation, or the reason why it was not run.
    """

    kind: Kind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}({self.detail})" if self.detail else self.kind.value

    @classmethod
    def parse(cls, text: str) -> Outcome:
        """Undo `str`.

        Raises:
            ValueError: It is no outcome.
        """
        kind, _, rest = text.partition("(")
        return cls(Kind(kind), rest.removesuffix(")"))

    @property
    def failed(self) -> bool:
        """Whether the implementation or the run is to blame."""
        return self.kind not in (Kind.PASS, Kind.NOT_RUN, Kind.UNSUPPORTED)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Merge the outcomes of ranks, or of cases: the worst wins, the first of equals.

    Nothing run is an error of the harness, never a pass.
    """
    nothing = Outcome(Kind.HARNESS_ERROR, "nothing was run")
    return max(outcomes, key=lambda outcome: _BADNESS[outcome.kind], default=nothing)
