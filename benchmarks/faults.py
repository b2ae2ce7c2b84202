"""Seven faults on rank 1 while rank 0 waits for it: what each tool says, and what comes after.

Run as `python -m benchmarks.faults [--quick] [--strict]`. The tools are `pytest --nproc`, torch's
MultiProcessTestCase and MultiProcContinuousTest under pytest, and `torchrun -m pytest` with a
session fixture that forms the group. Each fault is run in a file of its own with a healthy test
after it, and all seven in one file.

Nothing is judged by hand. Every pytest process writes down what it reports of each test, and a
verdict follows from that and from what the run printed:

- `right`: the faulty test is reported as failed, and the text tells of rank 1 and of what it did
  (`Fault.deed`), anywhere in the report or what was printed. That is generous to torchrun, whose
  ranks print into each other's lines.
- `blamed wrong`: it is reported as failed, and the text lacks one of the two and names rank 0; or
  it is not, and the healthy test after it is.
- `cause not shown`: it is reported as failed, and the text names nobody.
- `passed`, `skipped`: no test is reported as failed.
- `no test named`: the run ended without a word on the faulty test.
- `hung`: it was killed by this benchmark's limit, with none of these said.

Deadlines are as short as each tool takes them: ours `--ranks-timeout 3`; for MultiProcessTestCase
DISTRIBUTED_TESTS_DEFAULT_TIMEOUT, which counts from before its processes have imported torch; for
MultiProcContinuousTest that and its `timeout`; for torchrun the `timeout` of init_process_group.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._fault_files import FAULTS, RECORDER, Fault, source
from benchmarks._measure import WITHOUT_PLUGIN
from benchmarks._table import duration, markdown
from benchmarks._verdict import Verdict, judge, read
from benchmarks._watched import watched
from benchmarks.engine import machine

LIMIT = 60.0  # of a file with one fault, in seconds; a file with all has three times that
COLLECTIVE = 5.0  # seconds for a group's collectives, where a tool has only that
SPAWN = 15.0  # seconds for a test whose processes have yet to import torch
TARGET = 15.0  # seconds of our whole file
LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone")
PYTEST = (sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True)
class Tool:
    """One way to run tests on ranks.

    Attributes:
        name: Its name in the table.
        layout: The layout of its test file.
        command: What runs a file, without the file.
        processes: How many pytest processes report each test.
    """

    name: str
    layout: str
    command: tuple[str, ...]
    processes: int = 1


OURS = Tool("shardproof", "ours", (*PYTEST, "--nproc", "2", "--ranks-timeout", "3"))
TOOLS = (
    OURS,
    Tool("MultiProcessTestCase", "each", (*PYTEST, *WITHOUT_PLUGIN)),
    Tool("MultiProcContinuousTest", "continuous", (*PYTEST, *WITHOUT_PLUGIN)),
    Tool(
        "torchrun -m pytest",
        "torchrun",
        # --tee marks each line with the rank that printed it
        (*LAUNCHER, "--nproc-per-node", "2", "--tee", "3", *PYTEST[1:], *WITHOUT_PLUGIN),
        processes=2,
    ),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one file.

    Attributes:
        seconds: Its wall time.
        hung: It had to be killed.
        verdicts: One for each fault in it.
        printed: What it printed.
    """

    seconds: float
    hung: bool
    verdicts: tuple[Verdict, ...]
    printed: str


def main() -> None:
    """Run all tools, print the table, and with --strict exit with 1 where ours is not right."""
    parser = argparse.ArgumentParser(description="Show what each tool says of seven faults.")
    parser.add_argument("--quick", action="store_true", help="ours alone, without the peers")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if ours is not right")
    parser.add_argument("--verbose", action="store_true", help="print what the tools printed")
    options = parser.parse_args()
    print(f"2 ranks, {machine().partition(', ')[2]}", flush=True)
    if options.quick:
        print("--quick leaves out the peers")
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        for tool in TOOLS[:1] if options.quick else TOOLS:
            columns[tool] = _column(tool, Path(folder) / tool.layout)
            if options.verbose:
                print(*(f"== {tool.name}\n{run.printed}" for run in columns[tool]), sep="\n")
    print(markdown(_rows(columns)))
    missed = _missed(columns[OURS])
    print(*missed, sep="\n")
    if options.strict and missed:
        sys.exit(1)


def _column(tool: Tool, folder: Path) -> list[Run]:
    """Run a tool on each fault, and last on all of them in one file."""
    single = [run(tool, [fault], folder / fault.word, LIMIT) for fault in FAULTS]
    return [*single, run(tool, FAULTS, folder / "all", 3 * LIMIT)]


def run(tool: Tool, faults: Sequence[Fault], folder: Path, limit: float) -> Run:
    """Run a tool on a file with some faults."""
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text(RECORDER, encoding="utf-8")
    file = folder / "test_faults.py"
    file.write_text(source(tool.layout, faults, COLLECTIVE), encoding="utf-8")
    variables = {"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": f"{SPAWN:.0f}", "OMP_NUM_THREADS": "1"}
    ended = watched((*tool.command, file.name), folder, limit, variables)
    hung = ended.status is None
    said = read(folder)
    printed = ended.printed if len(faults) == 1 else ""
    verdicts = tuple(
        judge(fault, index, said, printed, hung, tool.processes)
        for index, fault in enumerate(faults)
    )
    return Run(ended.seconds, hung, verdicts, ended.printed)


def _rows(columns: dict[Tool, list[Run]]) -> list[list[str]]:
    rows = [["rank 1 does", *(tool.name for tool in columns)]]
    for index, fault in enumerate(FAULTS):
        rows.append([fault.name, *(str(runs[index].verdicts[0]) for runs in columns.values())])
    rows.append(["right; next passes", *(_count(_singles(runs)) for runs in columns.values())])
    whole = [f"{_time(runs[-1])}: {_count(runs[-1].verdicts)}" for runs in columns.values()]
    rows.append(["all in one file", *whole])
    return rows


def _singles(runs: Sequence[Run]) -> list[Verdict]:
    return [run.verdicts[0] for run in runs[:-1]]


def _count(verdicts: Sequence[Verdict]) -> str:
    right = sum(verdict.word == "right" for verdict in verdicts)
    passes = sum(verdict.following == "passes" for verdict in verdicts)
    return f"{right} of {len(verdicts)}; {passes} of {len(verdicts)}"


def _time(run: Run) -> str:
    return f"killed after {run.seconds:.0f} s" if run.hung else duration(run.seconds)


def _missed(runs: Sequence[Run]) -> list[str]:
    """Say where ours is not what it must be, a line each."""
    wanted = Verdict("right", "passes")
    missed = []
    for fault, single, in_all in zip(FAULTS, _singles(runs), runs[-1].verdicts, strict=True):
        for where, verdict in (("alone", single), ("in one file with all", in_all)):
            if verdict != wanted:
                missed.append(f"MISSED: {fault.name} {where}: {verdict}")
    if runs[-1].seconds >= TARGET:
        missed.append(f"MISSED: the whole file took {duration(runs[-1].seconds)}, not under 15 s")
    return missed


if __name__ == "__main__":
    main()
