"""Ranks that leave a test in different ways or at different times, and what follows from it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable

import pytest

from ._inner import Inner, Session

LEAVING = """
import unittest
from shardproof import current_world

@pytest.fixture(scope="module", autouse=True)
def wide(world):
    yield
    dist.barrier()

@pytest.fixture
def ends_together():
    yield
    dist.barrier()

@ranks(3)
def test_skips_late(world, ends_together):
    time.sleep(0.8 * (world.rank == 1))
    pytest.skip("nowhere")

@ranks(3)
def test_after_a_late_skip():
    assert reduce() == [3.0] * 4

@ranks(3)
@pytest.mark.xfail(raises=AssertionError, reason="known")
def test_expected_failure(world, ends_together):
    assert world.rank != 1
    reduce()

@ranks(3)
@pytest.mark.xfail(reason="known")
def test_expected_failure_of_a_slow_test(world, ends_together):
    if world.rank == 2:
        time.sleep(60)
    assert world.rank != 1
    reduce()

@ranks(3)
@pytest.mark.xfail(raises=AssertionError, reason="known")
def test_death_beside_an_expected_failure(world):
    if world.rank == 2:
        os._exit(3)
    assert world.rank != 1
    reduce()

@pytest.fixture
def fails_as_marked(world):
    yield
    if world.rank == 1:
        raise ValueError("of the fixture")
    dist.barrier()

@ranks(3)
@pytest.mark.xfail(raises=ValueError, reason="known")
def test_expected_failure_of_a_teardown(fails_as_marked):
    pass

@ranks(3)
def test_one_fails_in_a_subtest(subtests, world):
    with subtests.test("part"):
        assert world.rank != 1
        dist.barrier()

class TestSkippedPart(unittest.TestCase):
    pytestmark = ranks(3)

    def test_all_skip_a_part(self):
        with self.subTest("part"):
            self.skipTest("nowhere")
        group = dist.new_group([0, 1])
        if current_world().rank < 2:
            time.sleep(0.8)
            dist.all_reduce(torch.ones(1), group=group)

    def test_collective_after_a_skipped_part(self):
        with self.subTest("part"):
            self.skipTest("nowhere")
        if current_world().rank == 0:
            dist.all_reduce(torch.ones(7), async_op=True)

@pytest.fixture
def ends_slowly(world):
    group = dist.new_group([0, 1])
    yield
    if world.rank < 2:
        time.sleep(0.8)
        dist.barrier(group)
        Path(os.environ["HOME"], f"ended{world.rank}").touch()

@ranks(3)
def test_skips_and_ends_slowly(ends_slowly):
    pytest.skip("nowhere")

@ranks(3)
def test_teardown_was_not_cut_short():
    assert all(Path(os.environ["HOME"], f"ended{rank}").exists() for rank in (0, 1))

@ranks(3)
def test_one_calls_xfail(world):
    if world.rank == 1:
        pytest.xfail("here")
    reduce()

@ranks(3)
def test_skips_and_leaves_a_collective(world):
    if world.rank == 0:
        dist.all_reduce(torch.ones(7), async_op=True)
    pytest.skip("nowhere")

@pytest.fixture
def fails_by_itself(world):
    yield
    if world.rank == 2:
        raise ValueError("of the fixture")

@pytest.fixture
def destroys_the_group():
    yield
    dist.destroy_process_group()

@ranks(3)
def test_fails_twice(ends_together, fails_by_itself):
    assert False

@ranks(3)
def test_fails_once(destroys_the_group):
    assert False

class TestCase(unittest.TestCase):
    pytestmark = ranks(3)

    def tearDown(self):
        dist.barrier()

    def test_one_fails(self):
        self.assertNotEqual(current_world().rank, 1)
        dist.barrier()

    def test_one_skips(self):
        if current_world().rank == 1:
            self.skipTest("not here")
        dist.barrier()

    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

class TestWithoutTearDown(unittest.TestCase):
    pytestmark = ranks(3)

    @unittest.expectedFailure
    def test_expected_on_one(self):
        self.assertNotEqual(current_world().rank, 1)

class TestAsync(unittest.IsolatedAsyncioTestCase):
    pytestmark = ranks(3)

    async def test_one_fails_async(self):
        self.assertNotEqual(current_world().rank, 1)
        dist.barrier()

@ranks(3)
def test_one_dies_when_it_has_ended(world):
    if world.rank == 1:
        pid = os.getpid()
        if os.fork() == 0:
            time.sleep(0.5)
            os.kill(pid, signal.SIGKILL)
            os._exit(0)
    else:
        time.sleep(1)

@ranks(3)
def test_closes_its_output(world):
    sys.stdout.close()

