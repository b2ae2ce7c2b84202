"""The floor: what a message to four warm processes and one gloo barrier cost, and no more.

Run as `python -m benchmarks._floor ROUNDS`; prints the median in seconds.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch.distributed as dist

WORLD_SIZE = 4
MESSAGE = b"."


def serve(rank: int, rendezvous: Path, channel: socket.socket) -> None:
    """Be a rank: after each message enter a barrier and answer, until the other side closes."""
    address = f"file://{rendezvous}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=WORLD_SIZE)
    channel.sendall(MESSAGE)
    while channel.recv(1):
        dist.barrier()
        channel.sendall(MESSAGE)
    dist.destroy_process_group()


def fork(rank: int, rendezvous: Path, inherited: list[socket.socket]) -> socket.socket:
    """Fork one rank and return this side's end of its channel."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        # A rank that kept another's channel would hold it open when this process closes it.
        for channel in (ours, *inherited):
            channel.close()
        serve(rank, rendezvous, theirs)
        os._exit(0)
    theirs.close()
    return ours


def measure(rounds: int) -> float:
    """Return the median seconds of a message to all ranks, a barrier and their answers."""
    with tempfile.TemporaryDirectory() as folder:
        channels: list[socket.socket] = []
        for rank in range(WORLD_SIZE):
            channels.append(fork(rank, Path(folder) / "rendezvous", channels))
        wait_for(channels)
        times = [once(channels) for _ in range(rounds)]
        for channel in channels:
            channel.close()
        for _ in channels:
            os.wait()
    return statistics.median(times)


def once(channels: list[socket.socket]) -> float:
    """Return the seconds of one round."""
    start = time.perf_counter()
    for channel in channels:
        channel.sendall(MESSAGE)
    wait_for(channels)
    return time.perf_counter() - start


def wait_for(channels: list[socket.socket]) -> None:
    """Take one answer from every rank."""
    for channel in channels:
        if channel.recv(1) != MESSAGE:
            raise RuntimeError("a rank of the floor ended early")


if __name__ == "__main__":
    print(measure(int(sys.argv[1])))
