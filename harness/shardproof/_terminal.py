"""The terminal of the pytest process, which a rank borrows for its debugger.

Ranks are process groups of their own in pytest's session. So the controlling terminal is theirs
too, and what decides who reads it and who gets a Ctrl-C is its foreground group, which the
controller sets: to a rank's group, and back when the rank is through with it, or dead.
"""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shardproof._process import RankProcess

CONTROLLING = "/dev/tty"
_LOCAL_MODES, _CHARACTERS = 3, 6  # places in what tcgetattr gives


class Terminal:
    """The controlling terminal as the pytest process holds it.

    Args:
        stdin_is_terminal: Whether standard input was a terminal before pytest captured it.
        only: The one rank that may borrow it, or None for the first that asks.
        trace: Whether tests begin in the debugger, which they do on rank 0 unless `only` says else.
    """

    def __init__(self, stdin_is_terminal: bool, only: int | None, trace: bool) -> None:
        self.only = only
        self.trace = trace
        self._stdin_is_terminal = stdin_is_terminal
        self._descriptor = -1
        self._attributes: list[Any] = []

    def lend(self, group: int) -> str:
        """Make a process group the foreground one; return why that can't be, or nothing."""
        if not self._stdin_is_terminal:
            return "standard input is not a terminal"
        try:
            self._descriptor = os.open(CONTROLLING, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            return f"{CONTROLLING} can't be opened: {error.strerror}"
        refusal = self._hand_over(group)
        if refusal:
            os.close(self._descriptor)
        return refusal

    def _hand_over(self, group: int) -> str:
        terminal = self._descriptor
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return "pytest runs in the background"
        self._attributes = termios.tcgetattr(terminal)
        try:
            termios.tcsetattr(terminal, termios.TCSANOW, _without_job_control(terminal))
            os.tcsetpgrp(terminal, group)
        except OSError as error:
            termios.tcsetattr(terminal, termios.TCSANOW, self._attributes)
            return f"the terminal can't be handed over: {error.strerror}"
        return ""

    def take_back(self, note: str = "") -> None:
        """Make pytest's group the foreground one again, and the terminal what it was.

        Args:
            note: A line to write to it.
        """
        # One that was closed meanwhile has nothing to put back.
        with suppress(OSError, termios.error), _background_may_set():
            os.tcsetpgrp(self._descriptor, os.getpgrp())
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._attributes)
            if note:
                os.write(self._descriptor, f"\n{note}\n".encode())
        os.close(self._descriptor)


def _without_job_control(terminal: int) -> list[Any]:
    """Return the attributes with which Ctrl-Z stops no rank, and output no background group.

    A shell knows pytest's group only: nobody would continue what was stopped.
    """
    attributes = termios.tcgetattr(terminal)
    attributes[_LOCAL_MODES] &= ~termios.TOSTOP
    attributes[_CHARACTERS][termios.VSUSP] = bytes([os.fpathconf(terminal, "PC_VDISABLE")])
    return attributes


@contextmanager
def _background_may_set() -> Iterator[None]:
    """Block the signal that stops a background process which sets the terminal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Loan:
    """The terminal during one conversation: which rank has it, and who waits for it.

    In one conversation a single rank may stop at breakpoints, and a single one after a failure:
    the first of each. So a breakpoint in a loop always stops the same rank, and a failure that only
    follows from the first stops none.

    Attributes:
        held: Seconds for which it was lent, and the conversation's clock stood still.
        back_at: When it last came back (monotonic, s), or 0.
    """

    def __init__(self, terminal: Terminal) -> None:
        self.held = 0.0
        self.back_at = 0.0
        self._terminal = terminal
        self._holder: RankProcess | None = None
        self._since = 0.0
        self._waiting: list[tuple[RankProcess, bool]] = []
        self._first = {False: 0} if terminal.trace else {}  # by whether it has failed

    def __enter__(self) -> Loan:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the terminal back, if the conversation was cut short."""
        if self._holder is not None:
            self._terminal.take_back()
            self._holder = None

    @property
    def out(self) -> bool:
        """Whether a rank has the terminal."""
        return self._holder is not None

    def ask(self, rank: RankProcess, failed: bool) -> None:
        """Lend the terminal to a rank, have the rank wait for it, or tell it to go on.

        A rank that has failed waits in any case: leaving its group would wake the peers. One that
        has not goes on at once: the debugger may have to step over a collective of both.

        Args:
            rank: The rank.
            failed: It has failed; otherwise it has come to a breakpoint or begins a test.
        """
        may = self._may(rank, failed)
        if self.out and (may or failed):
            self._waiting.append((rank, failed))
            return
        refusal = self._terminal.lend(rank.pid) if may else ""
        lent = may and not refusal
        if lent:
            self._holder, self._since = rank, time.monotonic()
            self._first[failed] = rank.rank
        rank.tell("terminal", lent=lent, refusal=refusal)

    def _may(self, rank: RankProcess, failed: bool) -> bool:
        only = self._terminal.only
        return rank.rank == (self._first.get(failed, rank.rank) if only is None else only)

    def returned(self, rank: RankProcess, note: str = "") -> None:
        """Take the terminal back, if this rank has it, and answer those who wait for it.

        Args:
            rank: A rank that is through with it, or dead.
            note: A line to write to the terminal.
        """
        if rank is not self._holder:
            return
        self._terminal.take_back(note)
        self.back_at = time.monotonic()
        self.held += self.back_at - self._since
        self._holder = None
        waiting, self._waiting = self._waiting, []
        # First the one that gets it, so that those that have failed wait on.
        for peer, failed in sorted(waiting, key=lambda asked: not self._may(*asked)):
            if not peer.gone:
                self.ask(peer, failed)
