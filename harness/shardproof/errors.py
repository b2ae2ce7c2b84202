"""What can go wrong, in the order of a run's life.

`StartError`: ranks or their process group did not come up; usually the machine's fault.
`RankFailure`: a launched function raised, died or hung on a rank; usually the code's fault.
`LeakWarning`: a test has left something on its rank, which is replaced; the test's fault.
`ChannelError`: a message did not get through; a rank that is gone, or a bug of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class LeakWarning(UserWarning):
    """A test has left a thread, a child process or changed global state on a rank."""


OutcomeKind = Literal["returned", "raised", "woken", "died", "timeout"]


class ShardproofError(Exception):
    """Base of the errors that the harness raises itself."""


class StartError(ShardproofError):
    """Ranks or their process group could not be started."""


class ChannelError(ShardproofError):
    """A control message could not be sent or read in time."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """How one rank's call ended.

    Attributes:
        rank: The rank, from 0.
        kind: `returned`; `raised` an exception of its own; `woken` by the failure of another
            rank (its connection closed, or it was ended because the call had failed already);
            `died` (signal or exit); `timeout` (the deadline passed and it was killed).
        message: One line, empty for `returned`.
        exception_type: Qualified name of the exception, or an empty string.
        detail: The traceback, or the evidence taken before a rank was killed.
    """

    rank: int
    kind: OutcomeKind
    message: str = ""
    exception_type: str = ""
    detail: str = ""


class RankFailure(ShardproofError):
    """A launched function did not return on every rank.

    Attributes:
        ranks: One outcome for each rank, in rank order.
    """

    def __init__(self, report: str, ranks: tuple[RankOutcome, ...]) -> None:
        super().__init__(report)
        self.ranks = ranks
