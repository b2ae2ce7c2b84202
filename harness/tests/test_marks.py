"""What the mark, the options and the ini file decide: world size, timeout, fresh processes."""

from __future__ import annotations

import pytest

from ._inner import Inner, Session

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
            "ranks: world 4, gloo, fork, cpu, torch *",
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


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--nproc=0", "--nproc wants at least 1 rank, got 0"),
        ("--nproc=two", "*--nproc: invalid int value: 'two'"),
        ("--ranks-timeout=0", "--ranks-timeout wants seconds above 0, got 0"),
        ("--ranks-timeout=nan", "--ranks-timeout wants *, got nan"),
        ("--ranks-timeout=inf", "--ranks-timeout wants *, got inf"),
        ("--ranks-backend=mpi", "*--ranks-backend: invalid choice: 'mpi'*"),
        ("-onproc=many", "the ini option nproc wants a number, got 'many'"),
        ("-onproc=-1", "--nproc wants at least 1 rank, got -1"),
        ("-oranks_timeout=long", "the ini option ranks_timeout wants a number, got 'long'"),
        ("-oranks_backend=mpi", "ranks_backend is one of auto, gloo, nccl, got 'mpi'"),
    ],
)
def test_bad_option_is_a_usage_error(
    pytester: pytest.Pytester, argument: str, says: str
) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_inprocess(argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{says}"])


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("ranks(0)", "mark ranks wants a number of ranks, got 0"),
        ("ranks(True)", "mark ranks wants a number of ranks, got True"),
        ("ranks('2')", "mark ranks wants a number of ranks, got '2'"),
        ("ranks(2, backend='mpi')", "mark ranks: backend is one of auto, gloo, nccl, got 'mpi'"),
        ("ranks(2, timeout=0)", "mark ranks wants a timeout in s, got 0"),
        ("ranks(2, timeout='1')", "mark ranks wants a timeout in s, got '1'"),
        ("ranks(2, timeout=True)", "mark ranks wants a timeout *, got True"),
        ("ranks(2, timeout=float('nan'))", "mark ranks wants a timeout *, got nan"),
        ("ranks(2, timeout=float('inf'))", "mark ranks wants a timeout *, got inf"),
        ("ranks(2, isolate='no')", "mark ranks*isolate*'no'"),
        ("ranks(2, size=3)", "mark ranks(*: got an unexpected keyword argument 'size'"),
        ("ranks(1, None, 2, True, 4)", "mark ranks(*: too many positional arguments"),
    ],
)
def test_bad_mark_is_a_usage_error_that_names_the_test(
    pytester: pytest.Pytester, mark: str, says: str
) -> None:
    # In this process, which has no torch: it is told before anything is started.
    pytester.makepyfile(f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *test_it: {says}"])


ISOLATE = """
PIDS = {pids!r}

@pytest.fixture(autouse=True)
def written(world, request):
    with open(f"{{PIDS}}/{{request.node.name}}.{{world.rank}}", "w") as file:
        file.write(str(os.getpid()))

@ranks(2)
def test_first(world):
    reduce()

@ranks(2, isolate=True)
def test_fresh(world):
    assert reduce() == [2.0] * 4

@ranks(2, isolate=True)
def test_fresh_again(world):
    assert reduce() == [2.0] * 4

@ranks(2)
def test_second(world):
    reduce()

@ranks(2, isolate=True)
def test_fresh_fails(world):
    assert world.rank, "on rank 0"

@ranks(2)
def test_third(world):
    reduce()
"""


def test_isolate_has_fresh_processes_and_leaves_the_warm_ones(inner: Inner) -> None:
    folder = inner.path / "pids"
    folder.mkdir()
    session = inner.run(ISOLATE.format(pids=str(folder)))
    session.result.assert_outcomes(passed=5, failed=1)
    session.match_failure("test_fresh_fails", "*test_fresh_fails (rank 0 of 2)*")

    def pids(name: str) -> list[str]:
        return [(folder / f"{name}.{rank}").read_text() for rank in range(2)]

    warm = pids("test_first")
    assert warm == pids("test_second") == pids("test_third")
    every = [*warm, *pids("test_fresh"), *pids("test_fresh_again"), *pids("test_fresh_fails")]
    assert len(set(every)) == 8


BYPASS = {
    "runs it in our place": """
import pytest
from _pytest.runner import runtestprotocol

class Other:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        runtestprotocol(item, nextitem=nextitem)
        return True

@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    session.config.pluginmanager.register(Other())
""",
    "runs it once more": """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    result = yield
    runtestprotocol(item, nextitem=nextitem)
    return result
""",
    "has a loop of its own": """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    for item in session.items:
        runtestprotocol(item, nextitem=None)
    return True
""",
}


@pytest.mark.parametrize("how", BYPASS)
def test_marked_item_outside_of_ranks_is_an_error(inner: Inner, how: str) -> None:
    inner.write(conftest=BYPASS[how])
    session = inner.run("@ranks(1)\ndef test_it(): pass\n\ndef test_ordinary(): pass\n")
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert "error" in session.status("test_it")
    session.match_failure(
        "test_it",
        "*ERROR at setup of test_it*",
        "this test is marked for ranks, and another plugin tried to run it in the pytest process*",
    )


METHODS = """
import unittest

class Before(unittest.TestCase):
    @ranks(2)
    def test_method(self):
        self.assertEqual(reduce(), [2.0] * 4)

    @ranks(2)
    def test_method_fails(self):
        self.assertEqual(dist.get_rank(), 0)

    @ranks(2)
    @unittest.skip("not yet")
    def test_method_skipped(self):
        raise AssertionError

    @ranks(2)
    def test_method_skips_on_one(self):
        if dist.get_rank():
            raise unittest.SkipTest("only zero")

    @ranks(2)
    @unittest.expectedFailure
    def test_method_expected(self):
        self.assertEqual(dist.get_rank(), 0)

    def test_method_ordinary(self):
        self.assertFalse(dist.is_initialized())

@ranks(2)
class Whole(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.seen = dist.get_rank()

    def setUp(self):
        self.value = reduce()

    def test_class(self):
        self.assertEqual((self.seen, self.value), (dist.get_rank(), [2.0] * 4))
"""


def test_methods_of_unittest(inner: Inner) -> None:
    session = inner.run(METHODS)
    assert session.status("test_method") == "passed"
    session.match_failure("test_method_fails", "*test_method_fails (rank 1 of 2)*")
    assert session.status("test_method_skipped") == "skipped"
    session.match_failure(
        "test_method_skips_on_one", "the ranks disagree: rank 0 passed; rank 1 skipped (only zero)"
    )
    assert session.status("test_method_ordinary") == "passed"
    assert session.status("test_class") == "passed"
    # unittest's mark is kept by each rank for itself, and rank 0 has passed unexpectedly
    assert session.status("test_method_expected") == "failed"


def test_nothing_is_started_to_list_tests(inner: Inner) -> None:
    session = inner.run(SIZES, "--collect-only", "-q")
    assert session.ret == 0
    session.stdout.no_fnmatch_line("*ranks: world*")


def test_deselected_tests_start_nothing(inner: Inner) -> None:
    session = inner.run(SIZES + "\ndef test_ordinary(): pass\n", "-k", "ordinary")
    session.result.assert_outcomes(passed=1, deselected=5)
    session.stdout.no_fnmatch_line("*ranks: world*")
