"""What a distributed test costs: shardproof, torch's own test classes, torchrun and the floor.

Run as `python -m benchmarks.engine [--quick] [--strict]`. All figures come from one run on one
machine. Runs are repeated in turn and their median wall time is taken. A cost per test is the
time between a run's first test and its last, divided by the tests between, so that starting
and ending is not counted. Peers that need seconds for a test are measured on a few of them.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from benchmarks import _ours, _peers, _sessions
from benchmarks._measure import WITHOUT_PLUGIN, in_turn
from benchmarks._table import Figure, duration, render


@dataclass(frozen=True, slots=True)
class Effort:
    """How often things are run.

    Attributes:
        warm: Tests on warm ranks.
        fresh: Tests on fresh processes; also pairs of a failure and a good test.
        slow: Tests of a peer that takes seconds for each; runs of torchrun.
        rounds: Repetitions of a run whose median is taken.
        sessions: Repetitions of a session without rank tests.
        messages: Rounds of messages and barriers for the floor.
    """

    warm: int
    fresh: int
    slow: int
    rounds: int
    sessions: int
    messages: int


FULL = Effort(warm=200, fresh=25, slow=4, rounds=5, sessions=15, messages=200)
QUICK = Effort(warm=50, fresh=10, slow=2, rounds=1, sessions=5, messages=50)


def main() -> None:
    """Measure, print the table, and with --strict exit with 1 where a target was missed."""
    parser = argparse.ArgumentParser(description="Measure what a distributed test costs.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a first look")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = list(measure(Path(folder), QUICK if options.quick else FULL))
    print(render(figures))
    if options.strict and not all(figure.reached for figure in figures):
        sys.exit(1)


def machine() -> str:
    """Say what the figures are measured on."""
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"4 ranks, gloo, {os.cpu_count()} cores, load {load}, "
        f"torch {version('torch')}, pytest {version('pytest')}, Python {platform.python_version()}"
    )


def measure(folder: Path, effort: Effort) -> Iterator[Figure]:
    """Measure everything and yield the lines of the table."""
    each = _peers.each(folder, effort.slow)
    yield from warm(folder, effort, each)
    yield from isolated(folder, effort, each)
    yield whole_run(folder, effort)
    yield from session(folder, effort)
    yield failing(folder, effort)


def warm(folder: Path, effort: Effort, each: float) -> Iterator[Figure]:
    """Compare a test on warm ranks with each peer and with the floor."""
    times = in_turn(
        effort.rounds,
        ours=partial(_ours.warm, folder, effort.warm),
        continuous=partial(_peers.continuous, folder, effort.warm),
        floor=partial(_peers.floor, effort.messages),
    )
    torchrun = in_turn(effort.slow, run=partial(_peers.torchrun, folder))["run"]
    name, ours = "a warm test, per test", times["ours"]
    yield faster(name, ours, "MultiProcContinuousTest", times["continuous"], 1)
    yield faster(name, ours, "MultiProcessTestCase", each, 300)
    yield faster(name, ours, "one torchrun per test", torchrun, 300)
    yield within(name, ours, "the floor: message and barrier", times["floor"], 0.006)


def isolated(folder: Path, effort: Effort, each: float) -> Iterator[Figure]:
    """Compare a test on fresh processes with the peer that has them too."""
    ours = in_turn(effort.rounds, run=partial(_ours.isolated, folder, effort.fresh))["run"]
    name = "a test on fresh processes, per test"
    yield faster(name, ours, "MultiProcessTestCase", each, 35)
    yield Figure(name, duration(ours), "under 200 ms", ours < 0.200)


def whole_run(folder: Path, effort: Effort) -> Figure:
    """Compare a run with one rank test with the imports that it can't do without."""
    times = in_turn(
        2 * effort.rounds + 1,
        ours=partial(_ours.one_test, folder),
        imports=partial(_sessions.imports, folder),
    )
    ratio = times["ours"] / times["imports"]
    return Figure(
        "a whole run with one rank test",
        duration(times["ours"]),
        "within 1.6 times",
        ratio <= 1.6,
        'python -c "import torch, pytest"',
        duration(times["imports"]),
        f"{ratio:.2f} times as long",
    )


def session(folder: Path, effort: Effort) -> Iterator[Figure]:
    """Compare a session without rank tests with the same session without the plugin."""
    times = in_turn(
        effort.sessions,
        ours=partial(_sessions.ordinary, folder),
        without=partial(_sessions.ordinary, folder, *WITHOUT_PLUGIN),
    )
    name = "a session without rank tests"
    yield within(name, times["ours"], "the same without the plugin", times["without"], 0.020)
    clean = _sessions.loads_nothing(folder)
    yield Figure(f"{name}: torch is imported", "no" if clean else "yes", "no", clean)


def failing(folder: Path, effort: Effort) -> Figure:
    """Measure a test that fails on one rank together with the test after it."""
    ours = in_turn(effort.rounds, run=partial(_ours.failing_and_next, folder, effort.fresh))["run"]
    name = "a test that fails on one rank, and the next one"
    return Figure(name, duration(ours), "under 150 ms together", ours < 0.150)


def faster(name: str, ours: float, against: str, theirs: float, times: int) -> Figure:
    """Compare two durations where the target is how many times shorter ours is."""
    ratio = theirs / ours
    target = "no slower" if times == 1 else f"{times} times faster"
    found = f"{ratio:,.1f} times faster" if ratio >= 1 else f"{1 / ratio:.2f} times slower"
    return Figure(name, duration(ours), target, ratio >= times, against, duration(theirs), found)


def within(name: str, ours: float, against: str, theirs: float, allowed: float) -> Figure:
    """Compare two durations where the target is how much longer ours may be, in seconds."""
    more = ours - theirs
    found = f"{more * 1000:+.1f} ms"
    target = f"at most {allowed * 1000:.0f} ms more"
    return Figure(name, duration(ours), target, more <= allowed, against, duration(theirs), found)


if __name__ == "__main__":
    main()
