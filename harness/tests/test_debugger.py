"""One rank has the terminal for its debugger, and no deadline runs for as long as it takes."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest

from ._inner import PRELUDE, Inner
from ._typist import BACKGROUND, INTO_A_PIPE, WITHOUT_INPUT, Typist

HEALTHY = """
@ranks(4)
def test_healthy(world):
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    assert reduce() == [4.0] * 4
"""

FAILS = (
    """
@ranks(4, timeout=2)
def test_fails(world):
    print("of rank", world.rank)
    mine = 40 + world.rank
    if world.rank == 2:
        raise ValueError("mine alone")
    reduce()

@ranks(4, timeout=2)
@pytest.mark.xfail(strict=True)
def test_fails_as_expected(world):
    assert world.rank != 2
    reduce()
"""
    + HEALTHY
)


def given(inner: Inner, source: str, *args: str, **kwargs: Any) -> Typist:
    """Start a session on these tests."""
    inner.write(test_inner=source)
    return Typist(inner, *args, **kwargs)


def line_of(words: str, source: str) -> int:
    """Return the number that the first line with these words has in the file."""
    return (PRELUDE + source).partition(words)[0].count("\n") + 1


def who(typist: Typist) -> tuple[int, int, str]:
    """Wait until a rank has the terminal; return the rank, the world size and the test."""
    shown = typist.see(" has the terminal; no deadline runs\n")
    match = re.search(r"^rank (\d) of (\d) \((.*)\) has", shown, re.MULTILINE)
    assert match is not None
    return int(match[1]), int(match[2]), match[3]


def test_failing_rank_shows_its_frame_while_no_clock_runs(inner: Inner) -> None:
    with given(inner, FAILS, "--pdb") as typist:
        assert who(typist) == (2, 4, "test_fails")
        shown = typist.see("(Pdb) ")
        assert "of rank 2" in shown
        assert "E           ValueError: mine alone" in shown
        assert "\n(2, 42)\n" in typist.answer("p world.rank, mine")
        assert f"test_inner.py({line_of('raise', FAILS)})test_fails()" in typist.answer("w")
        assert str(typist.foreground) in typist.answer("p os.getpid()")
        assert typist.foreground != typist.leader
        time.sleep(4)
        assert "True" in typist.answer("p dist.is_initialized()")
        typist.type("c")
        typist.see("rank 2 gives the terminal back")
        typist.see("ranks 0-1, 3: test_inner.py:*: lost a peer".partition("*")[0])
    assert typist.ret == pytest.ExitCode.TESTS_FAILED
    assert typist.outcomes() == {"failed": 1, "xfailed": 1, "passed": 1}
    assert "did not end within" not in typist.text
    assert typist.text.count("has the terminal") == 1


def test_output_into_a_pipe_goes_to_the_terminal_in_the_debugger(inner: Inner) -> None:
    with given(inner, FAILS, "--pdb", command=INTO_A_PIPE) as typist:
        assert who(typist) == (2, 4, "test_fails")
        assert "E           ValueError: mine alone" in typist.see("(Pdb) ")
        typist.type("c")
    assert typist.outcomes() == {"failed": 1, "xfailed": 1, "passed": 1}


def test_one_of_two_failing_ranks_is_looked_at_and_both_are_told(inner: Inner) -> None:
    source = """
@ranks(3, timeout=2)
def test_fails(world):
    if world.rank:
        raise ValueError(f"of {world.rank}")
    reduce()
"""
    with given(inner, source + HEALTHY, "--pdb") as typist:
        rank, _, _ = who(typist)
        typist.see("(Pdb) ")
        time.sleep(2.5)
        typist.type("c")
    assert rank in (1, 2)
    assert typist.text.count("has the terminal") == 1
    assert {"E           ValueError: of 1", "E           ValueError: of 2"} <= set(
        typist.text.splitlines()
    )
    assert "did not end within" not in typist.text
    assert typist.outcomes() == {"failed": 1, "passed": 1}


def test_setup_and_teardown_are_looked_at_too(inner: Inner) -> None:
    source = """
@pytest.fixture
def breaks(world, request):
    assert request.param != "setup" or world.rank != 1
    yield
    assert world.rank != 1

