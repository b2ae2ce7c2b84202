"""A test that fails in any way on any rank is told once, with its ranks; the next one passes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ._faults import FAULTS, source
from ._inner import Session


@pytest.fixture
def faults(once: Callable[..., Session]) -> Session:
    """The session of all faults."""
    return once(source(), "--durations=0", "-vv")


@pytest.mark.parametrize("name", FAULTS)
def test_the_next_test_passes(faults: Session, name: str) -> None:
    assert faults.status(f"test_healthy_after_{name}") == "passed"


# After these a rank was killed or dead, and had to be replaced.
REPLACING = {"hang", "kill", "exit", "exit_last", "segv", "stopped", "lock_held", "loop"}
REPLACING |= {"last_barrier", "late"}


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in REPLACING])
def test_the_next_test_is_not_held_up(faults: Session, name: str) -> None:
    phases = ("setup", "call", "teardown")
    assert sum(duration(faults, f"test_healthy_after_{name}", phase) for phase in phases) < 1


def test_exit_code_and_counts(faults: Session) -> None:
    assert faults.ret == pytest.ExitCode.TESTS_FAILED
    counts = faults.result.parseoutcomes()
    assert sum(count for noun, count in counts.items() if noun != "errors") == 2 * len(FAULTS) - 1
    assert counts["errors"] == 2


def test_assertion_on_one_rank(faults: Session) -> None:
    faults.match_failure(
        "test_assertion",
        "___* test_assertion (rank 1 of 4) _*",
        ">       assert world.rank != 1, *",
        "E       AssertionError: on one",
        "test_inner.py:*: AssertionError",
    )
    assert "followed" not in faults.failure("test_assertion")
    faults.stdout.fnmatch_lines(
        ["FAILED test_inner.py::test_assertion - rank 1: AssertionError: on one*"]
    )


def test_ranks_that_wait_are_woken_and_folded(faults: Session) -> None:
    faults.match_failure(
        "test_raise",
        "___* test_raise (rank 1 of 4) _*",
        "E           ValueError: mine alone",
        "-* followed from it -*",
        "rank*: test_inner.py:*: lost a peer (*)",
    )
    text = faults.failure("test_raise")
    assert followed_ranks(text) == {0, 2, 3}
    assert text.count("Error:") == text.count("ValueError:") == 1
    assert duration(faults, "test_raise") < 2


def test_killed_rank(faults: Session) -> None:
    faults.match_failure(
        "test_kill",
        "___* test_kill (rank 2 of 4) _*",
        "rank 2 was killed by SIGKILL (signal 9)",
        "-* followed from it -*",
    )
    text = faults.failure("test_kill")
    assert followed_ranks(text) == {0, 1, 3}
    assert "before on 2" in text
    faults.stdout.fnmatch_lines(["FAILED *::test_kill - rank 2 was killed by SIGKILL (signal 9)"])


def test_hang_says_who_waits_and_who_never_came(faults: Session) -> None:
    faults.match_failure(
        "test_hang",
        "___* test_hang (ranks 0-3 of 4) _*",
        "the test did not end within 1 s on ranks 0-3",
        "  ranks 0, 2-3 wait in all_reduce #2 of float32[[]7[]]",
        "  rank 1 never came to #2",
        "",
        "ranks 0, 2-3 [[]S (sleeping)[]], the innermost call first:",
        '  File "*distributed_c10d.py", line * in all_reduce',
        '  File "*test_inner.py", line * in reduce',
        '  File "*test_inner.py", line * in test_hang',
        "",
        "rank 1 [[]S (sleeping)[]], the innermost call first:",
        '  File "*test_inner.py", line * in test_hang',
    )
    text = faults.failure("test_hang")
    assert "_pytest" not in text
    assert "shardproof" not in text


def test_exit_of_the_process(faults: Session) -> None:
    faults.match_failure(
        "test_exit", "___* test_exit (rank 1 of 4) _*", "rank 1 ended with exit code 3"
    )
    assert followed_ranks(faults.failure("test_exit")) == {0, 2, 3}


def test_exit_0_with_nothing_to_wait_for_is_no_pass(faults: Session) -> None:
    faults.match_failure("test_exit_last", "rank 3 ended with exit code 0")
    assert "followed" not in faults.failure("test_exit_last")


def test_skip_on_one_rank_is_a_disagreement(faults: Session) -> None:
    faults.match_failure(
        "test_skip_one", "the ranks disagree: ranks 0, 2-3 passed; rank 1 skipped (not here)"
    )
    assert faults.status("test_skip_one") == "failed"


def test_skip_on_one_rank_wakes_the_others(faults: Session) -> None:
    faults.match_failure(
        "test_skip_one_while_others_wait",
        "the ranks disagree: ranks 0, 2-3 lost a peer; rank 1 skipped (not here)",
    )
    assert duration(faults, "test_skip_one_while_others_wait") < 2


def test_same_failure_is_printed_once(faults: Session) -> None:
    faults.match_failure("test_alike", "___* test_alike (ranks 0-3 of 4) _*")
    assert faults.failure("test_alike").count("E       assert") == 1
    faults.stdout.fnmatch_lines(["FAILED *::test_alike - ranks 0-3: assert *"])


def test_two_failures_are_told_first_cause_first(faults: Session) -> None:
    faults.match_failure(
        "test_two",
        "___* test_two (rank 3 of 4; also failed: rank 0) _*",
        "E           ValueError: first",
        "-* also failed: rank 0 -*",
        "E           KeyError: 'second'",
    )


def test_skip_on_all_ranks(faults: Session) -> None:
    assert faults.status("test_skip_all") == "skipped"
    faults.stdout.fnmatch_lines(["SKIPPED test_inner.py::test_skip_all - Skipped: nowhere"])


def test_xfail_with_one_rank_failing(faults: Session) -> None:
    assert faults.status("test_xfail") == "xfail"
    faults.stdout.fnmatch_lines(["XFAIL test_inner.py::test_xfail - known"])


def test_xfail_called_on_one_rank_is_a_disagreement(faults: Session) -> None:
    faults.match_failure(
        "test_xfail_alone", "the ranks disagree: ranks 0-1, 3 passed; rank 2 xfailed*"
    )


def test_strict_xpass(faults: Session) -> None:
    assert faults.status("test_xpass_strict") == "failed"
    faults.match_failure(
        "test_xpass_strict", "___* test_xpass_strict* _*", "[[]XPASS(strict)[]] known"
    )


def test_error_in_setup(faults: Session) -> None:
    assert faults.status("test_setup") == "error"
    faults.match_failure(
        "test_setup",
        "___* ERROR at setup of test_setup (rank 2 of 4) _*",
        "E           OSError: no file",
        "-* followed from it -*",
    )
    assert followed_ranks(faults.failure("test_setup")) == {0, 1, 3}
    faults.stdout.fnmatch_lines(["ERROR *::test_setup - rank 2: OSError: no file"])


def test_error_in_teardown(faults: Session) -> None:
    assert sorted(faults.status("test_teardown").split(", ")) == ["error", "passed"]
    faults.match_failure(
        "test_teardown",
        "___* ERROR at teardown of test_teardown (rank 0 of 4) _*",
        "E           OSError: not closed",
    )


def test_sys_exit_0_is_a_failure(faults: Session) -> None:
    faults.match_failure(
        "test_sys_exit", "___* test_sys_exit (rank 1 of 4) _*", "E           SystemExit: 0"
    )
    assert followed_ranks(faults.failure("test_sys_exit")) == {0, 2, 3}


def test_fatal_signal_tells_the_stack(faults: Session) -> None:
    faults.match_failure(
        "test_segv",
        "___* test_segv (rank 0 of 4) _*",
        "rank 0 was killed by SIGSEGV (signal 11), the innermost call first:",
        '  File "*ctypes/__init__.py", line * in string_at',
        '  File "*test_inner.py", line * in test_segv',
    )


def test_stopped_process_is_told_by_the_kernel(faults: Session) -> None:
    faults.match_failure(
        "test_stopped",
        "  rank 0 waits in all_reduce #* of float32[[]4[]]",
        "  rank 1 never came to #*",
        "rank 1 [[]T (stopped)[]] gave no stack",
    )


def test_held_lock_of_the_interpreter_still_gives_a_stack(faults: Session) -> None:
    faults.match_failure(
        "test_lock_held",
        "  rank 0 waits in all_reduce #* of float32[[]4[]]",
        "  rank 1 never came to #*",
        "rank 1 [[]R (running)[]], the innermost call first:",
        '  File "*test_inner.py", line * in test_lock_held',
    )


def test_endless_loop(faults: Session) -> None:
    faults.match_failure(
        "test_loop",
        "the test did not end within 1 s on ranks 0-1",
        "  rank 0 waits in all_reduce #* of float32[[]4[]]",
        "  rank 1 never came to #*",
        "rank 1 [[]R (running)[]], the innermost call first:",
        '  File "*test_inner.py", line * in test_loop',
    )


def test_rank_that_never_comes_to_the_last_barrier(faults: Session) -> None:
    faults.match_failure(
        "test_last_barrier",
        "___* test_last_barrier (ranks 0, 2 of 3) _*",
        "the test did not end within 1 s on ranks 0, 2",
        "  ranks 0, 2 wait in barrier #*",
        "  rank 1 had finished the test",
    )


def test_exception_that_cannot_be_pickled(faults: Session) -> None:
    faults.match_failure(
        "test_unpicklable",
        "___* test_unpicklable (rank 1 of 4) _*",
        "E           test_inner.Unpicklable: it holds a lock",
    )
    assert followed_ranks(faults.failure("test_unpicklable")) == {0, 2, 3}


def test_value_whose_repr_raises(faults: Session) -> None:
    faults.match_failure(
        "test_without_repr",
        "___* test_without_repr (ranks 0-3 of 4) _*",
        "E       AssertionError: assert <[[]RuntimeError('no words') raised in repr()[]] *",
    )


def test_test_that_ends_while_evidence_is_taken_is_late(faults: Session) -> None:
    assert faults.status("test_late") == "failed"
    faults.match_failure("test_late", "the test did not end within 1 s on ranks 0-1")


def test_exception_without_words(faults: Session) -> None:
    faults.match_failure("test_unprintable", "___* test_unprintable (rank 1 of 4) _*")
    assert followed_ranks(faults.failure("test_unprintable")) == {0, 2, 3}


def test_ranks_that_swallow_the_error_have_passed(faults: Session) -> None:
    faults.match_failure(
        "test_swallows", "___* test_swallows (rank 1 of 4) _*", "E           ValueError: mine alone"
    )


def followed_ranks(text: str) -> set[int]:
    """Return the ranks that the section 'followed from it' names as having lost a peer."""
    section = text.partition("followed from it")[2]
    found: set[int] = set()
    for names in re.findall(
        r"^ranks? ([\d, -]+): (?:\S+:\d+: )?lost a peer", section, re.MULTILINE
    ):
        for span in names.split(", "):
            first, _, last = span.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def duration(session: Session, name: str, phase: str = "call") -> float:
    """Return the seconds that the session says for a phase of a test."""
    found = re.search(rf"^(\S+)s {phase} +\S+::{name}$", session.text, re.MULTILINE)
    assert found, f"no duration of {name}"
    return float(found[1])
