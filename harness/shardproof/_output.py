"""What ranks print: lines on the terminal under `-s`, and the files of `--ranks-log`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_READ = 1 << 16
_LONGEST = 1 << 20  # bytes without a line's end that are shown as a line

# Characters of one captured text that a report holds, from its begin and from its end.
_HEAD, _TAIL = 1 << 16, 1 << 20


class Output:
    """Where the output of a session's ranks goes.

    Args:
        config: pytest's configuration.
        folder: Folder of `--ranks-log`, or None.

    Attributes:
        failure: Why nothing more is kept, or an empty string.

    Raises:
        pytest.UsageError: The folder can't be made or cleared.
    """

    def __init__(self, config: pytest.Config, folder: Path | None) -> None:
        self.failure = ""
        self._config = config
        self._folder = folder
        self._worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        self.captured = config.getoption("capture", "no") != "no"
        if folder is not None:
            try:
                self._clear(folder)
            except OSError as error:
                raise pytest.UsageError(
                    f"--ranks-log can't keep anything there: {error}"
                ) from error

    def _clear(self, folder: Path) -> None:
        """Make the folder, and remove what an earlier session has left in it."""
        folder.mkdir(parents=True, exist_ok=True)
        mine = re.compile(re.escape(self._name("")).replace(r"\.log", r"\d+\.log"))
        for old in folder.iterdir():
            if mine.fullmatch(old.name):
                old.unlink()

    def _name(self, rank: object) -> str:
        return f"{self._worker}-rank{rank}.log" if self._worker else f"rank{rank}.log"

    def log_of(self, rank: int) -> str:
        """Return the path of the file that keeps a rank's output, or an empty string."""
        return "" if self._folder is None else str(self._folder / self._name(rank))

    def keep(self, rank: int, text: str) -> None:
        """Add to a rank's log, if there is one."""
        with self._giving_up():
            append(self.log_of(rank), text)

    def keep_file(self, rank: int, descriptor: int) -> None:
        """Add what a file holds to a rank's log, if there is one."""
        path = self.log_of(rank)
        if not path:
            return
        with (
            self._giving_up(),
            Path(path).open("ab") as log,
            os.fdopen(os.dup(descriptor), "rb") as file,
        ):
            file.seek(0)
            shutil.copyfileobj(file, log)

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Keep nothing more once that fails: the disk is full, say."""
        try:
            yield
        except OSError as error:
            self._folder = None
            self.failure = f"--ranks-log keeps nothing more: {error}"

    def show(self, rank: int, line: str) -> None:
        """Print a line of a rank, marked with it."""
        self.keep(rank, line)
        self.tell(f"[rank {rank}] {line}")

    def tell(self, text: str) -> None:
        """Print a text on lines of its own."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is None:  # a worker of xdist has none
            print(text, flush=True)
        else:
            reporter.write_line(text)
            reporter.flush()


def append(path: str, text: str) -> None:
    """Add a text, as a line or several, to a log; does nothing for an empty path or text."""
    if path and text:
        with Path(path).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text if text.endswith("\n") else text + "\n")


class Lines:
    """The reading end of a pipe, whose lines are shown as they come.

    Args:
        show: Called with each line.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._rest = b""
        self._end, self.writer = os.pipe()
        os.set_blocking(self._end, False)

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._end

    def pump(self) -> bool:
        """Show the lines that one read completes; return whether more can come."""
        try:
            data = os.read(self._end, _READ)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._show(line.decode(errors="replace"))
        if len(self._rest) > _LONGEST:
            self._end_line()
        return bool(data)

    def drain(self) -> None:
        """Show all that is there, an unfinished line as a line."""
        while True:
            before = self._rest
            if not self.pump() or self._rest is before:
                break
        self._end_line()

    def _end_line(self) -> None:
        if self._rest:
            self._show(self._rest.decode(errors="replace"))
        self._rest = b""

    def close(self) -> None:
        """Show what is left, and release the pipe."""
        self.drain()
        os.close(self._end)


def shortened(text: str) -> str:
    """Return a text without its middle, if it is too long for a report."""
    left_out = len(text) - _HEAD - _TAIL
    if left_out <= 0:
        return text
    return f"{text[:_HEAD]}\n{_left_out(left_out, 'characters')}\n{text[-_TAIL:]}"


def read_shortened(descriptor: int) -> str:
    """Return what a file holds, without its middle if it is too long for a report."""
    size = os.fstat(descriptor).st_size
    if size <= _HEAD + _TAIL:
        return os.pread(descriptor, size, 0).decode(errors="replace")
    head = os.pread(descriptor, _HEAD, 0).decode(errors="replace")
    tail = os.pread(descriptor, _TAIL, size - _TAIL).decode(errors="replace")
    return f"{head}\n{_left_out(size - _HEAD - _TAIL, 'bytes')}\n{tail}"


def _left_out(count: int, unit: str) -> str:
    return f"[{count} {unit} left out; --ranks-log DIR keeps everything]"
