"""What the command line and the ini file decide: world size, backend, timeout, strictness."""

from __future__ import annotations

import pytest

from ._inner import Inner

SIZES = """
@ranks(2)
def test_two(world):
    assert world.world_size == 2 == dist.get_world_size()

@ranks()
def test_default(world):
    print(f"default is {world.world_size}")

@ranks(world_size=5)
def test_five(world):
    pass

@pytest.mark.ranks
class TestClass:
    def test_inherits(self, world):
        assert reduce() == [float(world.world_size)] * 4

    @ranks(1)
    def test_own(self, world):
        assert reduce() == [1.0] * 4
"""


def test_without_nproc_a_test_has_its_own_size_up_to_four(inner: Inner) -> None:
    session = inner.run(SIZES, "--ranks-backend=gloo")
    session.stdout.fnmatch_lines(
        [
            f"ranks: world 4, gloo, {inner.start_method}, cpu, torch *",
            "default is 4",
            "SKIPPED test_inner.py::test_five - Skipped: needs 5 ranks, CPUs allows 4",
        ]
    )
    session.result.assert_outcomes(passed=4, skipped=1)
    assert session.ret == 0


def test_nproc_is_the_default_and_the_most(inner: Inner) -> None:
    session = inner.run(SIZES, "--nproc=1", "--ranks-backend=gloo")
    session.stdout.fnmatch_lines(
        [
            "ranks: world 1, gloo, *",
            "default is 1",
            "SKIPPED test_inner.py::test_two - Skipped: needs 2 ranks, --nproc allows 1",
            "SKIPPED test_inner.py::test_five - Skipped: needs 5 ranks, --nproc allows 1",
        ]
    )
    session.result.assert_outcomes(passed=3, skipped=2)


def test_strict_fails_what_would_be_skipped(inner: Inner) -> None:
    session = inner.run(SIZES, "--nproc=1", "--ranks-strict", "--ranks-backend=gloo")
    assert session.status("test_two") == "error"
    session.match_failure("test_two", "*ERROR at setup of test_two*", "needs 2 ranks, --nproc*")
    session.result.assert_outcomes(passed=3, errors=2)
    assert session.ret == pytest.ExitCode.TESTS_FAILED


def test_ini_options(inner: Inner) -> None:
    inner.pytester.makeini(
        """
        [pytest]
        nproc = 2
        ranks_timeout = 1
        ranks_strict = true
        ranks_backend = gloo
        """
    )
    session = inner.run(
        SIZES
        + """
@ranks(2)
def test_slow(world):
    time.sleep(30)
"""
    )
    session.stdout.fnmatch_lines(["ranks: world 2, gloo, *", "default is 2"])
    session.match_failure("test_five", "needs 5 ranks, --nproc allows 2")
    session.match_failure("test_slow", "the test did not end within 1 s on ranks 0-1")
    session.result.assert_outcomes(passed=4, failed=1, errors=1)


def test_command_line_wins_over_ini_file(inner: Inner) -> None:
    inner.pytester.makeini("[pytest]\nnproc = 2\nranks_timeout = 60\n")
    session = inner.run(
        """
@ranks()
def test_slow(world):
    assert world.world_size == 3
    time.sleep(30)

@ranks(timeout=1.5)
def test_mark_wins(world):
    time.sleep(30)
""",
        "--nproc=3",
        "--ranks-timeout=0.5",
    )
    session.match_failure("test_slow", "the test did not end within 0.5 s on ranks 0-2")
    session.match_failure("test_mark_wins", "the test did not end within 1.5 s on ranks 0-2")


def test_no_timeout_is_too_long(inner: Inner) -> None:
    source = "@ranks(2, timeout=1e12)\ndef test_patient(): reduce()"
    inner.run(source, "--ranks-timeout=1e9").result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--nproc=0", "--nproc wants at least 1 rank, got 0"),
        ("--nproc=two", "*--nproc: invalid int value: 'two'"),
        ("--ranks-timeout=0", "--ranks-timeout wants seconds above 0, got 0"),
        ("--ranks-timeout=nan", "--ranks-timeout wants *, got nan"),
        ("--ranks-timeout=inf", "--ranks-timeout wants *, got inf"),
        ("--ranks-backend=mpi", "*--ranks-backend: invalid choice: 'mpi'*"),
        ("--ranks-log=/dev/null/folder", "--ranks-log can't keep anything there: *"),
        ("-onproc=many", "the ini option nproc wants a number, got 'many'"),
        ("-onproc=-1", "--nproc wants at least 1 rank, got -1"),
        ("-oranks_timeout=long", "the ini option ranks_timeout wants a number, got 'long'"),
        ("-oranks_backend=mpi", "ranks_backend is one of auto, gloo, nccl, *, got 'mpi'"),
    ],
)
def test_bad_option_is_a_usage_error(pytester: pytest.Pytester, argument: str, says: str) -> None:
    pytester.makepyfile("import pytest\n\n@pytest.mark.ranks(1)\ndef test_nothing(): pass")
    result = pytester.runpytest_inprocess(argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{says}"])


def test_nothing_is_started_to_list_tests(inner: Inner) -> None:
    session = inner.run(SIZES, "--collect-only", "-q")
    assert session.ret == 0
    session.stdout.no_fnmatch_line("*ranks: world*")


def test_deselected_tests_start_nothing(inner: Inner) -> None:
    session = inner.run(SIZES + "\ndef test_ordinary(): pass\n", "-k", "ordinary")
    session.result.assert_outcomes(passed=1, deselected=5)
    session.stdout.no_fnmatch_line("*ranks: world*")
