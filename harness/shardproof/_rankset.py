"""The controller's side of a set of ranks: start them, give them work, watch them, replace them."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from shardproof import _evidence, _linux
from shardproof._channel import Channel, Message
from shardproof._evidence import Evidence
from shardproof._zygote import Zygote
from shardproof.errors import ChannelError, StartError

# Once a test has failed, its other ranks get this long to notice that their peer is gone by
# themselves, and this long to end after they were woken.
_NOTICE = 0.3
_GRACE = 5.0
_ANSWER = 1.0


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
        killed: Why it was killed: `deadline`, `grace`, or an empty string.
        evidence: What it was doing before it was killed.
        output: What it had printed, if it died or was killed.
    """

    rank: int
    messages: list[Message] = field(default_factory=list)
    done: Message | None = None
    failed_at: float | None = None
    lost_peer: str = ""
    death: str = ""
    killed: str = ""
    evidence: Evidence | None = None
    output: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.done is not None or bool(self.death)


class RankProcess:
    """One rank's process, its channels and its files."""

    def __init__(self, zygote: Zygote, spec: dict[str, Any], capture: bool) -> None:
        control, theirs = socket.socketpair()
        evidence, side = socket.socketpair()
        self.rank: int = spec["rank"]
        self.channel = Channel(control, timeout=30)
        self.evidence = Channel(evidence, timeout=_ANSWER)
        self.stack_file = _temporary_file()
        self.log_file = _temporary_file() if capture else None
        self.captured: list[int] = []
        passed = [theirs.fileno(), side.fileno(), self.stack_file]
        if self.log_file is not None:
            passed.append(self.log_file)
        self.pid = zygote.fork_rank(spec, passed)
        theirs.close()
        side.close()
        self.gone = False

    def output(self) -> str:
        """Return what the rank printed and nobody has read: of this phase, and outside of tests."""
        texts = [_read(descriptor) for descriptor in (*self.captured, self.log_file) if descriptor]
        return "".join(text for text in texts if text.strip())

    def fatal_stack(self) -> str:
        """Return the stack that a fatal signal has left behind, or an empty string."""
        dump = _read(self.stack_file)
        return _evidence.main_stack(dump[dump.find("Fatal Python error") :]) if dump else ""

    def open_captured(self, descriptors: list[int]) -> None:
        """Open the files that the rank captures output in, to read them when it is dead."""
        for descriptor in descriptors:
            with suppress(OSError):
                self.captured.append(os.open(f"/proc/{self.pid}/fd/{descriptor}", os.O_RDONLY))

    def close(self) -> None:
        """Release what the controller holds of a rank that is gone."""
        self.gone = True
        self.channel.close()
        self.evidence.close()
        for descriptor in (self.stack_file, self.log_file, *self.captured):
            if descriptor is not None:
                os.close(descriptor)


