"""What the mark decides, where it may stand, and that it is never passed by."""

from __future__ import annotations

import pytest

from ._inner import Inner


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("ranks(0)", "mark ranks wants a number of ranks, got 0"),
        ("ranks(True)", "mark ranks wants a number of ranks, got True"),
        ("ranks('2')", "mark ranks wants a number of ranks, got '2'"),
        ("ranks(2, backend='mpi')", "mark ranks: backend is one of auto, gloo, nccl, *, got 'mpi'"),
        ("ranks(2, timeout=0)", "mark ranks wants a timeout in s, got 0"),
        ("ranks(2, timeout='1')", "mark ranks wants a timeout in s, got '1'"),
        ("ranks(2, timeout=True)", "mark ranks wants a timeout *, got True"),
        ("ranks(2, timeout=float('nan'))", "mark ranks wants a timeout *, got nan"),
        ("ranks(2, timeout=float('inf'))", "mark ranks wants a timeout *, got inf"),
        ("ranks(2, isolate='no')", "mark ranks*isolate*'no'"),
        ("ranks(2, size=3)", "mark ranks: got an unexpected keyword argument 'size'*"),
        ("ranks(1, None, 2, True, 4)", "mark ranks: too many positional arguments*"),
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
        "this test is marked for ranks, and would run in the pytest process, where*",
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
    # as with a strict mark xfail, where one rank's failure is enough
    assert session.status("test_method_expected") == "xfail"
