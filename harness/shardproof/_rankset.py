"""The controller's side of a set of ranks: start them, give them work, replace them, end them."""

from __future__ import annotations

import signal
import socket
import time
from dataclasses import dataclass
from typing import Any

from shardproof._conversation import GRACE, Conversation, Ending
from shardproof._group import LOOPBACK
from shardproof._process import RankProcess
from shardproof._report import fold, hang, say_ranks
from shardproof._zygote import Zygote
from shardproof.errors import StartError


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
    start_timeout: float


class RankSet:
    """A set of ranks with one default process group.

    Raises:
        StartError: The ranks or their group did not come up.
    """

    def __init__(self, zygote: Zygote, setting: Setting) -> None:
        self._zygote = zygote
        self.setting = setting
        self._ranks: list[RankProcess] = []
        self._port = _free_port()
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
            "port": self._port,
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
        self.whole = False  # until they have ended it: an interrupt may come between
        endings = self._converse(kind, fields, timeout, payload)
        self.whole = not any(rank.gone for rank in self._ranks) and all(
            ending.done is not None and ending.done.fields.get("whole", ending.failed_at is None)
            for ending in endings
        )
        return endings

    def finish(self, timeout: float = 30.0) -> list[str]:
        """End all ranks, their fixtures first; return what went wrong, one line each."""
        problems: list[str] = []
        if any(not rank.gone for rank in self._ranks):
            for ending in self._converse("finish", {}, timeout):
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
        deadline = time.monotonic() + GRACE
        while (status := self._zygote.exit_status(rank.pid)) is None:
            if time.monotonic() > deadline:
                return signal.SIGKILL  # uninterruptible; the kernel ends it when it can
            time.sleep(0.0005)
        return status

    def _converse(
        self, kind: str, fields: dict[str, Any], timeout: float, payload: bytes = b""
    ) -> list[Ending]:
        return Conversation(self._zygote, self._ranks).hold(kind, fields, timeout, payload)


def _why(ending: Ending) -> str:
    if ending.killed:
        return "did not end in time and was killed"
    return ending.death or "did not answer"


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
