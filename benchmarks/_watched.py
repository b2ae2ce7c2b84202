"""Runs a command that may hang: under a limit, and with all that it started known by a variable."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks._measure import environment
from harness.tests._inner import TOKEN, processes


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Attributes:
        seconds: Its wall time.
        status: Its exit status, or None if it had to be killed at the limit.
        printed: What it printed, standard error included.
        left: Processes that it had left running; they have been killed.
    """

    seconds: float
    status: int | None
    printed: str
    left: list[int]


def watched(
    command: Sequence[str | Path],
    cwd: Path,
    limit: float,
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command, kill it at the limit, and end everything that it has left.

    Args:
        command: The command and its arguments.
        cwd: Its working directory; `printed.txt` there holds what it prints.
        limit: Seconds that it may take.
        variables: Environment variables to add.
    """
    token = uuid.uuid4().hex
    output = cwd / "printed.txt"
    start = time.perf_counter()
    # A file, not a pipe: what it leaves running could hold a pipe open for ever.
    with output.open("wb") as file:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env={**environment(), **(variables or {}), TOKEN: token},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            status = _wait(process, limit)
            spent = time.perf_counter() - start
            left = processes(token)
        finally:
            _kill(token)
    return Ended(spent, status, output.read_text(errors="replace"), left)


def _wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _kill(token: str) -> None:
    """Kill a command's processes until there are none; a launcher's are in groups of their own."""
    while left := processes(token):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
