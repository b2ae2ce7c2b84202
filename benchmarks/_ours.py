"""What tests on four gloo ranks cost with shardproof: `pytest --nproc 4`, as a user runs it."""

from __future__ import annotations

from pathlib import Path

from benchmarks._measure import pytest_seconds, seconds_between, write

NPROC = ("--nproc", "4")

HEADER = """\
import pytest
import torch
import torch.distributed as dist


def check_sum(world):
    value = torch.ones(1, device=world.device)
    dist.all_reduce(value)
    assert value.item() == world.world_size == 4


"""

WARM = """\
@pytest.mark.ranks(4)
def test_warm_{index}(world):
    check_sum(world)


"""

ISOLATED = """\
@pytest.mark.ranks(4, isolate=True)
def test_isolated_{index}(world):
    check_sum(world)


"""

# Rank 1 fails while its peers are on their way into a collective; the next test is whole again.
FAILING = """\
@pytest.mark.ranks(4)
def test_fails_{index}(world):
    assert world.rank != 1
    check_sum(world)


"""


def warm(folder: Path, tests: int) -> float:
    """Return the seconds of one more test on warm ranks."""
    file = write(folder, "test_warm.py", _module(WARM, tests))
    return seconds_between(file, *NPROC, passed=tests + 2) / tests


def isolated(folder: Path, tests: int) -> float:
    """Return the seconds of one more test on fresh processes."""
    file = write(folder, "test_isolated.py", _module(ISOLATED, tests))
    return seconds_between(file, *NPROC, passed=tests + 2) / tests


def failing_and_next(folder: Path, pairs: int) -> float:
    """Return the seconds of one more test that fails on one rank together with the next one."""
    file = write(folder, "test_failing.py", _module(FAILING + WARM, pairs))
    return seconds_between(file, *NPROC, passed=pairs + 2, failed=pairs) / pairs


def one_test(folder: Path) -> float:
    """Return the seconds of a whole run with a single test on warm ranks."""
    return pytest_seconds(write(folder, "test_one.py", HEADER + WARM.format(index="only")), *NPROC)


def _module(text: str, times: int) -> str:
    """Return a module with what is to be measured between two tests on warm ranks."""
    repeated = "".join(text.format(index=index) for index in range(times))
    return HEADER + WARM.format(index="first") + repeated + WARM.format(index="last")
