"""The controller's side of a set of ranks: start them, give them work, replace them, end them."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardproof import _linux
from shardproof._conversation import GRACE, Conversation, Ending
from shardproof._group import LOOPBACK
from shardproof._output import Output
from shardproof._process import RankProcess
from shardproof._report import fold, hang, late_death, say_ranks, unmatched
from shardproof._terminal import Terminal
from shardproof._zygote import Zygote, readable
from shardproof.errors import StartError


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for all ranks of a set.

    Attributes:
        world_size: How many ranks.
        backend: One of `BACKENDS` but `auto`.
        devices: Each rank's device.
        seed: Seed of rank 0; rank r has `seed + r`.
        basetemp: The controller's base temporary folder.
        output: Where what they print goes.
        start_timeout: Seconds that start and group may take.
    """

    world_size: int
    backend: str
    devices: tuple[str, ...]
    seed: int
    basetemp: str
    output: Output
    start_timeout: float


class RankSet:
    """A set of ranks with one default process group.

    Raises:
        StartError: The ranks or their group did not come up.
    """

    def __init__(self, zygote: Zygote, terminal: Terminal, setting: Setting) -> None:
        self._zygote = zygote
        self._terminal = terminal
        self.setting = setting
        self._ranks: list[RankProcess] = []
        self._port = _free_port()
        self.whole = False
        self._distrusted: set[int] = set()
        self._damaged = False
        self._began_ns = 0
        self._last = ""
        self._form()

    @property
    def pids(self) -> list[int]:
        """The ranks' process ids, in rank order."""
        return [rank.pid for rank in self._ranks]

    def restore(self, timeout: float) -> list[str]:
        """Replace the ranks that are gone or distrusted, and form a new group of all.

        Args:
            timeout: Seconds that ending the wider fixtures may take.

        Returns:
            What went wrong while the surviving ranks ended their fixtures.
        """
        problems = self._retire(timeout)
        self._form()
        return problems

    def _form(self) -> None:
        """Start the ranks that are missing, and form a group of all."""
        alive = {rank.rank: rank for rank in self._ranks if not rank.gone}
        try:
            self._ranks = [
                alive.get(number) or self._start(number)
                for number in range(self.setting.world_size)
            ]
            endings = self._converse(
                "form", {"store": self._zygote.new_store()}, self.setting.start_timeout
            )
        except BaseException:
            self.kill()
            raise
        if any(ending.done is None for ending in endings):
            self.kill()
            raise StartError(_start_report(endings, self.setting.start_timeout))
        self.whole = True

    def _retire(self, timeout: float) -> list[str]:
        """End all fixtures, and the ranks that are distrusted; return what went wrong.

        Fixtures come first, as one may want all ranks for its end; not so if the group is damaged,
        as they would wait for each other.
        """
        if self._damaged:
            self._end_distrusted()
        problems = self._unwind("unwind", timeout)
        self._end_distrusted()
        self._damaged = False
        return problems

    def _end_distrusted(self) -> None:
        for rank in self._ranks:
            if rank.rank in self._distrusted and not rank.gone:
                self._end(rank)
        self._distrusted.clear()

    def _unwind(self, kind: str, timeout: float) -> list[str]:
        """Have the ranks that live end their fixtures; return what went wrong."""
        if all(rank.gone for rank in self._ranks):
            return []
        endings = self._converse(kind, {}, timeout)
        problems = [
            f"rank {ending.rank}: {line}"
            for ending in endings
            if ending.done
            for line in ending.done.fields["errors"]
        ]
        problems += [f"rank {e.rank} {e.death}" for e in endings if e.death and not e.killed]
        if any(ending.killed for ending in endings):
            problems.append(hang(endings, timeout, "their teardown"))
        return problems

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
            "port": self._port,
        }
        return RankProcess(self._zygote, spec, setting.output)

    def run(
        self, name: str, kind: str, fields: dict[str, Any], timeout: float, payload: bytes = b""
    ) -> list[Ending]:
        """Give every rank the same work and wait until each has ended it or is dead.

        Afterwards `whole` says whether the set can be used on; if not, `restore` it.

        Args:
            name: What it is, for the ranks' logs.
            kind: The command.
            fields: Its arguments.
            timeout: Seconds, from now.
            payload: Bytes that go with it.
        """
        self.whole = False  # until they have ended it: an interrupt may come between
        self._last = name
        for number in range(self.setting.world_size):
            self.setting.output.keep(number, f"===== {name} =====")
        self._began_ns = time.time_ns()
        endings = self._converse(kind, fields, timeout, payload)
        self._distrusted = {e.rank for e in endings if e.done and e.done.fields.get("left")}
        self.whole = not any(rank.gone for rank in self._ranks) and all(
            ending.done is not None and ending.done.fields.get("whole", ending.failed_at is None)
            for ending in endings
        )
        return endings

    def deaths(self) -> list[tuple[str, str]]:
        """Look which ranks have died since they ended their work; the set is not whole then.

        Returns:
            For each, the name of that work, and how it died.
        """
        found = []
        exits = self._zygote.exits()
        living = [rank.channel.fileno() for rank in self._ranks if not rank.gone]
        closed = readable(*living, timeout=0)
        for rank in self._ranks:
            if rank.gone or not (rank.pid in exits or rank.channel.fileno() in closed):
                continue
            if (status := self._died(rank)) is not None:
                how = _linux.describe_exit(status)
                found.append((self._last, late_death(rank.rank, how, self._last, rank.output())))
                rank.close()
                self.whole = False
        return found

    def _died(self, rank: RankProcess) -> int | None:
        """Return the wait status of a rank that has died, or None while it lives."""
        if rank.channel.at_end():
            return self._wait_for_exit(rank)  # the zygote may not have seen it yet
        return self._zygote.exits().get(rank.pid)

    def unmatched(self, endings: Sequence[Ending]) -> str:
        """Tell of collectives of the last work that not all ranks have begun.

        The ranks that have begun them are distrusted. Their counts alone don't tell, as gloo
        counts transfers between two ranks with the collectives; where counts differ, the flight
        recorder is asked. Without one the group is taken for damaged. Of a test that a rank has
        left early, by a skip, nothing is told.
        """
        if any(ending.done is None or ending.failed_at is not None for ending in endings):
            return ""
        left_early = any(e.done and "skipped_at" in e.done.fields for e in endings)
        members = _uneven({e.rank: e.done.fields.get("counts", {}) for e in endings if e.done})
        if not members:
            return ""
        begun = {rank.rank: rank.begun(self._began_ns) for rank in self._ranks}
        text, ahead = unmatched(begun, members)
        self.whole = self.whole and not ahead and any(begun.values())
        self._distrusted |= ahead
        self._damaged = bool(ahead)
        return "" if left_early else text

    def finish(self, timeout: float) -> list[str]:
        """End all ranks, their fixtures first; return what went wrong.

        Args:
            timeout: Seconds that ending the fixtures may take.
        """
        problems = self._unwind("finish", timeout)
        self.kill()
        return problems

    def kill(self) -> None:
        """End all ranks now, with all that they have started; return when they are gone."""
        for rank in self._ranks:
            if not rank.gone:
                self._zygote.kill(rank.pid)
        for rank in self._ranks:
            if not rank.gone:
                self._end(rank)
        self.whole = False

    def _end(self, rank: RankProcess) -> None:
        self._zygote.kill(rank.pid)
        if not self._zygote.lost:
            self._wait_for_exit(rank)
        rank.close()

    def _wait_for_exit(self, rank: RankProcess) -> int:
        deadline = time.monotonic() + GRACE
        while (status := self._zygote.exits().get(rank.pid)) is None:
            if time.monotonic() > deadline:
                return signal.SIGKILL  # uninterruptible; the kernel ends it when it can
            time.sleep(0.0005)
        return status

    def _converse(
        self, kind: str, fields: dict[str, Any], timeout: float, payload: bytes = b""
    ) -> list[Ending]:
        conversation = Conversation(self._zygote, self._ranks, self._terminal)
        began = time.monotonic()
        try:
            return conversation.hold(kind, fields, timeout, payload)
        except KeyboardInterrupt:
            took = round(time.monotonic() - began, 1)
            beginning = "" if kind in ("run", "call") else "what follows "
            what = f"{beginning}{self._last}" if self._last else "forming a group"
            self.setting.output.tell(
                hang(conversation.interrupted(), took, what, "was interrupted after")
            )
            raise


def _uneven(counts: dict[int, dict[str, int]]) -> dict[str, list[int]]:
    """Return the ranks of each group whose ranks have other counts, by the group's name."""
    found = {}
    for name in {name for of_rank in counts.values() for name in of_rank}:
        ranks = [rank for rank in counts if name in counts[rank]]
        if len({counts[rank][name] for rank in ranks}) > 1:
            found[name] = ranks
    return found


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        port: int = sock.getsockname()[1]
        return port


def _start_report(endings: list[Ending], timeout: float) -> str:
    head = f"{len(endings)} ranks did not form a process group"
    if any(ending.killed for ending in endings):
        head += "\n" + hang(endings, timeout, "forming it")
    lines = [f"rank {e.rank} {e.death}" for e in endings if e.death and not e.killed]
    printed = fold((e.rank, e.output.rstrip()) for e in endings if e.output.strip())
    output = [f"{say_ranks(ranks)} printed:\n{text}" for ranks, text in printed]
    return "\n".join([head, *lines, *output])
