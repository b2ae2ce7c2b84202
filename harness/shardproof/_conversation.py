"""One command to a set of ranks, and all that they say until each has ended it or is dead."""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shardproof import _linux
from shardproof._channel import Message
from shardproof._evidence import Evidence
from shardproof._process import RankProcess
from shardproof._terminal import Loan, Terminal
from shardproof._zygote import Zygote

# Seconds after a rank has failed: until when the others should have noticed by themselves; when
# one that still waits in a collective will not wake any more (gloo can lose a wake-up); and how
# long the others may go on.
_NOTICE = 0.3
_STUCK = 1.0
GRACE = 5.0
_LAST_LOOK = 1.0  # seconds in which no further evidence is asked for when Ctrl-C came
_LONGEST_WAIT = 3600.0  # of one call; the kernel takes no more than 24 days


@dataclass(slots=True)
class Ending:
    """How one rank's piece of work went.

    Attributes:
        rank: The rank.
        messages: What it sent, without the last message.
        done: The last message, or None if it never ended by itself.
        failed_at: When it first failed (monotonic, s), or None.
        lost_peer: The words by which that failure tells that another rank was gone, if it does.
        death: How its process ended, or an empty string.
        late_death: The same of a process that ended when its work had.
        killed: Why it was killed: `deadline`, `grace`, `interrupt`, or an empty string.
        evidence: What it was doing before it was killed.
        begun: If others were killed: the collectives that it had begun, by their group's name.
        output: What it had printed, if it died or was killed or the call has failed.
    """

    rank: int
    messages: list[Message] = field(default_factory=list)
    done: Message | None = None
    failed_at: float | None = None
    lost_peer: str = ""
    death: str = ""
    late_death: str = ""
    killed: str = ""
    evidence: Evidence | None = None
    begun: dict[str, list[str]] = field(default_factory=dict)
    output: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.done is not None or bool(self.death)


def _has_skipped(ending: Ending) -> bool:
    reports = (message for message in ending.messages if message.kind == "report")
    return any(report.fields["report"]["outcome"] == "skipped" for report in reports)


def exit_asked(endings: Sequence[Ending]) -> list[Any]:
    """Return the message and exit code with which a rank wants the session to end, or nothing."""
    asked = [e.done.fields["exit"] for e in endings if e.done and "exit" in e.done.fields]
    return asked[-1] if asked else []


