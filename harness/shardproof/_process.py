"""One rank's process as the controller holds it: its channels, its files, its output."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from functools import partial
from typing import Any

from shardproof import _evidence
from shardproof._channel import Channel
from shardproof._evidence import Evidence
from shardproof._output import Lines, Output, read_shortened
from shardproof._zygote import Zygote
from shardproof.errors import ChannelError

_ANSWER = 1.0  # seconds that a rank may take to give its evidence


class RankProcess:
    """One rank's process, its channels and its files.

    Args:
        zygote: Where it is forked from.
        spec: What it is told of itself.
        output: Where its output goes.
    """

    def __init__(self, zygote: Zygote, spec: dict[str, Any], output: Output) -> None:
        control, theirs = socket.socketpair()
        evidence, side = socket.socketpair()
        self.rank: int = spec["rank"]
        self.channel = Channel(control, timeout=30)
        self.evidence = Channel(evidence, timeout=_ANSWER)
        self.stack_file = _temporary_file()
        self._output = output
        self.lines = None if output.captured else Lines(partial(output.show, self.rank))
        self._log_file = _temporary_file() if self.lines is None else self.lines.writer
        self._captured: list[int] = []
        passed = [theirs.fileno(), side.fileno(), self.stack_file, self._log_file]
        self.pid = zygote.fork_rank({**spec, "log": output.log_of(self.rank)}, passed)
        theirs.close()
        side.close()
        if self.lines is not None:
            os.close(self.lines.writer)
        self.gone = False

    def output(self) -> str:
        """Return what the rank printed and nobody has read: of this phase, and outside of tests."""
        if self.lines is not None:
            return ""  # it has been shown
        texts = [read_shortened(descriptor) for descriptor in (*self._captured, self._log_file)]
        return "".join(text for text in texts if text.strip())

    def fatal_stack(self) -> str:
        """Return the stack that a fatal signal has left behind, or an empty string."""
        dump = read_shortened(self.stack_file)
        return _evidence.main_stack(dump[dump.find("Fatal Python error") :]) if dump else ""

    def open_captured(self, descriptors: list[int]) -> None:
        """Open the files that the rank captures output in, to read them when it is dead."""
        for descriptor in descriptors:
            with suppress(OSError):
                self._captured.append(os.open(f"/proc/{self.pid}/fd/{descriptor}", os.O_RDONLY))

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

    def begun(self, since_ns: int) -> dict[str, list[str]]:
        """Ask the rank which collectives it has begun since a time, by their group's name."""
        try:
            self.evidence.send("begun", since_ns=since_ns)
            groups: dict[str, list[str]] = self.evidence.receive().fields["groups"]
        except (ChannelError, EOFError):
            return {}
        return groups

    def close(self) -> None:
        """Release what the controller holds of a rank that is gone."""
        self.gone = True
        self.channel.close()
        self.evidence.close()
        if self.lines is None:
            for descriptor in (*self._captured, self._log_file):
                self._output.keep_file(self.rank, descriptor)
                os.close(descriptor)
        else:
            self.lines.close()
        os.close(self.stack_file)


def _temporary_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