@ranks(2, timeout=2)
@pytest.mark.parametrize("breaks", ["setup", "teardown"], indirect=True)
def test_fixture(breaks):
    reduce()
"""
    with given(inner, source + HEALTHY, "--pdb") as typist:
        for phase in ("setup", "teardown"):
            assert who(typist) == (1, 2, f"test_fixture[{phase}]")
            typist.see("(Pdb) ")
            assert f"'{phase}'" in typist.answer("p request.param")
            typist.type("c")
    assert typist.outcomes() == {"errors": 2, "passed": 2}


def test_chosen_rank_is_looked_at_when_it_has_lost_its_peer(inner: Inner) -> None:
    with given(inner, FAILS, "--pdb", "--ranks-pdb=1") as typist:
        assert who(typist) == (1, 4, "test_fails")
        assert "Connection closed by peer" in typist.see("(Pdb) ")
        typist.type("c")
        typist.see("ValueError: mine alone")
    assert typist.text.count("has the terminal") == 1
    assert typist.outcomes() == {"failed": 1, "xfailed": 1, "passed": 1}


BREAKS = (
    """
@ranks(4, timeout=2)
def test_breaks(world, capfd):
    for turn in range(2):
        one = torch.ones(3)
        print("before")
        breakpoint()
        dist.all_reduce(one)
        print("after")
        assert one.tolist() == [4.0] * 3
    assert capfd.readouterr().out == "before\\nafter\\n" * 2

@ranks(4)
def test_sets_trace(world):
    print("said")
    pytest.set_trace(header="of mine")
    assert reduce() == [4.0] * 4
"""
    + HEALTHY
)


@pytest.mark.parametrize("option", ["--capture=fd", "--capture=sys", "--capture=no"])
def test_breakpoint_on_all_ranks_stops_one(inner: Inner, option: str) -> None:
    with given(inner, BREAKS, option) as typist:
        first = who(typist)
        typist.see("(Pdb) ")
        time.sleep(2.5)
        typist.type("c")
        assert who(typist) == first  # not one that was late
        typist.see("(Pdb) ")
        # The peers have gone on: a collective can be stepped over.
        after = line_of('print("after")', BREAKS)
        assert '-> print("after")' in typist.answer(f"until {after}")
        assert "tensor([4., 4., 4.])" in typist.answer("one")
        typist.answer(f"b {line_of('assert one', BREAKS)}")
        typist.type("c")
        assert who(typist) == first  # at the debugger's own
        assert "-> assert one.tolist()" in typist.see("(Pdb) ")
        typist.type("c")
        rank, _, name = who(typist)
        assert name == "test_sets_trace"
        assert (f"[rank {rank}] said" in typist.text) == (option == "--capture=no")
        assert "of mine" in typist.see("(Pdb) ")
        assert f"\n{rank}\n" in typist.answer("p world.rank")
        typist.type("c")
    assert typist.text.count("has the terminal") == 4
    assert typist.outcomes() == {"passed": 3}
    assert typist.ret == 0


TRACED = """
import unittest

@ranks(2, timeout=2)
def test_function(world):
    value = world.rank
    reduce()

@ranks(2, timeout=2)
class TestCase(unittest.TestCase):
    def test_method(self):
        reduce()
"""


@pytest.mark.parametrize(("chosen", "args"), [(0, []), (1, ["--ranks-pdb=1"])])
def test_trace_begins_each_test_on_one_rank(inner: Inner, chosen: int, args: list[str]) -> None:
    with given(inner, TRACED, "--trace", *args) as typist:
        assert who(typist) == (chosen, 2, "test_function")
        assert "-> value = world.rank" in typist.see("(Pdb) ")
        assert "-> reduce()" in typist.answer("n")
        assert f"\n{chosen}\n" in typist.answer("p value")
        assert "--Return--" in typist.answer("n")  # over the collective
        typist.type("c")
        assert who(typist) == (chosen, 2, "test_method")
        assert "-> reduce()" in typist.see("(Pdb) ")
        time.sleep(2.5)
        typist.type("c")
    assert typist.outcomes() == {"passed": 2}


def test_stepping_off_the_end_of_a_test_gives_the_terminal_back(inner: Inner) -> None:
    source = """