class Conversation:
    """One command to every rank, and everything that they say until each has ended it."""

    def __init__(self, zygote: Zygote, ranks: Sequence[RankProcess], terminal: Terminal) -> None:
        self._zygote = zygote
        self._loan = Loan(terminal)  # while it is out, the clock stands still
        self._ranks = [rank for rank in ranks if not rank.gone]
        self._endings = {rank.rank: Ending(rank.rank) for rank in self._ranks}
        self._arrived: set[int] = set()
        self._woken = False
        self._looked = False
        self._killed_at: float | None = None
        self._began_ns = time.time_ns()
        self._timers: dict[int, float] = {}
        self._extended = 0.0

    def hold(
        self, kind: str, fields: dict[str, Any], timeout: float, payload: bytes
    ) -> list[Ending]:
        """Give the command; return when every rank has ended it, died or been killed."""
        for rank in self._ranks:
            rank.tell(kind, payload, work=self._began_ns, **fields)
        self._timeout = timeout
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector, self._loan:
            selector.register(self._zygote, selectors.EVENT_READ)
            for rank in self._ranks:
                listen = partial(self._listen, rank)
                selector.register(rank.channel, selectors.EVENT_READ, listen)
                if rank.lines is not None:
                    selector.register(rank.lines, selectors.EVENT_READ, rank.lines.pump)
            while not all(ending.ended for ending in self._endings.values()):
                ready = selector.select(self._patience(deadline))
                for key, _ in ready:
                    if key.data is not None and not key.data():
                        selector.unregister(key.fileobj)
                self._notice_deaths()
                if not self._loan.out:
                    self._act(self._due(deadline))
        for rank in self._ranks:
            if rank.lines is not None and not rank.gone:
                rank.lines.drain()
        if kind == "call" and self._trouble():
            for rank in self._ranks:
                if not rank.gone:
                    self._endings[rank.rank].output = rank.output()
        return [self._endings[rank.rank] for rank in self._ranks]

    def interrupted(self) -> list[Ending]:
        """Take the evidence of the ranks that have not ended, as far as a second allows."""
        until = time.monotonic() + _LAST_LOOK
        for rank in self._pending():
            ending = self._endings[rank.rank]
            ending.killed = "interrupt"
            if time.monotonic() < until and not _linux.state(rank.pid).startswith("T"):
                ending.evidence = rank.testify(self._began_ns)
        return [self._endings[rank.rank] for rank in self._ranks]

    def _listen(self, rank: RankProcess) -> bool:
        """Take in what a rank says; return whether more can come."""
        try:
            messages = rank.channel.arrived()
        except EOFError:
            return False  # its exit status follows from the zygote
        for message in messages:
            self._hear(rank, message)
        return True

    def _hear(self, rank: RankProcess, message: Message) -> None:
        ending = self._endings[rank.rank]
        if ending.killed:
            return  # too late: the signal that asked for its stack may have ended its wait
        if message.kind == "ready":
            rank.open_captured(message.fields["captured"])
        elif message.kind == "arrive":
            self._arrive(rank)
        elif message.kind == "debug":
            if rank.lines is not None:
                rank.lines.drain()  # what it has printed comes before its prompt
            self._loan.ask(rank, message.fields["failed"])
        elif message.kind == "returned":
            self._loan.returned(rank)
        elif message.kind == "done":
            ending.done = message
        else:
            ending.messages.append(message)
        if message.kind == "timer":
            self._time(rank.rank, message.fields["seconds"])
        if "at" in message.fields and ending.failed_at is None:
            ending.failed_at = message.fields["at"]
            ending.lost_peer = message.fields["lost_peer"]

    def _time(self, rank: int, seconds: float | None) -> None:
        """Give a rank so many seconds from now; None ends that, and all have the usual time."""
        if seconds is not None:
            self._timers[rank] = time.monotonic() + seconds
        else:
            self._timers.pop(rank, None)
            self._extended = time.monotonic() + self._timeout

    def _due(self, deadline: float) -> float:
        """Return when time is up: a rank's own, while it has one, counts instead of the test's.

        The time for which a debugger had the terminal doesn't count.
        """
        due = min(self._timers.values(), default=max(deadline, self._extended))
        return due + self._loan.held

    def _arrive(self, rank: RankProcess) -> None:
        """Let the ranks go on when all have come to re-form their group."""
        self._arrived.add(rank.rank)
        if len(self._arrived) == len(self._ranks) and not self._trouble():
            self._arrived.clear()
            for peer in self._ranks:
                peer.tell("go")

    def _trouble(self) -> float | None:
        """Return when it was first clear that not every rank will pass, or None."""
        times = [e.failed_at for e in self._endings.values() if e.failed_at is not None]
        return max(min(times), self._loan.back_at) if times else None

    def _lone_skip(self) -> float | None:
        """Return when a rank left the test by a skip that others have not made, or None."""
        endings = self._endings.values()
        if all(ending.ended or _has_skipped(ending) for ending in endings):
            return None  # then only their teardowns go on
        times = [e.done.fields.get("skipped_at") for e in endings if e.done]
        signs = [time for time in times if time is not None]
        return max(min(signs), self._loan.back_at) if signs else None

    def _wake_at(self) -> float | None:
        signs = [sign for sign in (self._trouble(), self._lone_skip()) if sign is not None]
        return None if self._woken or not signs else min(signs) + _NOTICE

    def _patience(self, deadline: float) -> float | None:
        """Return for how many seconds nothing has to be done unless a rank says something."""
        if self._loan.out:
            return None
        seconds = self._next_check(self._due(deadline)) - time.monotonic()
        return min(max(0.0, seconds), _LONGEST_WAIT)

    def _next_check(self, deadline: float) -> float:
        if self._killed_at is not None:
            return self._killed_at + GRACE
        trouble, wake = self._trouble(), self._wake_at()
        checks = [deadline] if trouble is None else [deadline, trouble + GRACE]
        if trouble is not None and not self._looked:
            checks.append(trouble + _STUCK)
        return min(checks if wake is None else [*checks, wake])

    def _notice_deaths(self) -> None:
        exits = self._zygote.exits()
        for rank in self._ranks:
            ending = self._endings[rank.rank]
            status = None if rank.gone else exits.get(rank.pid)
            if status is None:
                continue
            while self._listen(rank):  # what it said before it died
                pass
            if ending.done is None:
                self._bury(rank, ending, _linux.describe_exit(status))
            else:
                ending.late_death = _linux.describe_exit(status)
                ending.output = rank.output()
                rank.close()
            self._loan.returned(rank, f"rank {rank.rank} {_linux.describe_exit(status)}")

    def _bury(self, rank: RankProcess, ending: Ending, death: str) -> None:
        ending.death = death
        ending.output = rank.output()
        if ending.failed_at is None:
            ending.failed_at = time.monotonic()
        if ending.evidence is None and (stack := rank.fatal_stack()):
            ending.evidence = Evidence(stack=stack)
        rank.close()

    def _act(self, deadline: float) -> None:
        now = time.monotonic()
        trouble, wake = self._trouble(), self._wake_at()
        if self._killed_at is not None:
            if now >= self._killed_at + GRACE:
                self._give_up()
        elif now >= deadline:
            self._kill_pending("deadline")
        elif trouble is not None and now >= trouble + GRACE:
            self._kill_pending("grace")
        elif wake is not None and now >= wake:
            self._wake_pending()
        elif trouble is not None and now >= trouble + _STUCK and not self._looked:
            self._kill_stuck()

    def _give_up(self) -> None:
        """Go on without the ranks that not even SIGKILL has ended (an uninterruptible wait)."""
        for rank in self._pending():
            self._bury(rank, self._endings[rank.rank], "could not be killed")

    def _pending(self) -> list[RankProcess]:
        return [rank for rank in self._ranks if not self._endings[rank.rank].ended]

    def _wake_pending(self) -> None:
        self._woken = True
        for rank in self._pending():
            if rank.rank in self._arrived:
                rank.tell("abandon")
            rank.wake(self._began_ns)

    def _kill_stuck(self) -> None:
        """Kill the ranks that wait for their peers still, which are gone."""
        self._looked = True
        for rank in self._pending():
            evidence = rank.testify(self._began_ns)
            if evidence.stuck_in:
                ending = self._endings[rank.rank]
                ending.evidence, ending.killed = evidence, "grace"
                self._zygote.kill(rank.pid)

    def _ask_what_was_begun(self) -> None:
        """Ask those ranks that answer what they have begun: it may not match."""
        for rank in self._ranks:
            ending = self._endings[rank.rank]
            if not rank.gone and (ending.evidence is None or ending.evidence.answered):
                ending.begun = rank.begun(self._began_ns)

    def _kill_pending(self, why: str) -> None:
        """Take every pending rank's evidence, then kill them all."""
        pending = self._pending()
        for rank in pending:
            ending = self._endings[rank.rank]
            ending.evidence = rank.testify(self._began_ns)
            ending.killed = why
        if why == "deadline":
            self._ask_what_was_begun()
        self._killed_at = time.monotonic()
        for rank in pending:
            self._zygote.kill(rank.pid)
