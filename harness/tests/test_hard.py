"""What tests do to their processes, and unusual ways to run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ._inner import Inner

ROUGH = """
@ranks(2)
def test_leaves_a_grandchild(world):
    # its parent is gone, and it is in a session of its own
    subprocess.Popen(["sh", "-c", "setsid sleep 600 & setsid setsid sleep 601 &"]).wait()
    reduce()

@ranks(2)
def test_leaves_a_grandchild_and_dies(world):
    subprocess.Popen(["setsid", "sleep", "602"])
    if world.rank == 1:
        os._exit(4)
    reduce()

@ranks(2, isolate=True)
def test_leaves_a_grandchild_of_fresh_ranks(world):
    subprocess.Popen(["setsid", "sleep", "603"])

@ranks(2)
def test_prints_200_mb(world):
    line = "x" * 999 + "\\n"
    for _ in range(200_000):
        sys.stdout.write(line)

@ranks(2)
def test_prints_past_python(world):
    os.write(1, b"straight %d\\n" % world.rank)
    os.write(2, b"\\xff no text\\n")
    subprocess.run(["echo", "of a child"])
    assert world.rank

@ranks(2)
def test_closes_its_output(world):
    os.close(1)
    reduce()

@ranks(2)
def test_reads_input():
    assert os.read(0, 1) == b""

@ranks(2)
def test_resets_signals():
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)

@ranks(2)
def test_leaves_a_thread(world):
    threading.Thread(target=time.sleep, args=(600,), daemon=False).start()

@ranks(2)
def test_computes_in_parallel(world):
    torch.set_num_threads(2)
    assert torch.ones(2_000_000).sum() == 2_000_000

@ranks(2)
def test_autograd_after_it(world):
    value = torch.ones(200_000, requires_grad=True)
    (value * 2).sum().backward()
    assert reduce(100_000) == [2.0] * 100_000

@ranks(2)
def test_exits_pytest_quietly(world):
    with pytest.raises(pytest.exit.Exception):
        pytest.exit("caught")

@ranks(2)
def test_interrupted_by_itself(world):
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

@ranks(2)
def test_recursion(world):
    def down():
        down()
    if world.rank == 0:
        down()
    reduce()

@ranks(2)
def test_healthy(world):
    assert world.gather(world.rank) == [0, 1]
"""


def test_rough_tests(inner: Inner) -> None:
    session = inner.run(ROUGH)
    failing = ["test_leaves_a_grandchild_and_dies", "test_prints_past_python", "test_recursion"]
    for name in failing:
        assert session.status(name) == "failed"
    session.match_failure("test_leaves_a_grandchild_and_dies", "rank 1 ended with exit code 4")
    session.match_failure(
        "test_prints_past_python",
        "-* Captured stdout call (rank 0) -*",
        "straight 0",
        "of a child",
        "-* Captured stdout call (rank 1) -*",
        "straight 1",
        "-* Captured stderr call (ranks 0-1) -*",
        "* no text",
    )
    session.match_failure("test_recursion", "*(rank 0 of 2)*", "E*RecursionError: *")
    session.result.assert_outcomes(passed=12, failed=3)


@pytest.mark.usefixtures("forks")
def test_files_opened_at_import_stay_what_they_are(inner: Inner) -> None:
    session = inner.run(
        """
WRITTEN = open("written", "w", buffering=1)
CLOSED = open("closed", "w")
FIRST, SECOND = os.pipe()

@ranks(2)
def test_writes(world):
    WRITTEN.write(f"line of {world.rank}\\n")
    CLOSED.close()
    os.close(FIRST)
    os.close(SECOND)
    print("printed")
    assert reduce() == [2.0] * 4

@ranks(2)
def test_fails(world):
    assert reduce() == [2.0] * 4
    WRITTEN.write("more\\n")
    print("only this")
    assert False
"""
    )
    session.result.assert_outcomes(passed=1, failed=1)
    lines = (inner.path / "written").read_text().splitlines()
    assert sorted(lines) == ["line of 0", "line of 1", "more", "more"]
    session.match_failure("test_fails", "-* Captured stdout call (ranks 0-1) -*", "only this")


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_set_up_without_the_test(inner: Inner, option: str) -> None:
    session = inner.run(
        """
@ranks(2)
def test_it(world, tmp_path):
    raise AssertionError("not called")
""",
        option,
    )
    assert session.ret == 0
    assert "failed" not in session.result.parseoutcomes()


def test_debugger_that_ranks_cannot_have_hides_no_failure(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2)
def test_fails(world):
    assert world.rank

@ranks(2)
def test_after(world):
    assert reduce() == [2.0] * 4
""",
        "--pdb",
    )
    session.result.assert_outcomes(passed=1, failed=1)
    session.match_failure("test_fails", "*test_fails (rank 0 of 2)*", "E       assert 0")


LATE_WAKE = """
import time
from shardproof import _evidence

answer = _evidence.answer_in_background

def late(channel, stack_file, wake):
    def wake_late(*args):
        time.sleep(0.3)
        wake(*args)
    answer(channel, stack_file, wake_late)

_evidence.answer_in_background = late
"""