@ranks(3)
def test_healthy(world):
    print("healthy output")
    assert reduce() == [3.0] * 4
"""


@pytest.fixture
def leaving(once: Callable[..., Session]) -> Session:
    """The session of all of them."""
    return once(LEAVING, "-v", "--ranks-timeout=30")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("test_skips_late", "skipped"),
        ("test_after_a_late_skip", "passed"),
        ("test_expected_failure", "xfail"),
        ("test_expected_failure_of_a_slow_test", "xfail"),
        ("test_death_beside_an_expected_failure", "failed"),
        ("test_skips_and_leaves_a_collective", "skipped"),
        ("test_fails_twice", "error, failed"),
        ("test_fails_once", "failed"),
        ("test_one_fails", "failed"),
        ("test_one_skips", "failed"),
        ("test_expected", "xfail"),
        ("test_one_calls_xfail", "failed"),
        ("test_one_fails_in_a_subtest", "failed"),
        ("test_all_skip_a_part", "passed"),
        ("test_collective_after_a_skipped_part", "passed, error"),
        ("test_skips_and_ends_slowly", "skipped"),
        ("test_teardown_was_not_cut_short", "passed"),
        ("test_expected_on_one", "xfail"),
        ("test_expected_failure_of_a_teardown", "xpass"),
        ("test_one_fails_async", "failed"),
        ("test_one_dies_when_it_has_ended", "passed"),
        ("test_healthy", "passed"),
    ],
)
def test_outcome(leaving: Session, name: str, status: str) -> None:
    assert leaving.status(name) == status
    assert "did not end within" not in leaving.text


def test_teardown_that_fails_by_itself_is_told_beside_the_failure(leaving: Session) -> None:
    leaving.match_failure(
        "test_fails_twice",
        "_* ERROR at teardown of test_fails_twice (rank 2 of 3) _*",
        "*ValueError: of the fixture",
        "_* test_fails_twice (ranks 0-2 of 3) _*",
    )


def test_methods_of_unittest_wake_the_others(leaving: Session) -> None:
    for name in ("TestCase.test_one_fails", "TestAsync.test_one_fails_async"):
        leaving.match_failure(
            name,
            f"_* {name} (rank 1 of 3) _*",
            "E *AssertionError: 1 == 1",
            "ranks 0, 2: *test_inner.py:*: lost a peer (Connection closed by peer)",
        )
    leaving.match_failure(
        "TestCase.test_one_skips",
        "the ranks disagree: ranks 0, 2 lost a peer; rank 1 skipped (not here)",
    )


def test_rank_that_dies_when_it_has_ended_is_told_of(leaving: Session) -> None:
    text = r"PytestWarning: rank 1 was killed by SIGKILL \(signal 9\) after \S+ had ended"
    assert len(re.findall(text, leaving.text)) == 1


HANGS_LATE = """
@pytest.fixture(scope="module")
def hangs_late(world):
    yield
    if world.rank == 1:
        time.sleep(60)

@ranks(2)
def test_fails(hangs_late):
    assert False

@ranks(2)
def test_after():
    assert reduce() == [2.0] * 4
"""


def test_wider_fixture_that_does_not_end_is_named(inner: Inner) -> None:
    session = inner.run(HANGS_LATE, "--ranks-timeout=2", timeout=20)
    session.result.assert_outcomes(passed=1, failed=1)
    session.match_failure(
        "test_fails",
        "-* ending wider fixtures -*",
        "their teardown did not end within 2 s on rank 1",
        "  File *test_inner.py*, line * in hangs_late",
    )


CLOCK = """
@pytest.fixture(scope="module", autouse=True)
def stopped_clock():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 0.0)
        yield

@ranks(2)
def test_leaves_a_child():
    subprocess.Popen(["sleep", "615"])
"""


def test_stopped_clock_stops_nothing(inner: Inner) -> None:
    session = inner.run(CLOCK, "--ranks-timeout=20", timeout=20)
    session.result.assert_outcomes(passed=1, warnings=2)


def test_standard_input_that_is_closed(inner: Inner) -> None:
    inner.write(test_inner="@ranks(2)\ndef test_it():\n    assert reduce() == [2.0] * 4")
    command = f"{shlex.quote(sys.executable)} -m pytest -p no:cacheprovider test_inner.py <&-"
    result = inner.pytester.run("sh", "-c", command)
    result.assert_outcomes(passed=1)
    inner.nothing_left()


def test_closed_output_is_the_test_s_failure_alone(leaving: Session) -> None:
    assert leaving.status("test_closes_its_output") == "error, failed"
    assert re.search(r"Captured stdout call \(ranks 0-2\) -+\nhealthy output\n", leaving.text)
