"""Collectives that don't match, and what a report has of collectives without a flight recorder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ._inner import Inner, Session

MISMATCHES = """
@ranks(2, timeout=1)
def test_sizes(world):
    reduce(4 + world.rank)

@ranks(2)
def test_after_sizes():
    assert reduce() == [2.0] * 4

@ranks(2, timeout=1)
def test_dtypes(world):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if world.rank else torch.float32))

@ranks(2)
def test_after_dtypes():
    assert reduce() == [2.0] * 4

@ranks(2, timeout=1)
def test_kinds(world):
    if world.rank == 0:
        reduce()
    else:
        dist.broadcast(torch.ones(4), 0)

@ranks(2)
def test_after_kinds():
    assert reduce() == [2.0] * 4

@ranks(3, timeout=2)
def test_others_have_finished(world):
    reduce(4 if world.rank else 3)

@ranks(3, timeout=2)
def test_others_are_further(world):
    reduce(4 if world.rank else 5)
    dist.barrier()
"""


@pytest.fixture
def mismatches(once: Callable[..., Session]) -> Session:
    """The session of all of the above."""
    return once(MISMATCHES)


def test_outcomes(mismatches: Session) -> None:
    mismatches.result.assert_outcomes(passed=3, failed=5)
    assert mismatches.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("name", ["test_sizes", "test_dtypes"])
def test_gloo_ends_a_rank_that_gets_too_much(mismatches: Session, name: str) -> None:
    # Which of the two depends on the algorithm; gloo's own words tell what came.
    mismatches.match_failure(
        name,
        "rank ? was killed by SIGABRT (signal 6)*",
        "*Received data size doesn't match expected size. Is there a distributed collective mism*",
    )


def test_different_collectives_are_told_with_their_ranks(mismatches: Session) -> None:
    mismatches.match_failure(
        "test_kinds",
        "the test did not end within 1 s on ranks 0-1",
        "  rank 0 waits in all_reduce #* of float32[[]4[]]",
        "  rank 1 waits in broadcast #* of float32[[]4[]]",
    )


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "test_others_have_finished",
            [
                "  ranks 1-2 wait in all_reduce #1 of float32[[]4[]]",
                "  rank 0 had begun all_reduce #1 of float32[[]3[]]",
                "  rank 0 had finished the test",
            ],
        ),
        (
            "test_others_are_further",
            [
                "  rank 0 waits in all_reduce #1 of float32[[]5[]]",
                "  ranks 1-2 wait in barrier #2",
                "  ranks 1-2 had begun all_reduce #1 of float32[[]4[]]",
            ],
        ),
    ],
)
def test_what_others_did_in_its_place_is_told(
    mismatches: Session, name: str, lines: list[str]
) -> None:
    mismatches.match_failure(name, *lines)


# What torch 2.6 to 2.12 have of gloo: nothing. The engine looks for them by these names.
NO_RECORDER = """
from torch._C import _distributed_c10d

for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
    if hasattr(_distributed_c10d, name):
        delattr(_distributed_c10d, name)
"""


def test_without_a_flight_recorder_the_stacks_tell(inner: Inner) -> None:
    inner.write(conftest=NO_RECORDER)
    session = inner.run(
        """
@ranks(3, timeout=1)
def test_hang(world):
    if world.rank == 1:
        time.sleep(60)
    reduce(7)

@ranks(3)
def test_stuck(world):
    if world.rank == 1:
        raise ValueError("mine alone")
    reduce()

@ranks(3)
def test_transfer(world):
    if world.rank == 0:
        dist.send(torch.ones(7), 1)
    if world.rank == 1:
        dist.recv(torch.ones(7), 0)

@ranks(3)
def test_after(world):
    assert world.gather(world.rank) == [0, 1, 2]
"""
    )
    session.result.assert_outcomes(passed=2, failed=2)
    session.match_failure(
        "test_hang",
        "the test did not end within 1 s on ranks 0-2",
        "  ranks 0-2: this torch has no flight recorder for gloo (2.13 has)",
        "ranks 0, 2 [[]S (sleeping)[]], the innermost call first:",
        '  File "*distributed_c10d.py", line * in all_reduce',
        "rank 1 [[]S (sleeping)[]], the innermost call first:",
        '  File "*test_inner.py", line * in test_hang',
    )
    session.match_failure("test_stuck", "E           ValueError: mine alone", "rank*: lost a peer*")