@ranks(2, timeout=1)
def test_hangs(world):
    if world.rank:
        time.sleep(600)
"""
    with given(inner, source, "--trace") as typist:
        typist.see("(Pdb) ")
        assert "--Return--" in typist.answer("n")
        typist.type("n")
        typist.see("the test did not end within 1 s on rank 1")
    assert typist.outcomes() == {"failed": 1}


def test_quitting_after_a_failure_ends_the_session(inner: Inner) -> None:
    with given(inner, FAILS, "--pdb") as typist:
        typist.see("(Pdb) ")
        typist.type("q")
        typist.see("Exit: Quitting debugger")
    assert typist.ret == pytest.ExitCode.INTERRUPTED
    assert typist.outcomes() == {"failed": 1}


@pytest.mark.parametrize("args", [[], ["--trace"]])
def test_quitting_at_a_breakpoint_is_no_failure(inner: Inner, args: list[str]) -> None:
    with given(inner, BREAKS, *args) as typist:
        typist.see("(Pdb) ")
        typist.type("q")
        typist.see("Exit: Quitting debugger")
    assert typist.ret == pytest.ExitCode.INTERRUPTED
    assert typist.outcomes() == {}


def test_rank_that_dies_gives_the_terminal_back(inner: Inner) -> None:
    with given(inner, BREAKS) as typist:
        rank, _, _ = who(typist)
        typist.see("(Pdb) ")
        os.kill(typist.foreground, signal.SIGKILL)
        typist.see(f"\nrank {rank} was killed by SIGKILL (signal 9)\n")
        who(typist)
        typist.see("(Pdb) ")
        typist.type("time.sleep(600)")
        time.sleep(0.5)
        typist.press("\\")
        typist.see(" was killed by SIGQUIT (signal 3)\n")
    assert typist.outcomes() == {"failed": 2, "passed": 1}
    assert typist.text.count("has the terminal") == 2


def test_keys_at_the_prompt(inner: Inner) -> None:
    with given(inner, BREAKS.replace("range(2)", "range(1)")) as typist:
        typist.see("(Pdb) ")
        time.sleep(0.5)  # until readline waits; Python loses what comes just before
        typist.press("C")
        assert "--KeyboardInterrupt--" in typist.see("(Pdb) ")
        typist.press("Z")  # no shell would continue the rank
        assert "\n4\n" in typist.answer("p 2 + 2")
        typist.answer("import time")
        typist.type("time.sleep(600)")
        time.sleep(0.5)
        typist.press("C")
        typist.see("(Pdb) ")
        typist.press("D")
        typist.see("(Pdb) ")  # in the next test
        typist.type("c")
    assert typist.text.count("has the terminal") == 2
    assert "BdbQuit" in typist.text  # as pytest reports it


def test_interrupt_after_continue_ends_the_session(inner: Inner) -> None:
    source = """
@ranks(2)
def test_waits(world):
    breakpoint()
    time.sleep(600)

@ranks(2)
def test_never():
    pass
"""
    with given(inner, source) as typist:
        typist.see("(Pdb) ")
        typist.type("c")
        typist.see("gives the terminal back")
        deadline = time.monotonic() + 10
        while typist.foreground != typist.leader:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        typist.press("C")
        typist.see("KeyboardInterrupt")
    assert typist.ret == pytest.ExitCode.INTERRUPTED
    assert typist.outcomes() == {}


def test_killed_zygote_takes_the_rank_from_its_prompt(inner: Inner) -> None:
    with given(inner, BREAKS) as typist:
        typist.see("(Pdb) ")
        typist.type("os.kill(os.getppid(), signal.SIGKILL)")
        typist.see("has the terminal")  # of a rank of the next test, from a new zygote
        typist.see("(Pdb) ")
        typist.type("q")
        typist.see("the zygote, which ranks are forked from, was killed by SIGKILL (signal 9)")
    assert typist.ret != 0


def test_debugger_of_another_class(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    (inner.path / "mine.py").write_text(
        "import pdb\n\nclass Mine(pdb.Pdb):\n"
        "    def __init__(self):\n        super().__init__()\n        self.prompt = '(mine) '\n"
    )
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{inner.path}{os.pathsep}{inherited}".rstrip(os.pathsep))
    with given(inner, FAILS, "--pdb", "--pdbcls=mine:Mine") as typist:
        typist.see("(mine) ")
        assert "(2, 42)" in typist.answer("p world.rank, mine", "(mine) ")
        typist.type("c")
    assert typist.outcomes() == {"failed": 1, "xfailed": 1, "passed": 1}


LAUNCHES = """
from shardproof import current_world

