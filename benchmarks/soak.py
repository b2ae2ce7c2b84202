"""Thousands of rank tests with a random fault in every tenth: every outcome must be right.

Run as `python -m benchmarks.soak [--tests 2000] [--seed N] [--workers 2 ...]`. The tests are drawn
from the seed: warm, isolated and launched, on 2 to 4 ranks. They are run in one pytest session
without pytest-xdist and in one with it. Then JUnit's XML must have the planned outcome for each
test, with the ranks that the plan chose and what they did, and the printed head line must name them
too. The time must be within the sum of the deadlines, and within a second a test; no process, file
or descriptor may be left. Exits with 1 otherwise, and keeps the folder of what went wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import _soak_check, _soak_conftest, _soak_tests
from benchmarks._soak_tests import Planned
from benchmarks._table import duration, markdown
from benchmarks._watched import watched
from benchmarks.engine import machine

START = 60.0  # seconds for starting and ending a session on a busy machine
HEADINGS = ("session", "tests", "faults", "seconds", "of at most", "wrong", "growth")
PYTEST = ("-q", "--nproc", "4", "-p", "no:cacheprovider", "-o", "junit_logging=all")


def main() -> None:
    """Run the soak, print a table, and exit with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description="Run thousands of rank tests with random faults.")
    parser.add_argument("--tests", type=int, default=2000, help="default 2000")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="default random")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, 2], help="sessions, by workers; default 0 2"
    )
    options = parser.parse_args()
    print(machine().partition(", gloo, ")[2])
    again = f"python -m benchmarks.soak --tests {options.tests} --seed {options.seed}"
    print(f"seed {options.seed}; to repeat: {again}", flush=True)
    planned = _soak_tests.plan(options.tests, options.seed)
    rows, all_wrong = [], []
    for workers in options.workers:
        row, wrong = _session(planned, workers)
        rows.append(row)
        all_wrong += wrong
    print(markdown([HEADINGS, *rows]))
    print(*all_wrong, sep="\n")
    if all_wrong:
        print(f"wrong; to repeat: {again}")
        sys.exit(1)


def _session(planned: Sequence[Planned], workers: int) -> tuple[list[str], list[str]]:
    """Run one session; return its line of the table and what was wrong, each in words."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    temporary = folder / "temporary"
    temporary.mkdir()
    _soak_tests.write(planned, folder)
    shutil.copy(_soak_conftest.__file__, folder / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = (sys.executable, "-m", "pytest", *PYTEST, "--junitxml=report.xml")
    variables = {
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # torch's own, in TMPDIR otherwise
        "COLUMNS": "200",
    }
    limit = min(sum(one.deadline for one in planned), START + len(planned))
    base = f"--basetemp={folder / 'base'}"
    ended = watched((*command, base, "-n", str(workers)), folder, limit, variables)
    wrong = [] if ended.status == 1 else [f"exit status {ended.status}, not 1:\n{ended.printed}"]
    found = _soak_check.read(folder / "report.xml")
    wrong += _soak_check.wrong(planned, found, ended.printed)
    wrong += [f"process is left: {pid}" for pid in ended.left]
    wrong += _soak_check.left(folder, temporary)
    grown = []
    for name, first, last, *memory in _soak_check.growth(folder):
        grown.append(f"{name} {last - first:+} fds {memory[1] - memory[0]:+} MiB")
        if last - first > _soak_check.DESCRIPTORS:
            wrong.append(f"{name} has {last} descriptors open, {first} after the first tests")
    name = f"-n {workers}" if workers else "without xdist"
    row = [name, str(len(planned)), str(sum(one.kind is not None for one in planned))]
    row += [duration(ended.seconds), f"{limit:,.0f} s", str(len(wrong)), ", ".join(grown)]
    if wrong:
        wrong.insert(0, f"\n{name}: {len(wrong)} wrong, kept in {folder}")
    else:
        shutil.rmtree(folder)
    return row, wrong


if __name__ == "__main__":
    main()
