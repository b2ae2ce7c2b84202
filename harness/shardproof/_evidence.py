"""What a rank was doing: its collectives from the flight recorder, its stack, its kernel state.

A rank answers from a thread of its own, which works while the main thread waits inside a
collective, and dumps its stack from a signal handler, which works even while the interpreter's
lock is held.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardproof import _linux
from shardproof._channel import Channel
from shardproof.errors import ChannelError

STACK_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 7 * hasattr(signal, "SIGRTMIN")
# Gloo has its recorder since torch 2.13. A build without CUDA lacks NCCL's.
_GLOO_RECORDER, _NCCL_RECORDER = "_dump_fr_trace_json", "_dump_nccl_trace_json"
_NO_ANSWER = "its flight recorder did not answer"
_THREAD_NAME = "shardproof-evidence"
_RANK_LOOP = re.compile(re.escape(str(Path(__file__).with_name("_rank.py"))) + r".* in serve$")
_LAYERS = (str(Path(__file__).parent), "/_pytest/", "/pluggy/", "/torch/distributed/c10d_logger.py")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was learnt of one rank that had not ended.

    Attributes:
        waiting: The collectives that it had begun and not finished, oldest first.
        numbers: Their sequence numbers, in the same order.
        stack: Its main thread's stack, the innermost frame first.
        kernel: The kernel's word for its state.
        note: Why there is no flight record, or an empty string.
    """

    waiting: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    stack: str = ""
    kernel: str = ""
    note: str = ""

    @property
    def answered(self) -> bool:
        """Whether the rank's evidence thread could answer."""
        return self.note != _NO_ANSWER

    @property
    def stuck_in(self) -> str:
        """What of torch.distributed the rank is inside of, or an empty string."""
        if self.waiting:
            return self.waiting[-1]
        found = _IN_TORCH_DISTRIBUTED.search(self.stack.partition("\n")[0])
        return found.group(1) if found else ""


_IN_TORCH_DISTRIBUTED = re.compile(r"/torch/distributed/.* in (\w+)$")


def answer_in_background(channel: Channel, stack_file: int, wake: Callable[[int], None]) -> None:
    """In a rank: answer requests for evidence for as long as the process lives.

    Args:
        channel: Where requests come from and answers go.
        stack_file: Descriptor of the file that stacks are written to.
        wake: Called with the number of a piece of work; ends whatever the main thread waits for
            from other ranks, if it still does that work.
    """
    faulthandler.enable(file=stack_file, all_threads=True)
    faulthandler.register(STACK_SIGNAL, file=stack_file, all_threads=True)
    threading.Thread(target=_answer, args=(channel, wake), name=_THREAD_NAME, daemon=True).start()


def _answer(channel: Channel, wake: Callable[[int], None]) -> None:
    try:
        while True:
            request = channel.receive()
            if request.kind == "wake":
                wake(request.fields["work"])
            elif request.kind == "begun":
                channel.send("begun", **_begun(request.fields["since_ns"]))
            else:
                channel.send("record", **_flight_record(request.fields["since_ns"]))
    except (EOFError, ChannelError, OSError):
        return


def _entries(since_ns: int) -> list[dict[str, Any]]:
    """Return the flight recorders' entries since a time, of CPUs and of GPUs, oldest first."""
    from torch._C import _distributed_c10d

    dumps = [getattr(_distributed_c10d, name, None) for name in (_GLOO_RECORDER, _NCCL_RECORDER)]
    # A process that has begun no collective has a record without entries.
    recorded = [
        e for dump in dumps if dump for e in json.loads(dump(True, False)).get("entries", ())
    ]
    entries = [e for e in recorded if e["time_created_ns"] >= since_ns]
    return sorted(entries, key=lambda e: e["time_created_ns"])


def _begun(since_ns: int) -> dict[str, Any]:
    """Return the collectives begun since a time, by their group's name."""
    groups: dict[str, list[str]] = {}
    for entry in _entries(since_ns):
        if not entry["is_p2p"]:
            groups.setdefault(entry["process_group"][0], []).append(_describe(entry))
    return {"groups": groups}


