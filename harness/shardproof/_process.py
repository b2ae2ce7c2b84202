"""One rank's process as the controller holds it: its channels, its files, its output."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from typing import Any

from shardproof import _evidence
from shardproof._channel import Channel
from shardproof._evidence import Evidence
from shardproof._zygote import Zygote
from shardproof.errors import ChannelError

_ANSWER = 1.0  # seconds that a rank may take to give its evidence


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

    def tell(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Send a message; a rank that is dead or stopped is found to be so by other means."""
        with suppress(ChannelError):
            self.channel.send(kind, payload, **fields)

    def wake(self, work: int) -> None:
        """End whatever the rank waits for from other ranks, if it still does that work."""
        with suppress(ChannelError):
            self.evidence.send("wake", work=work)

    def testify(self, since_ns: int) -> Evidence:
        """Ask the rank what it is doing; collectives begun before `since_ns` don't matter."""
        return _evidence.collect(self.pid, self.evidence, self.stack_file, since_ns, _ANSWER)

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
