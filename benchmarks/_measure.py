"""Runs commands with a clock, and reads from them what makes a measure valid."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# A hung peer must not hold a benchmark for ever.
TIMEOUT = 600
# A conftest that reads the clock where pytest begins and ends a test.
CLOCK = """\
import time

started = []
finished = []


def pytest_runtest_logstart():
    started.append(time.perf_counter())


def pytest_runtest_logfinish():
    finished.append(time.perf_counter())


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"between first and last: {started[-1] - finished[0]} s")
"""
WITHOUT_PLUGIN = ("-p", "no:shardproof", "-p", "no:shardproof_suites")


def seconds(command: Sequence[str | Path], cwd: Path, *, status: int = 0) -> tuple[float, str]:
    """Run a command and return its wall time in seconds and what it printed.

    Raises:
        RuntimeError: It did not end with `status`, so its time says nothing.
    """
    start = time.perf_counter()
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    spent = time.perf_counter() - start
    if done.returncode != status:
        line = " ".join(map(str, command))
        raise RuntimeError(f"{line}\n{done.stdout}\nexit status {done.returncode}, not {status}")
    return spent, done.stdout


def environment() -> dict[str, str]:
    """Return this environment without what an outer pytest or torchrun would tell a run."""
    ours = ("PYTEST_", "TORCHELASTIC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def pytest_seconds(file: Path, *options: str) -> float:
    """Run a file with one test that passes, and return the wall time in seconds."""
    return pytest_run(file, *options, passed=1)[0]


def pytest_run(file: Path, *options: str, passed: int, failed: int = 0) -> tuple[float, str]:
    """Run one test file in a pytest of its own, and return its seconds and what it printed.

    Raises:
        RuntimeError: Other counts were reported than `passed` and `failed`.
    """
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, file.name)
    spent, printed = seconds(command, file.parent, status=int(failed > 0))
    found = {
        word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", printed)
    }
    if found != {word: count for word, count in (("passed", passed), ("failed", failed)) if count}:
        raise RuntimeError(f"{printed}\nwanted {passed} passed and {failed} failed")
    return spent, printed


def seconds_between(file: Path, *options: str, passed: int, failed: int = 0) -> float:
    """Run one test file and return the seconds from the end of its first test to its last's begin.

    The first test pays for starting the ranks and the last for ending them; neither is counted.
    """
    (file.parent / "conftest.py").write_text(CLOCK, encoding="utf-8")
    _, printed = pytest_run(file, *options, passed=passed, failed=failed)
    found = re.search(r"^between first and last: (\S+) s$", printed, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{printed}\nthe clock did not report")
    return float(found[1])


def in_turn(rounds: int, **runs: Callable[[], float]) -> dict[str, float]:
    """Return the median seconds of each run by name.

    They are run in turn, so that a slow moment of the machine strikes all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(run())
    return {name: statistics.median(values) for name, values in times.items()}


def write(folder: Path, name: str, text: str) -> Path:
    """Write a file into a folder of its own, so that no run collects another's tests."""
    path = folder / Path(name).stem / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
