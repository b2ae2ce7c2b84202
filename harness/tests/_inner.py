"""Sessions of pytest inside of a test, and the check that they have left nothing behind."""

from __future__ import annotations

import os
import re
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

TOKEN = "SHARDPROOF_INNER_SESSION"

# What every inner test file begins with.
PRELUDE = """\
import ctypes, os, random, re, signal, subprocess, sys, threading, time, warnings
from pathlib import Path
import pytest
import torch
import torch.distributed as dist

ranks = pytest.mark.ranks

def reduce(size=4):
    value = torch.ones(size)
    dist.all_reduce(value)
    return value.tolist()
"""

_HEAD = re.compile(r"_+ (?P<title>\S.*) _+")
_RULE = re.compile(r"=+ .* =+")
_STATUS = re.compile(
    r"(?P<status>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?P<nodeid>\S+\.py::.*?)(?: - .*)?"
)


class Session:
    """What a session has printed, and how it has ended.

    Attributes:
        result: pytester's result.
        text: Its standard output.
        stdout: The same, to match lines.
        ret: Its exit code.
    """

    def __init__(self, result: pytest.RunResult) -> None:
        self.result = result
        self.text = result.stdout.str()
        self.stdout = result.stdout
        self.ret = result.ret

    def failure(self, name: str) -> str:
        """Return what is printed of a test's failure, its head line included."""
        return "\n".join(self._failure_lines(name))

    def match_failure(self, name: str, *patterns: str) -> None:
        """Match lines, in order, of what is printed of a test's failure."""
        pytest.LineMatcher(self._failure_lines(name)).fnmatch_lines(list(patterns))

    def status(self, name: str) -> str:
        """Return the word that the summary has for a test; for several, joined by commas."""
        found = []
        for line in self.text.splitlines():
            match = _STATUS.fullmatch(line)
            if match and match["nodeid"].rpartition("::")[2] == name:
                found.append(match["status"].lower())
        return ", ".join(found)

    def _failure_lines(self, name: str) -> list[str]:
        lines = self.text.splitlines()
        wanted = re.compile(rf"\b{re.escape(name)}(?![\w\[])")
        found: list[str] = []
        inside = False
        for line in lines:
            head = _HEAD.fullmatch(line)
            if head or _RULE.fullmatch(line):
                inside = bool(head and wanted.search(head["title"]))
            if inside:
                found.append(line)
        assert found, f"the session tells of no failure of {name}:\n{self.text}"
        return found


class Inner:
    """Runs sessions of pytest, each in a process of its own.

    Args:
        pytester: pytest's own fixture.
        monkeypatch: Sets the variables of the sessions.
        start_method: How the sessions start ranks, unless they say so themselves.
    """

    def __init__(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, start_method: str
    ) -> None:
        self.pytester = pytester
        self.start_method = start_method
        self.path = pytester.path
        self.token = uuid.uuid4().hex
        self.temporary = pytester.path / "temporary"
        self._of_others = _folders_in_memory()
        self.temporary.mkdir()
        monkeypatch.setenv(TOKEN, self.token)
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        # torch's own, which importing FSDP makes in TMPDIR
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(pytester.path / "inductor"))
        monkeypatch.setenv("COLUMNS", "120")
        if start_method != "fork":
            monkeypatch.setenv("PYTEST_ADDOPTS", f"--ranks-start-method={start_method}")
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def write(self, **files: str) -> None:
        """Write Python files, named without their suffix, with the prelude before the tests."""
        for name, source in files.items():
            text = source if name == "conftest" else PRELUDE + source
            (self.path / f"{name}.py").write_text(text)

    def run(self, source: str | None, *args: str, timeout: float = 90) -> Session:
        """Run a session on a file of tests, or on the files that were written.

        Every session lists each test's outcome at its end, and has to leave no process and no
        file behind.
        """
        __tracebackhide__ = True
        if source is not None:
            self.write(test_inner=source)
        timeout *= 1 if self.start_method == "fork" else 4  # each rank imports torch
        listed = ("-rA", "--no-fold-skipped", "-p", "no:cacheprovider")
        try:
            result = self.pytester.runpytest_subprocess(*listed, *args, timeout=timeout)
        except pytest.Pytester.TimeoutExpired:
            # It was killed, and its ranks have to end with it.
            self.nothing_left(within=5)
            raise
        self.nothing_left()
        return Session(result)

    def nothing_left(self, within: float = 0) -> None:
        """Fail if a session has left a process, a temporary file or a folder in memory.

        Nor has it left a socket then: those in use belong to processes, and the names of the others
        would be among the files.

        Args:
            within: Seconds that its processes may take to end.
        """
        __tracebackhide__ = True
        nothing_left(self.token, self.temporary, within)
        left = _folders_in_memory() - self._of_others
        deadline = time.monotonic() + 1  # those of another session that ends right now
        while (lost := [path for path in left if path.exists() and not _owner_lives(path)]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.02)
        if lost:
            pytest.fail(f"folders in memory are left: {lost}")


def processes(token: str) -> list[int]:
    """Return the processes of a session, by the variable that they all have."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{TOKEN}={token}".encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def nothing_left(token: str, temporary: Path, within: float = 0) -> None:
    """Fail if a session has left a process or a temporary file.

    Args:
        token: The session's own value of the variable.
        temporary: Its TMPDIR.
        within: Seconds that its processes may take to end.
    """
    __tracebackhide__ = True
    deadline = time.monotonic() + within
    while (left := processes(token)) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        pytest.fail(f"processes are left: {[_command(pid) for pid in left]}")
    files = sorted(str(path) for path in temporary.rglob("*"))
    if files:
        pytest.fail(f"temporary files are left: {files}")


def _folders_in_memory() -> set[Path]:
    """Return the engine's folders of all sessions on this machine."""
    return set(Path("/dev/shm").glob("shardproof-*-*"))


def _owner_lives(folder: Path) -> bool:
    """Say whether the pytest process that a folder is named after still runs."""
    return Path("/proc", folder.name.split("-")[1]).exists()


def _command(pid: int) -> str:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return f"{pid}: {command}"
    return str(pid)