def test_wake_that_comes_late_does_not_cut_the_next_group(inner: Inner) -> None:
    inner.write(conftest=LATE_WAKE)
    session = inner.run(
        """
@ranks(4)
def test_fails(world):
    with world.subworld(2):
        if world.rank == 3:
            raise ValueError("outside")

@ranks(4)
def test_after(world):
    assert reduce() == [4.0] * 4
    time.sleep(0.6)
    assert reduce() == [4.0] * 4
"""
    )
    session.result.assert_outcomes(passed=1, failed=1)


def test_import_mode_and_folders_with_odd_names(inner: Inner) -> None:
    folder = inner.path / "with späce"
    folder.mkdir()
    (folder / "test_odd.py").write_text(
        "import pytest\n\n"
        "def one():\n    return 1\n\n"
        "@pytest.mark.ranks(2)\ndef test_odd(world, shared_tmp_path):\n"
        "    assert world.gather(one()) == [1, 1]\n\n"
        "@pytest.mark.parametrize('text', ['a/b', 'ü', 'x' * 300])\n"
        "@pytest.mark.ranks(2)\ndef test_ids(text, tmp_path):\n"
        "    assert text\n\n"
        "def test_launch(launch):\n    assert launch(one, world_size=1) == [1]\n"
    )
    session = inner.run(None, "--import-mode=importlib", "-W", "error", str(folder))
    session.result.assert_outcomes(passed=5)


def test_base_folder_holds_all_files(inner: Inner) -> None:
    inner.run("@ranks(2)\ndef test_it(tmp_path, shared_tmp_path): reduce()")
    base = inner.path / "runpytest-0"
    names = sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_dir())
    assert {"rank0", "rank1", "shared/test_it0", "rank0/test_it0", "rank1/test_it0"} <= set(names)
    assert not list(Path(inner.temporary).iterdir())


def test_the_first_cause_decides_the_phase(inner: Inner) -> None:
    # A rank fails in the test while a slower one is still in a fixture, and is woken there.
    session = inner.run(
        """
@pytest.fixture
def slow(world):
    if world.rank == 1:
        time.sleep(0.2)
        reduce()

@ranks(2)
def test_fails_first(world, slow):
    assert world.rank, "in the test"
""",
        "--junitxml=report.xml",
    )
    session.result.assert_outcomes(failed=1)
    session.match_failure(
        "test_fails_first",
        "___* test_fails_first (rank 0 of 2) _*",
        "E       AssertionError: in the test",
        "-* followed from it -*",
        "rank 1: test_inner.py:*: lost a peer (*)",
    )
    assert "followed from it" in (inner.path / "report.xml").read_text()


def test_wider_fixtures_are_set_up_again_after_a_subworld(inner: Inner) -> None:
    session = inner.run(
        """
@pytest.fixture(scope="module")
def group():
    return dist.new_group([0, 1])

@ranks(2)
def test_subworld(world, group):
    with world.subworld(1):
        pass

@ranks(2)
def test_after(world, group):
    dist.barrier(group)
"""
    )
    session.result.assert_outcomes(passed=2)


def test_nothing_else_makes_a_failure_pass(inner: Inner) -> None:
    session = inner.run(
        """
import unittest

@ranks(2)
def test_subtests(subtests, world):
    with subtests.test("a"):
        assert world.rank == 0

@ranks(2)
class TestCase(unittest.TestCase):
    def test_sub_test(self):
        with self.subTest("a"):
            self.assertEqual(1, 2)

@ranks(2)
def test_forks_a_child_that_returns(world):
    if os.fork() == 0:
        return
    time.sleep(0.3)
    assert False

@pytest.fixture
def mark(request):
    request.node.add_marker(ranks(2))

def test_mark_that_comes_late(mark):
    pass

@pytest.fixture(scope="module")
def wide():
    yield
    raise RuntimeError("of the wide fixture")

@ranks(2)
def test_passes_and_destroys_the_group(world, wide):
    dist.destroy_process_group()

@ranks(2)
def test_records(record_property):
    record_property("odd", {(1, 2): 3})

@ranks(2)
def test_healthy(world):
    assert world.gather(world.rank) == [0, 1]
"""
    )
    for name in ("test_subtests", "test_sub_test", "test_forks_a_child_that_returns"):
        assert session.status(name) == "failed"
    assert session.status("test_mark_that_comes_late") == "failed"
    session.match_failure("test_passes_and_destroys_the_group", "*of the wide fixture*")
    assert session.status("test_records") == session.status("test_healthy") == "passed"


def test_death_is_no_expected_failure(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2)
@pytest.mark.xfail
def test_dies(world):
    if world.rank == 1:
        os._exit(3)
    reduce()

@ranks(2)
@pytest.mark.xfail
def test_fails_as_expected(world):
    assert world.rank == 0
    reduce()
"""
    )
    session.result.assert_outcomes(failed=1, xfailed=1)
    session.match_failure("test_dies", "rank 1 ended with exit code 3")


def test_expected_failure_of_one_ranks_teardown(inner: Inner) -> None:
    session = inner.run(
        """
@pytest.fixture
def fails_late(world):
    yield
    assert world.rank == 0

@ranks(2)
@pytest.mark.xfail(reason="known")
def test_teardown(fails_late):
    assert False
"""
    )
    # As with pytest by itself, where call and teardown count.
    assert session.result.parseoutcomes() == {"xfailed": 2}