def _flight_record(since_ns: int) -> dict[str, Any]:
    """Return the unfinished collectives begun since a time."""
    from torch._C import _distributed_c10d

    entries = _entries(since_ns)
    waiting = [e for e in entries if not e["retired"] and e["state"] != "completed"]
    if not waiting and not hasattr(_distributed_c10d, _GLOO_RECORDER):
        return {"note": "this torch has no flight recorder for gloo (2.13 has)"}
    return {
        "waiting": [_describe(entry) for entry in waiting],
        "numbers": [e["collective_seq_id"] for e in waiting],
    }


def _describe(entry: dict[str, Any]) -> str:
    """Say `all_reduce #7 of float32[4]`, with the group's name unless it is the default."""
    name = entry["profiling_name"].rpartition(":")[2]
    sent = ", ".join(
        f"{_dtype(dtype)}{size}"
        for dtype, size in zip(entry["input_dtypes"], entry["input_sizes"], strict=False)
    )
    number = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    group, description = entry["process_group"]
    where = "" if description == "default_pg" else f" in group {group} ({description})"
    return f"{name} #{number}" + (f" of {sent}" if sent else "") + where


def _dtype(name: str) -> str:
    """Turn the recorder's scalar type, such as `Float`, into torch's word for it."""
    import torch

    aliases = {"Float": "float32", "Double": "float64", "Half": "float16", "Byte": "uint8"}
    aliases |= {"Int": "int32", "Long": "int64", "Short": "int16", "Char": "int8"}
    word = aliases.get(name, name.lower())
    return word if hasattr(torch, word) else name


def collect(pid: int, channel: Channel, stack_file: int, since_ns: int, timeout: float) -> Evidence:
    """In the controller: ask one rank for its evidence.

    Args:
        pid: The rank's process.
        channel: The evidence channel; its own timeout bounds the wait for the flight record.
        stack_file: Descriptor of the rank's stack file.
        since_ns: Collectives begun before this time (Unix, ns) don't matter.
        timeout: Seconds to wait for the stack.
    """
    kernel = _linux.state(pid)
    before = os.fstat(stack_file).st_size
    record: dict[str, Any] = {"note": _NO_ANSWER}
    try:
        os.kill(pid, STACK_SIGNAL)
        channel.send("evidence", since_ns=since_ns)
        record = channel.receive().fields
    except (ProcessLookupError, ChannelError, EOFError):
        pass
    stack = _new_stack(stack_file, before, timeout)
    return Evidence(
        waiting=tuple(record.get("waiting", ())),
        numbers=tuple(record.get("numbers", ())),
        stack=stack,
        kernel=kernel,
        note=record.get("note", ""),
    )


def _new_stack(stack_file: int, before: int, timeout: float) -> str:
    """Return what was written to the stack file since it had `before` bytes."""
    deadline = time.monotonic() + timeout
    size = -1
    while time.monotonic() < deadline and (now := os.fstat(stack_file).st_size) != size:
        size = now if now > before else -1
        time.sleep(0.01)
    text = os.pread(stack_file, max(0, os.fstat(stack_file).st_size - before), before)
    return main_stack(text.decode(errors="replace"))


def main_stack(dump: str) -> str:
    """Return the part of a faulthandler dump that matters, without pytest's and our layers.

    That is the thread which took a fatal signal, else the main thread, which comes last.
    """
    blocks = [block.strip() for block in dump.split("\n\n")]
    threads = [block for block in blocks if block.startswith(("Thread 0x", "Current thread 0x"))]
    if not threads:
        return ""
    current = [block for block in threads if block.startswith("Current")]
    chosen = current[-1] if current and "Fatal Python error" in dump else threads[-1]
    lines = chosen.splitlines()[1:]
    # What is outside of the rank's main loop is the pytest process's, from before the fork.
    inside = itertools.takewhile(lambda line: not _RANK_LOOP.search(line), lines)
    return "\n".join(line for line in inside if not any(layer in line for layer in _LAYERS))
