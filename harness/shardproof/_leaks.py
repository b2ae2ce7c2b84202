"""What a test leaves behind on a rank: threads, children and global state."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep  # a fixture may patch the module's own
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import pytest

from shardproof import _linux
from shardproof._state import GlobalState
from shardproof._world import World

# Seconds in which what was told to end may do so.
_GRACE = 0.2
# Not looked into: they lead everywhere.
_ASIDE = (
    type,
    ModuleType,
    pytest.Config,
    pytest.Item,
    pytest.Collector,
    pytest.FixtureRequest,
    World,
)
# How many objects of wider fixtures are looked through for what they hold.
_MOST_HELD = 50_000
# Threads that are started once and kept: by tqdm, debuggers, pytest-timeout and by us.
_KEPT = ("TMonitor", "pydevd.", "pytest_timeout ", "shardproof-")


class Watch:
    """Knows a rank as it is now, and says later what a test has left.

    Threads that pytest or a library is known to keep, children that have ended or that
    multiprocessing keeps, environment variables and random number generators don't count. Nor
    does what a fixture wider than a test holds, which may start it only when a test uses it.

    Args:
        wider: The definitions of such fixtures, of those too that are no longer up.
        homes: The test's module and classes: what they hold by now counts as such fixtures do.
    """

    def __init__(
        self, wider: Iterable[pytest.FixtureDef[Any]], homes: Iterable[object] = ()
    ) -> None:
        self._wider = wider
        self._kept = [value for home in homes for value in vars(home).values()]
        self._state = GlobalState()
        self._threads = set(threading.enumerate())
        self._children = _living_children()

    def allow(self, before: Watch) -> None:
        """Let stay what has changed since an earlier look: it belongs to a wider fixture."""
        now = Watch(self._wider)
        self._state.allow(before._state)
        self._threads |= now._threads - before._threads
        self._children |= now._children - before._children

    def put_back(self) -> list[str]:
        """Put global state back; return what was left, one phrase each."""
        found = self._state.put_back()
        deadline = monotonic() + _GRACE
        while (left := self._threads_and_children()) and monotonic() < deadline:
            sleep(0.01)
        return found + left

    def _threads_and_children(self) -> list[str]:
        threads = [
            thread
            for thread in threading.enumerate()
            if thread not in self._threads and not _is_kept(thread)
        ]
        children = _living_children() - self._children
        if threads or children:
            held_threads, held_children = _held([*_values(self._wider), *self._kept])
            threads = [thread for thread in threads if thread not in held_threads]
            children -= held_children
        return [
            *(_say_thread(thread) for thread in threads),
            *(f"the child process {_command(pid)}" for pid in sorted(children)),
        ]


def _values(fixtures: Iterable[pytest.FixtureDef[Any]]) -> list[object]:
    """Return the values of those fixtures that are up, and the variables of their functions."""
    found: list[object] = []
    for fixture in fixtures:
        if fixture.cached_result is None:
            continue
        found.append(fixture.cached_result[0])
        for finalizer in fixture._finalizers:
            for argument in getattr(finalizer, "args", ()):
                if isinstance(argument, GeneratorType) and argument.gi_frame is not None:
                    found += argument.gi_frame.f_locals.values()
    return found


def _held(roots: Iterable[object]) -> tuple[set[object], set[int]]:
    """Return the threads, and the processes by their ids, to which some objects lead."""
    threads: set[object] = set()
    children: set[int] = set()
    seen: set[int] = set()
    queue: list[Any] = list(roots)
    while queue and len(seen) < _MOST_HELD:
        one = queue.pop()
        if id(one) in seen or not gc.is_tracked(one) or isinstance(one, _ASIDE):
            continue
        seen.add(id(one))
        if isinstance(one, threading.Thread):
            threads.add(one)
        elif type(one).__name__ == "Popen":  # subprocess's, and each kind of multiprocessing's
            children.add(one.pid)
        queue += one.__closure__ or () if isinstance(one, FunctionType) else gc.get_referents(one)
    return threads, children


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