def function():
    mine = current_world().rank
    breakpoint()
    reduce()
    return mine

def test_launches(launch):
    print("before")
    assert launch(function, world_size=2, timeout=2) == [0, 1]

def test_launches_again(launch):
    launch(function, world_size=2, timeout=2)

def test_never():
    pass
"""


def test_breakpoint_in_a_launched_function(inner: Inner) -> None:
    with given(inner, LAUNCHES) as typist:
        rank, size, name = who(typist)
        assert (size, name) == (2, "function")
        typist.see("(Pdb) ")
        assert f"\n{rank}\n" in typist.answer("p mine")
        time.sleep(2.5)
        typist.type("c")
        who(typist)
        typist.see("(Pdb) ")
        typist.type("q")
        typist.see("Exit: Quitting debugger")
    assert typist.ret == pytest.ExitCode.INTERRUPTED
    assert typist.outcomes() == {"passed": 1}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (WITHOUT_INPUT, "standard input is not a terminal"),
        (BACKGROUND, "pytest runs in the background"),
    ],
)
def test_no_debugger_where_the_terminal_is_not_for_pytest(
    inner: Inner, command: str, reason: str
) -> None:
    with given(inner, FAILS + BREAKS, "--pdb", "--trace", command=command) as typist:
        typist.see(f"Failed: no debugger: ranks have no terminal here ({reason})")
    assert "has the terminal" not in typist.text
    assert typist.outcomes() == {"failed": 3, "xfailed": 1, "passed": 1}


@pytest.mark.parametrize("args", [[], ["-n", "2"], ["--ranks-pdb", "1"]])
def test_breakpoint_without_a_terminal_fails_at_once(inner: Inner, args: list[str]) -> None:
    session = inner.run(
        """
@ranks(2)
def test_breaks(world):
    breakpoint()
    reduce()

def function():
    breakpoint()

def test_launches(launch):
    launch(function, world_size=2)
"""
        + HEALTHY,
        *args,
    )
    session.result.assert_outcomes(failed=2, passed=1)
    who = "rank 1 of 2" if args[:1] == ["--ranks-pdb"] else "ranks 0-1 of 2"
    for name in ("test_breaks", "test_launches"):
        session.match_failure(
            name,
            "E*Failed*: no debugger: ranks have no terminal here (standard input is not a "
            "terminal). Run pytest in the foreground of a terminal, without a pipe into it and "
            "without -n, or remove the breakpoint.",
        )
    session.match_failure("test_breaks", f"___* test_breaks ({who}) _*", ">       breakpoint()")


def test_only_the_main_thread_of_a_rank_can_ask(inner: Inner) -> None:
    session = inner.run(
        """
def breaks(said):
    try:
        breakpoint()
    except BaseException as error:
        said.append(str(error))

@ranks(2)
def test_thread():
    said = []
    thread = threading.Thread(target=breaks, args=(said,))
    thread.start()
    thread.join()
    assert "only the main thread of a rank" in said[0]

@ranks(2)
def test_child():
    child = os.fork()
    if child == 0:
        said = []
        breaks(said)
        os._exit(0 if "nor a process that the rank has started" in said[0] else 1)
    assert os.waitpid(child, 0)[1] == 0
"""
    )
    session.result.assert_outcomes(passed=2)


def test_rank_that_is_chosen_has_to_be_one(inner: Inner) -> None:
    session = inner.run("", "--ranks-pdb=-1")
    assert session.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(["ERROR: --ranks-pdb wants a rank, counted from 0, got -1"])
