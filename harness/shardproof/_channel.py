"""Messages between the controller and one rank, over a socket pair."""

from __future__ import annotations

import select
import socket
import struct
from dataclasses import dataclass
from json import dumps, loads  # a test may patch the modules' own
from os import getpid
from typing import Any

from shardproof.errors import ChannelError

_LENGTHS = struct.Struct("!QQ")  # of the JSON fields and of the payload, in bytes
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """One message: a kind, JSON fields, and bytes (a pickle of our own) or none."""

    kind: str
    fields: dict[str, Any]
    payload: bytes = b""


class Channel:
    """Sends and receives whole messages over a connected stream socket.

    Args:
        sock: One end of a socket pair; the channel owns it.
        timeout: Seconds that one send or blocking receive may take, or None for no limit.
    """

    def __init__(self, sock: socket.socket, timeout: float | None = None) -> None:
        sock.settimeout(timeout)
        self._socket = sock
        self._owner = getpid()
        self._buffer = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket; the other side reads an end of file."""
        self._socket.close()

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Send one message.

        Raises:
            ChannelError: The other side is gone, or did not read in time; or this process is a
                child that a test has forked, which must not speak for its parent.
        """
        if getpid() != self._owner:
            raise ChannelError(f"{kind!r} comes from a forked child of the rank")
        body = dumps([kind, fields], default=repr).encode()
        try:
            self._socket.sendall(_LENGTHS.pack(len(body), len(payload)) + body + payload)
        except OSError as error:
            raise ChannelError(f"{kind!r} could not be sent: {error}") from error

    def at_end(self) -> bool:
        """Say whether the other side has closed and nothing is left to read; doesn't wait."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        try:
            return bool(poll.poll(0)) and not self._socket.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def receive(self) -> Message:
        """Wait for one message.

        Raises:
            EOFError: The other side has closed and nothing is left to read.
            ChannelError: Nothing came within the channel's timeout.
        """
        while (message := self._take()) is None:
            self._read()
        return message

    def arrived(self) -> list[Message]:
        """Return the messages that are complete after one read of what is there.

        Call it when the socket is readable.

        Raises:
            EOFError: The other side has closed.
        """
        self._read()
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        return messages

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except ConnectionError:
            data = b""
        except TimeoutError as error:
            raise ChannelError("no message came in time") from error
        if not data:
            raise EOFError("the channel's other side is closed")
        self._buffer += data

    def _take(self) -> Message | None:
        if len(self._buffer) < _LENGTHS.size:
            return None
        body, payload = _LENGTHS.unpack_from(self._buffer)
        start, middle = _LENGTHS.size, _LENGTHS.size + body
        end = middle + payload
        if len(self._buffer) < end:
            return None
        kind, fields = loads(bytes(self._buffer[start:middle]))
        message = Message(kind, fields, bytes(self._buffer[middle:end]))
        del self._buffer[:end]
        return message