def _temporary_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _read(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for all ranks of a set.

    Attributes:
        world_size: How many ranks.
        backend: `gloo` or `nccl`.
        devices: Each rank's device.
        seed: Seed of rank 0; rank r has `seed + r`.
        basetemp: The controller's base temporary folder.
        capture: Whether output goes to files.
        start_timeout: Seconds that start and group may take.
    """

    world_size: int
    backend: str
    devices: tuple[str, ...]
    seed: int
    basetemp: str
    capture: bool
    start_timeout: float = 60.0


class RankSet:
    """A set of ranks with one default process group.

    Raises:
        StartError: The ranks or their group did not come up.
    """

    def __init__(self, zygote: Zygote, setting: Setting) -> None:
        self._zygote = zygote
        self.setting = setting
        self._ranks: list[RankProcess] = []
        self.whole = False
        self.restore()

    @property
    def pids(self) -> list[int]:
        """The ranks' process ids, in rank order."""
        return [rank.pid for rank in self._ranks]

    def restore(self) -> list[str]:
        """Replace the ranks that are gone and form a new group of all.

        Returns:
            What went wrong while the surviving ranks ended their fixtures, one line each.
        """
        alive = {rank.rank: rank for rank in self._ranks if not rank.gone}
        try:
            self._ranks = [
                alive.get(number) or self._start(number)
                for number in range(self.setting.world_size)
            ]
            endings = self._converse("form", [{}] * len(self._ranks), self.setting.start_timeout)
        except BaseException:
            self.kill()
            raise
        if any(ending.done is None for ending in endings):
            self.kill()
            raise StartError(_start_report(endings))
        self.whole = True
        return [
            f"rank {ending.rank}: {line}"
            for ending in endings
            if ending.done
            for line in ending.done.fields["errors"]
        ]

    def _start(self, number: int) -> RankProcess:
        setting = self.setting
        spec = {
            "rank": number,
            "world_size": setting.world_size,
            "backend": setting.backend,
            "device": setting.devices[number],
            "seed": (setting.seed + number) % 2**32,
            "basetemp": setting.basetemp,
            "form_timeout": setting.start_timeout,
        }
        return RankProcess(self._zygote, spec, setting.capture)

    def run(
        self, kind: str, fields: dict[str, Any], timeout: float, payload: bytes = b""
    ) -> list[Ending]:
        """Give every rank the same work and wait until each has ended it or is dead.

        Afterwards `whole` says whether the set can be used on; if not, `restore` it.

        Args:
            kind: The command.
            fields: Its arguments.
            timeout: Seconds, from now.
            payload: Bytes that go with it.
        """
        endings = self._converse(kind, [fields] * len(self._ranks), timeout, payload)
        self.whole = all(
            ending.done is not None and ending.done.fields.get("whole", ending.failed_at is None)
            for ending in endings
        )
        return endings

    def finish(self, timeout: float = 30.0) -> list[str]:
        """End all ranks, their fixtures first; return what went wrong, one line each."""
        problems: list[str] = []
        if any(not rank.gone for rank in self._ranks):
            for ending in self._converse("finish", [{}] * len(self._ranks), timeout):
                lines = ending.done.fields["errors"] if ending.done else [_why(ending)]
                problems += [f"rank {ending.rank}: {line}" for line in lines]
        self.kill()
        return problems

    def kill(self) -> None:
        """End all ranks now, with all that they have started; return when they are gone."""
        for rank in self._ranks:
            if not rank.gone:
                self._zygote.kill(rank.pid)
        for rank in self._ranks:
            if not rank.gone:
                self._wait_for_exit(rank)
                rank.close()
        self.whole = False

    def _wait_for_exit(self, rank: RankProcess) -> int:
        deadline = time.monotonic() + _GRACE
        while (status := self._zygote.exit_status(rank.pid)) is None:
            if time.monotonic() > deadline:
                return signal.SIGKILL  # uninterruptible; the kernel ends it when it can
            time.sleep(0.0005)
        return status

    def _converse(
        self, kind: str, fields: list[dict[str, Any]], timeout: float, payload: bytes = b""
    ) -> list[Ending]:
        return _Conversation(self._zygote, self._ranks).hold(kind, fields, timeout, payload)


class _Conversation:
    """One command to every rank, and everything that they say until each has ended it."""

    def __init__(self, zygote: Zygote, ranks: list[RankProcess]) -> None:
        self._zygote = zygote
        self._ranks = [rank for rank in ranks if not rank.gone]
        self._endings = {rank.rank: Ending(rank.rank) for rank in self._ranks}
        self._arrived: set[int] = set()
        self._woken = False
        self._killed_at: float | None = None
        self._began_ns = time.time_ns()

    def hold(
        self, kind: str, fields: list[dict[str, Any]], timeout: float, payload: bytes
    ) -> list[Ending]:
        for rank in self._ranks:
            try:
                rank.channel.send(kind, payload, **fields[rank.rank])
            except ChannelError:
                continue  # it is dead or stopped, and is found to be
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._zygote, selectors.EVENT_READ)
            for rank in self._ranks:
                selector.register(rank.channel, selectors.EVENT_READ, rank)
            while not all(ending.ended for ending in self._endings.values()):
                ready = selector.select(max(0.0, self._next_check(deadline) - time.monotonic()))
                for key, _ in ready:
                    if key.data is not None and not self._listen(key.data):
                        selector.unregister(key.fileobj)
                self._notice_deaths()
                self._act(deadline)
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
        if message.kind == "ready":
            rank.open_captured(message.fields["captured"])
        elif message.kind == "port":
            for peer in self._ranks[1 : message.fields["world_size"]]:
                peer.channel.send("port", port=message.fields["port"])
        elif message.kind == "arrive":
            self._arrive(rank)
        elif message.kind == "done":
            ending.done = message
        else:
            ending.messages.append(message)
        if "at" in message.fields and ending.failed_at is None:
            ending.failed_at = message.fields["at"]
            ending.lost_peer = message.fields["lost_peer"]

    def _arrive(self, rank: RankProcess) -> None:
        """Let the ranks go on when all have come to re-form their group."""
        self._arrived.add(rank.rank)
        if len(self._arrived) == len(self._ranks) and not self._trouble():
            self._arrived.clear()
            for peer in self._ranks:
                peer.channel.send("go")

    def _trouble(self) -> float | None:
        """Return when it was first clear that not every rank will pass, or None."""
        times = [e.failed_at for e in self._endings.values() if e.failed_at is not None]
        return min(times, default=None)

    def _lone_skip(self) -> float | None:
        """Return when a rank left the test by a skip that others have not made, or None."""
        times = [e.done.fields.get("skipped_at") for e in self._endings.values() if e.done]
        return min((time for time in times if time is not None), default=None)

    def _wake_at(self) -> float | None:
        signs = [sign for sign in (self._trouble(), self._lone_skip()) if sign is not None]
        return None if self._woken or not signs else min(signs) + _NOTICE

    def _next_check(self, deadline: float) -> float:
        if self._killed_at is not None:
            return self._killed_at + _GRACE
        trouble, wake = self._trouble(), self._wake_at()
        checks = [deadline] if trouble is None else [deadline, trouble + _GRACE]
        return min(checks if wake is None else [*checks, wake])

    def _notice_deaths(self) -> None:
        for rank in self._ranks:
            ending = self._endings[rank.rank]
            status = None if rank.gone else self._zygote.exit_status(rank.pid)
            if status is None:
                continue
            while self._listen(rank):  # what it said before it died
                pass
            if ending.done is None:
                self._bury(rank, ending, _linux.describe_exit(status))
            else:
                rank.close()

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
            if now >= self._killed_at + _GRACE:
                self._give_up()
        elif now >= deadline:
            self._kill_pending("deadline")
        elif trouble is not None and now >= trouble + _GRACE:
            self._kill_pending("grace")
        elif wake is not None and now >= wake:
            self._wake_pending()

    def _give_up(self) -> None:
        """Go on without the ranks that not even SIGKILL has ended (an uninterruptible wait)."""
        for rank in self._pending():
            self._bury(rank, self._endings[rank.rank], "could not be killed")

    def _pending(self) -> list[RankProcess]:
        return [rank for rank in self._ranks if not self._endings[rank.rank].ended]

    def _wake_pending(self) -> None:
        self._woken = True
        for rank in self._pending():
            with suppress(ChannelError):
                if rank.rank in self._arrived:
                    rank.channel.send("abandon")
                rank.evidence.send("wake")

    def _kill_pending(self, why: str) -> None:
        """Take every pending rank's evidence, then kill them all."""
        pending = self._pending()
        for rank in pending:
            evidence = _evidence.collect(
                rank.pid, rank.evidence, rank.stack_file, self._began_ns, _ANSWER
            )
            ending = self._endings[rank.rank]
            ending.evidence = evidence
            ending.killed = why
        self._killed_at = time.monotonic()
        for rank in pending:
            self._zygote.kill(rank.pid)


def _why(ending: Ending) -> str:
    if ending.killed:
        return "did not end in time and was killed"
    return ending.death or "did not answer"


def _start_report(endings: list[Ending]) -> str:
    lines = [f"  rank {e.rank} {_why(e)}" for e in endings if e.done is None]
    output = [f"  rank {e.rank} printed:\n{e.output.rstrip()}" for e in endings if e.output.strip()]
    return "\n".join([f"{len(endings)} ranks did not form a process group:", *lines, *output])
