"""The same faults as test files for each tool, and a conftest that keeps what its pytest said.

Each fault happens on rank 1 of 2 while rank 0 waits for it in an all_reduce. A healthy test
follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        name: Its name in the table.
        statement: What rank 1 does.
        deed: A regular expression for words that tell of that.
    """

    name: str
    statement: str
    deed: str

    @property
    def word(self) -> str:
        """The name as a part of a function's name."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.name)


FAULTS = (
    Fault("assert", "assert 1 == 2, 'the fault'", r"AssertionError: the fault"),
    Fault("os._exit(3)", "os._exit(3)", r"exit ?code:?( of)? 3\b|exitcode *: 3\b"),
    Fault("SIGKILL", "os.kill(os.getpid(), signal.SIGKILL)", r"SIGKILL|[Ss]ignal 9|code:? +-9\b"),
    Fault("sleep", "time.sleep(3600)", r"in does_sleep\b"),
    Fault("lone skip", "raise unittest.SkipTest('the fault')", r"skip.*the fault"),
    Fault("sys.exit(0)", "sys.exit(0)", r"SystemExit: 0|exit ?code:? 0\b|exitcode *: 0\b"),
    Fault("unpicklable", "raise Unpicklable('the fault')", r"Unpicklable: the fault"),
)

_HEAD = """\
import os
import signal
import sys
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("not to be pickled")


def reduce():
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == 2

"""

_FUNCTION = """
def does_{word}():
    {statement}


def fault_{word}(rank):
    if rank == 1:
        does_{word}()
    reduce()

"""

_OURS = """
import pytest


@pytest.mark.ranks(2)
def {faulty}(world):
    fault_{word}(world.rank)


@pytest.mark.ranks(2)
def {healthy}(world):
    reduce()

"""

# The class runs on processes of its own for each test. Its timeout counts from before they are
# spawned and have imported torch, so it can't be as short as ours.
_EACH = """
from torch.testing._internal.common_distributed import MultiProcessTestCase


class FaultsTest(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def form(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

"""
_EACH_TEST = """
    def {faulty}(self):
        self.form()
        fault_{word}(self.rank)

    def {healthy}(self):
        self.form()
        reduce()
"""

# The class keeps its processes, and has a timeout of the group's collectives.
_CONTINUOUS = """
from torch.testing._internal.common_distributed import MultiProcContinuousTest


class FaultsTest(MultiProcContinuousTest):
    world_size = 2
    timeout = timedelta(seconds={collective})

    @classmethod
    def backend_str(cls):
        return "gloo"

    @classmethod
    def device_type(cls):
        return "cpu"

"""
_CONTINUOUS_TEST = """
    def {faulty}(self):
        fault_{word}(self.rank)

    def {healthy}(self):
        reduce()
"""

_TORCHRUN = """
import pytest


@pytest.fixture(scope="session", autouse=True)
def group():
    dist.init_process_group("gloo", timeout=timedelta(seconds={collective}))
    yield
    dist.destroy_process_group()

"""
_TORCHRUN_TEST = """
def {faulty}():
    fault_{word}(dist.get_rank())


def {healthy}():
    reduce()

"""

# A tool's pytest tells of each test as it reports it, so that a session that is killed has told of
# what came before. Under torchrun there is a pytest on each rank.
RECORDER = """\
import json
import os
from pathlib import Path

RANK = os.environ.get("RANK", "")


def pytest_runtest_logreport(report):
    sections = [f"{title}\\n{text}" for title, text in report.sections]
    text = "\\n".join([report.head_line or "", report.longreprtext, *sections])
    line = json.dumps([report.nodeid, report.when, report.outcome, text])
    with Path(f"said{RANK}.jsonl").open("a") as file:
        file.write(line + "\\n")
"""

_LAYOUTS = {
    "ours": ("", _OURS),
    "each": (_EACH, _EACH_TEST),
    "continuous": (_CONTINUOUS, _CONTINUOUS_TEST),
    "torchrun": (_TORCHRUN, _TORCHRUN_TEST),
}


def faulty_name(index: int, fault: Fault) -> str:
    """Return the name of a faulty test; unittest runs a class's tests in the order of names."""
    return f"test_{2 * index:02}_{fault.word}"


def healthy_name(index: int) -> str:
    """Return the name of the healthy test that follows."""
    return f"test_{2 * index + 1:02}_next"


def source(layout: str, faults: Sequence[Fault], collective: float) -> str:
    """Return a test file with some faults, a healthy test after each.

    Args:
        layout: `ours`, `each`, `continuous` or `torchrun`.
        faults: The faults.
        collective: Seconds that a collective may take, where the tool has no deadline itself.
    """
    head, test = _LAYOUTS[layout]
    functions = [_FUNCTION.format(word=f.word, statement=f.statement) for f in faults]
    tests = [
        test.format(faulty=faulty_name(index, fault), healthy=healthy_name(index), word=fault.word)
        for index, fault in enumerate(faults)
    ]
    return "".join([_HEAD, *functions, head.format(collective=collective), *tests])
