"""Which rank gets the terminal, who waits for it, and who goes on."""

from __future__ import annotations

import time
from typing import Any, cast

from shardproof._process import RankProcess
from shardproof._terminal import Loan, Terminal


class Rank:
    """What a loan knows of a rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 100 + rank
        self.gone = False
        self.told: list[tuple[bool, str]] = []

    def tell(self, kind: str, lent: bool, refusal: str) -> None:
        assert kind == "terminal"
        self.told.append((lent, refusal))


class Lender:
    """A terminal that can be lent, or cannot."""

    def __init__(self, only: int | None = None, trace: bool = False, refusal: str = "") -> None:
        self.only = only
        self.trace = trace
        self.refusal = refusal
        self.group = 0

    def lend(self, group: int) -> str:
        assert self.group == 0
        if not self.refusal:
            self.group = group
        return self.refusal

    def take_back(self, note: str = "") -> None:
        assert self.group
        self.group = 0


class Lending:
    """A loan among three ranks."""

    def __init__(self, **kwargs: Any) -> None:
        self.terminal = Lender(**kwargs)
        self.ranks = [Rank(number) for number in range(3)]
        self.loan = Loan(cast(Terminal, self.terminal))

    def ask(self, rank: int, failed: bool) -> list[tuple[bool, str]]:
        """Return all that the rank has been told, after it has asked."""
        self.loan.ask(cast(RankProcess, self.ranks[rank]), failed)
        return self.ranks[rank].told

    def returned(self, rank: int) -> None:
        self.loan.returned(cast(RankProcess, self.ranks[rank]))


YES, NO = (True, ""), (False, "")
FAILURE, BREAKPOINT = True, False


def test_failures_wait_and_breakpoints_go_on_while_the_terminal_is_lent() -> None:
    lending = Lending()
    assert lending.ask(1, FAILURE) == [YES]
    assert lending.terminal.group == 101
    assert lending.ask(0, FAILURE) == []
    assert lending.ask(2, BREAKPOINT) == []  # its turn comes
    lending.returned(0)  # has nothing to return
    assert lending.loan.out
    lending.returned(1)
    assert lending.ranks[0].told == []  # waits for the next to be through
    assert lending.ranks[2].told == [YES]
    assert lending.terminal.group == 102
    assert lending.ask(1, BREAKPOINT) == [YES, NO]
    lending.returned(2)
    assert lending.ranks[0].told == [NO]
    assert not lending.loan.out


def test_same_rank_gets_the_terminal_again_for_the_same_reason() -> None:
    lending = Lending()
    for _ in range(2):
        lending.ask(1, BREAKPOINT)
        lending.returned(1)
    assert lending.ranks[1].told == [YES, YES]
    assert lending.ask(2, BREAKPOINT) == [NO]
    assert lending.ask(2, FAILURE) == [NO, YES]


def test_rank_0_is_traced_or_the_chosen_one() -> None:
    breakpoints = [Lending(trace=True).ask(rank, BREAKPOINT) for rank in range(3)]
    assert breakpoints == [[YES], [NO], [NO]]
    assert [Lending(trace=True).ask(rank, FAILURE) for rank in range(3)] == [[YES]] * 3
    for failed in (FAILURE, BREAKPOINT):
        asked = [Lending(only=2, trace=True).ask(rank, failed) for rank in range(3)]
        assert asked == [[NO], [NO], [YES]]


def test_refusal_is_told_and_chooses_no_rank() -> None:
    lending = Lending(refusal="closed")
    assert lending.ask(1, FAILURE) == [(False, "closed")]
    assert lending.ask(2, FAILURE) == [(False, "closed")]
    assert not lending.loan.out


def test_clock_stands_still_and_the_dead_are_not_asked() -> None:
    lending = Lending()
    lending.ask(1, FAILURE)
    lending.ask(0, FAILURE)
    lending.ranks[0].gone = True
    time.sleep(0.05)
    lending.returned(1)
    assert lending.ranks[0].told == []
    assert lending.loan.held >= 0.05
    assert lending.loan.back_at > 0


def test_conversation_cut_short_takes_the_terminal_back() -> None:
    lending = Lending()
    with lending.loan:
        lending.ask(1, FAILURE)
    assert lending.terminal.group == 0
