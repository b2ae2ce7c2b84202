"""What a test leaves behind on a rank: threads, children and global state."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from shardproof import _linux
from shardproof._state import GlobalState

# Seconds in which what was told to end may do so.
_GRACE = 0.2
# Threads that are started once and kept: by tqdm, debuggers, pytest-timeout and by us.
_KEPT = ("TMonitor", "pydevd.", "pytest_timeout ", "shardproof-")


class Watch:
    """Knows a rank as it is now, and says later what a test has left.

    Threads that pytest or a library is known to keep, children that have ended or that
    multiprocessing keeps, environment variables and random number generators don't count.
    """

    def __init__(self) -> None:
        self._state = GlobalState()
        self._threads = set(threading.enumerate())
        self._children = _living_children()

    def put_back(self) -> list[str]:
        """Put global state back; return what was left, one phrase each."""
        found = self._state.put_back()
        deadline = time.monotonic() + _GRACE
        while (left := self._threads_and_children()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return found + left

    def _threads_and_children(self) -> list[str]:
        threads = [thread for thread in threading.enumerate() if thread not in self._threads]
        children = _living_children() - self._children
        return [
            *(_say_thread(thread) for thread in threads if not _is_kept(thread)),
            *(f"the child process {_command(pid)}" for pid in sorted(children)),
        ]


def _is_kept(thread: threading.Thread) -> bool:
    return type(thread).__name__ in _KEPT or thread.name.startswith(_KEPT)


def _say_thread(thread: threading.Thread) -> str:
    target = getattr(thread, "_target", None)
    name = getattr(target, "__qualname__", type(thread).__qualname__)
    return f"the thread {thread.name!r}" + ("" if name in thread.name else f" ({name})")


def _living_children() -> set[int]:
    if not _linux.has_children():
        return set()
    kept = _of_multiprocessing()
    return {
        pid for pid in _linux.children() if pid not in kept and _linux.state(pid)[:1] not in "ZXg"
    }


def _of_multiprocessing() -> set[int]:
    """Return the helper processes that multiprocessing starts once and keeps."""
    found = set()
    for module, name, pid in (
        ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
        ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
    ):
        helper = getattr(sys.modules.get(module), name, None)
        found.add(getattr(helper, pid, None))
    return {pid for pid in found if pid is not None}


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
        return f"{pid} ({os.fsdecode(words)[:100]})"
    return str(pid)
