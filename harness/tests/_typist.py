"""Sessions of pytest on a terminal, and somebody who types."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from types import TracebackType

import pytest

from ._inner import Inner, processes

_WITHIN = 60  # seconds that anything may take to appear
_ESCAPES = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|\r")

# The shell leads the session of processes that has the terminal, and outlives pytest. It catches
# a Ctrl-C, as an interactive one would.
_SHELL = """
trap : INT
exec <"$0" >"$0" 2>&1
{command}
echo "exit code <$?>"
read line
echo "the shell has read $line"
"""
FOREGROUND = '"$@"'
WITHOUT_INPUT = '"$@" </dev/null'
INTO_A_PIPE = '"$@" | cat'
BACKGROUND = 'set -m; "$@" & wait $!'


class Typist:
    """A pytest session on a pseudo-terminal; use it as a context manager, then look at it.

    Args:
        inner: The fixture; its file `test_inner.py` is run.
        args: pytest's arguments.
        command: How the shell runs pytest.

    Attributes:
        text: What the terminal has shown.
        leader: The process, and its group, that the terminal has to belong to in the end.
        ret: pytest's exit code.
    """

    def __init__(self, inner: Inner, *args: str, command: str = FOREGROUND) -> None:
        self._inner = inner
        self._screen, self._terminal = os.openpty()
        self._attributes = termios.tcgetattr(self._terminal)
        self.text = ""
        self._seen = 0
        self.ret = -1
        pytest_command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *args]
        pytest_command.append(f"--basetemp={inner.path / 'base'}")
        script = _SHELL.format(command=command)
        self._shell = subprocess.Popen(
            ["sh", "-c", script, os.ttyname(self._terminal), *pytest_command],
            cwd=inner.path,
            env=os.environ | {"TERM": "dumb", "PYTHONUNBUFFERED": ""},
            start_new_session=True,  # so that the first terminal it opens is its controlling one
        )
        self.leader = self._shell.pid

    def __enter__(self) -> Typist:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | object) -> None:
        """See the session end; the terminal has to be the shell's then, and as it was."""
        try:
            if kind is None:
                self._see_the_end()
        finally:
            for pid in processes(self._inner.token):  # none, unless the test has failed
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._shell.wait()
            os.close(self._screen)
            os.close(self._terminal)
        self._inner.nothing_left(within=5)

    def _see_the_end(self) -> None:
        self.see("exit code <")
        self.ret = int(self.see(">")[:-1])
        assert processes(self._inner.token) == [self.leader]
        assert self.foreground == self.leader
        assert termios.tcgetattr(self._terminal) == self._attributes
        self.type("this")
        self.see("the shell has read this")

    @property
    def foreground(self) -> int:
        """The process group that the terminal belongs to."""
        return os.tcgetpgrp(self._screen)

    def see(self, words: str) -> str:
        """Wait until the terminal shows some words; return what it shows from the last ones on."""
        deadline = time.monotonic() + _WITHIN
        while (at := self.text.find(words, self._seen)) < 0:
            ready, _, _ = select.select([self._screen], [], [], deadline - time.monotonic())
            if not ready:
                pytest.fail(f"the terminal does not show {words!r}, but:\n{self.text}")
            self.text += _ESCAPES.sub("", os.read(self._screen, 1 << 16).decode())
        start, self._seen = self._seen, at + len(words)
        return self.text[start : self._seen]

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._screen, f"{line}\n".encode())

    def press(self, control: str) -> None:
        """Press a key together with Ctrl."""
        os.write(self._screen, bytes([ord(control) - ord("@")]))

    def answer(self, line: str, prompt: str = "(Pdb) ") -> str:
        """Type a line at a debugger's prompt; return all until its next one."""
        self.type(line)
        return self.see(prompt)

    def outcomes(self) -> dict[str, int]:
        """Return pytest's counts."""
        return pytest.RunResult.parse_summary_nouns(self.text.splitlines())
