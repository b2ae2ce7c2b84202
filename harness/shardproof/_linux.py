"""The few process facts that Python's standard library has no name for.

Each function does what it can where the system is not Linux: there a rank's descendants are
found by process group only.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import warnings
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes  # not needed by a session without ranks

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def fork() -> int:
    """Fork; without Python's warning (3.12) about a process that has threads.

    Whoever forks here knows of them: the zygote has none, and those of the pytest process that
    matter have been looked for.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def native_threads() -> set[int]:
    """Return the kernel's numbers of this process's threads; none where they can't be known."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}  # noqa: PTH208
    except OSError:
        return set()


def end_with_parent(signum: int) -> None:
    """Have the kernel send `signum` to this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends (a subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Return the process ids of this process's children, zombies included."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The command name may hold spaces and brackets; the fields after it don't.
            parent = file.read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(file.parent.name))
    return found


def has_children() -> bool:
    """Say whether this process has children, zombies included; costs a microsecond."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def state(pid: int) -> str:
    """Return the kernel's word for what a process is doing, such as `T (stopped)`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "gone"
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return fields.get("State", "unknown").strip()


def describe_exit(status: int) -> str:
    """Say how a process ended, from the status that waitpid gave."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"was killed by {signal.Signals(number).name} (signal {number})"
        except ValueError:
            return f"was killed by signal {number}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"


def open_descriptors() -> list[int]:
    """Return the numbers of this process's open file descriptors."""
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    return [int(name) for name in os.listdir(folder)]  # noqa: PTH208


def let_go_of_all_but(keep: set[int]) -> None:
    """Give up inherited pipes, sockets and the like, whose other ends wait for their closing.

    Their numbers stay taken, by the null device: whoever still uses one must not write into a
    descriptor that was opened later. Files and devices are left alone.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in open_descriptors():
        if descriptor > 2 and descriptor not in keep:
            with suppress(OSError):
                mode = os.fstat(descriptor).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode)):
                    os.dup2(null, descriptor)
    os.close(null)
