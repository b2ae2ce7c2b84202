"""Messages between the controller and a rank come through whole, or fail by a deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from shardproof._channel import Channel, Message
from shardproof.errors import ChannelError


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours, timeout=5)
    yield channel, theirs
    channel.close()
    theirs.close()


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    """Both ends."""
    ours, theirs = socket.socketpair()
    both = Channel(ours, timeout=5), Channel(theirs, timeout=5)
    yield both
    for channel in both:
        channel.close()


def raw(channels: tuple[Channel, Channel], *messages: Message) -> bytes:
    """Return the bytes of messages, as sent."""
    for message in messages:
        channels[0].send(message.kind, message.payload, **message.fields)
    return channels[1]._socket.recv(1 << 20)


def test_round_trip(channels: tuple[Channel, Channel]) -> None:
    channels[0].send("report", b"\x00payload", text="ü\n", numbers=[1, 2.5, None], nested={"a": []})
    assert channels[1].receive() == Message(
        "report", {"text": "ü\n", "numbers": [1, 2.5, None], "nested": {"a": []}}, b"\x00payload"
    )


def test_both_directions_and_no_fields(channels: tuple[Channel, Channel]) -> None:
    channels[0].send("there")
    channels[1].send("back")
    assert channels[1].receive() == Message("there", {}, b"")
    assert channels[0].receive() == Message("back", {}, b"")


def test_what_json_does_not_know_is_sent_by_its_repr(channels: tuple[Channel, Channel]) -> None:
    channels[0].send("report", value={1, 2})
    assert channels[1].receive().fields == {"value": "{1, 2}"}


def test_byte_by_byte(
    pair: tuple[Channel, socket.socket], channels: tuple[Channel, Channel]
) -> None:
    channel, other = pair
    wanted = [Message("one", {"a": 1}, b"xyz"), Message("two", {}, b""), Message("three", {})]
    data = raw(channels, *wanted)
    got = []
    for place in range(len(data)):
        other.sendall(data[place : place + 1])
        got += channel.arrived()
    assert got == wanted


def test_several_messages_in_one_read(
    pair: tuple[Channel, socket.socket], channels: tuple[Channel, Channel]
) -> None:
    channel, other = pair
    wanted = [Message("one", {"a": 1}), Message("two", {}, b"b" * 100)]
    data = raw(channels, *wanted, Message("three", {}))
    other.sendall(data[:-1])
    assert channel.arrived() == wanted
    other.sendall(data[-1:])
    assert channel.receive() == Message("three", {})


def test_what_came_before_the_end_is_read_first(
    pair: tuple[Channel, socket.socket], channels: tuple[Channel, Channel]
) -> None:
    channel, other = pair
    other.sendall(raw(channels, Message("last", {})))
    other.close()
    assert channel.receive().kind == "last"
    with pytest.raises(EOFError):
        channel.receive()
    with pytest.raises(EOFError):
        channel.arrived()


def test_half_a_message_is_an_end(
    pair: tuple[Channel, socket.socket], channels: tuple[Channel, Channel]
) -> None:
    channel, other = pair
    other.sendall(raw(channels, Message("last", {}))[:-1])
    other.close()
    with pytest.raises(EOFError):
        channel.receive()


def test_receive_has_a_deadline(channels: tuple[Channel, Channel]) -> None:
    channel = Channel(channels[0]._socket, timeout=0.1)
    began = time.monotonic()
    with pytest.raises(ChannelError, match="no message came in time"):
        channel.receive()
    assert 0.09 < time.monotonic() - began < 3


def test_send_to_one_that_does_not_read_has_a_deadline(channels: tuple[Channel, Channel]) -> None:
    channel = Channel(channels[0]._socket, timeout=0.1)
    with pytest.raises(ChannelError, match="'work' could not be sent"):
        channel.send("work", b"x" * 10_000_000)


def test_send_to_one_that_is_gone(channels: tuple[Channel, Channel]) -> None:
    channels[1].close()
    with pytest.raises(ChannelError, match=r"'work' could not be sent: .*Broken pipe"):
        channels[0].send("work")


def test_big_payload(channels: tuple[Channel, Channel]) -> None:
    payload = bytes(range(256)) * 400_000  # 100 MB
    thread = threading.Thread(target=channels[0].send, args=("big", payload), kwargs={"n": 1})
    began = time.monotonic()
    thread.start()
    message = channels[1].receive()
    thread.join()
    assert message.payload == payload
    assert message.fields == {"n": 1}
    assert time.monotonic() - began < 5


def test_select_works_on_it(channels: tuple[Channel, Channel]) -> None:
    assert channels[0].fileno() == channels[0]._socket.fileno() >= 0
