"""However a session ends, its ranks end with it, and it says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ._inner import Inner, processes


def test_pytest_exit_on_a_rank_ends_the_session(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2)
def test_exits(world):
    if world.rank == 1:
        pytest.exit("enough", returncode=7)
    reduce()

@ranks(2)
def test_never():
    pass
"""
    )
    assert session.ret == 7
    session.stdout.fnmatch_lines(["!* _pytest.outcomes.Exit: enough !*"])
    assert session.status("test_never") == ""


def test_keyboard_interrupt_on_a_rank_is_its_failure(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2)
def test_interrupts(world):
    if world.rank == 1:
        raise KeyboardInterrupt
    reduce()
"""
    )
    assert session.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    assert "passed" not in session.result.parseoutcomes()


@contextmanager
def running(inner: Inner, source: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Start a session, and wait until its ranks are inside of the test."""
    inner.write(test_inner=source)
    ranks = 4 if "-n2" in args else 2
    inside = inner.path / "inside"
    inside.mkdir()
    os.environ["INSIDE"] = str(inside)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    command.append(f"--basetemp={inner.path / 'base'}")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=inner.path,
        start_new_session=True,  # its group then is what a terminal's Ctrl-C would go to
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while len(list(inside.iterdir())) < ranks:
                assert process.poll() is None
                assert time.monotonic() < deadline, "no ranks"
                time.sleep(0.02)
            yield process
        finally:
            del os.environ["INSIDE"]
            process.kill()


# Where the ranks rendezvous is a folder outside of TMPDIR: in memory.
STORE = """
def store_folder():
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return Path(store.path).parent
"""

WAITS = (
    STORE
    + """
@ranks(2)
def test_waits(world):
    Path(os.environ["HOME"], "store").write_text(str(store_folder()))
    subprocess.Popen(["setsid", "sleep", "600"])
    Path(os.environ["INSIDE"], str(world.rank)).touch()
    time.sleep(600)
"""
)


def store_is_gone(inner: Inner) -> bool:
    """Say whether the folder that a test has written the name of is gone."""
    folder = Path((inner.path / "store").read_text())
    assert folder.is_absolute()
    return not folder.exists()


# On each of two workers, if there are two.
WAIT = (
    STORE
    + """
@ranks(2)
@pytest.mark.parametrize("number", range(2))
def test_waits(world, number):
    Path(os.environ["HOME"], "store").write_text(str(store_folder()))
    subprocess.Popen(["setsid", "sleep", "600"])
    Path(os.environ["INSIDE"], f"{number}-{world.rank}").touch()
    time.sleep(600)
"""
)


def to_the_process(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def to_the_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def twice(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("options", [(), ("-n2",)], ids=["alone", "n2"])
@pytest.mark.parametrize("interrupt", [to_the_process, to_the_group, twice])
def test_interrupt_ends_everything(
    inner: Inner,
    options: tuple[str, ...],
    interrupt: Callable[[subprocess.Popen[str]], None],
) -> None:
    with running(inner, WAIT, *options) as process:
        began = time.monotonic()
        interrupt(process)
        output, _ = process.communicate(timeout=20)
        took = time.monotonic() - began
    inner.nothing_left(within=max(0.0, 2 - took))
    if not options:
        assert took < 2  # xdist waits longer for its workers, whatever they run
    assert store_is_gone(inner)
    if interrupt is twice and process.returncode == -signal.SIGINT:
        return  # the second one came while pytest or xdist did its own tidying up
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    lines = pytest.LineMatcher(output.splitlines())
    if not options and interrupt is not twice:  # xdist's workers have no terminal
        lines.fnmatch_lines(
            [
                "*::test_waits[[]0[]] was interrupted after * s on ranks 0-1",
                "ranks 0-1 [[]S (sleeping)[]], the innermost call first:",
                "  File *, line * in test_waits",
            ]
        )
    lines.fnmatch_lines(["!* KeyboardInterrupt !*", "*no tests ran in *"])


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_the_session_that_is_killed(inner: Inner, signum: int) -> None:
    with running(inner, WAITS) as process:
        assert len(processes(inner.token)) >= 4
        process.send_signal(signum)
        process.wait(timeout=10)
        inner.nothing_left(within=2)
        assert store_is_gone(inner)


KILLS_ITS_ZYGOTE = """
@ranks(2)
def test_kills_its_zygote{number}(world):
    reduce()
    subprocess.Popen(["sleep", "600"])
    world.barrier()
    Path(os.environ["HOME"], "store").write_text(str(store_folder()))
    world.barrier()
    if world.rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)

@ranks(2)
def test_after{number}(world):
    assert reduce() == [2.0] * 4

def reduces{number}():
    return reduce(1)

def test_launch_after{number}(launch):
    assert launch(reduces{number}, world_size=2) == [[2.0]] * 2
"""
LOSS = (
    "the zygote, which ranks are forked from, was killed by SIGKILL (signal 9), as the kernel does "
    "when memory runs out"
)


def test_killed_zygote_is_told_and_replaced(inner: Inner) -> None:
    session = inner.run(STORE + KILLS_ITS_ZYGOTE.format(number=""))
    session.result.assert_outcomes(passed=2, errors=1)
    session.match_failure(
        "test_kills_its_zygote", "_* ERROR at setup of test_kills_its_zygote _*", LOSS
    )
    assert store_is_gone(inner)


def test_zygote_killed_between_tests_costs_none(inner: Inner) -> None:
    session = inner.run(
        """
ZYGOTE = Path(os.environ["HOME"], "zygote")

@ranks(2)
def test_before(world):
    ZYGOTE.write_text(str(os.getppid()))

def test_kills():
    os.kill(int(ZYGOTE.read_text()), signal.SIGKILL)
    os.waitid(os.P_PID, int(ZYGOTE.read_text()), os.WEXITED | os.WNOWAIT)

@ranks(2)
def test_after(world):
    assert reduce() == [2.0] * 4
    assert ZYGOTE.read_text() != str(os.getppid())
"""
    )
    session.result.assert_outcomes(passed=3)


def test_third_lost_zygote_is_the_last(inner: Inner) -> None:
    source = "".join(KILLS_ITS_ZYGOTE.format(number=number) for number in range(3))
    session = inner.run(STORE + source + "\ndef test_ordinary():\n    pass\n")
    session.result.assert_outcomes(passed=5, failed=1, errors=4)
    told = (
        f"nothing runs on ranks any more, as 3 zygotes were lost; of the last one is known: {LOSS}"
    )
    session.match_failure("test_after2", told)
    session.match_failure("test_launch_after2", f"E *StartError: {told}")
    assert session.status("test_ordinary") == "passed"
    assert store_is_gone(inner)


DIES_LATE = """
PIDS = Path(os.environ["HOME"])

@ranks(3)
def test_before(world):
    (PIDS / f"pid{world.rank}").write_text(str(os.getpid()))
    reduce()

def test_kills():
    pid = int((PIDS / "pid1").read_text())
    os.kill(pid, signal.SIGSEGV)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
"""


def test_rank_that_dies_between_tests_is_told_with_the_test_before(inner: Inner) -> None:
    session = inner.run(
        DIES_LATE
        + """
@ranks(3)
def test_after(world):
    same = (PIDS / f"pid{world.rank}").read_text() == str(os.getpid())
    assert world.gather(same) == [True, False, True]
"""
    )
    session.result.assert_outcomes(passed=3, warnings=1)
    session.stdout.fnmatch_lines(
        [
            "test_inner.py::test_before",
            "  test_inner.py:*: PytestWarning: rank 1 was killed by SIGSEGV (signal 11) after "
            "test_inner.py::test_before had ended*",
        ]
    )


def test_rank_that_dies_after_the_last_test_is_told(inner: Inner) -> None:
    session = inner.run(DIES_LATE, "-W", "error")
    session.result.assert_outcomes(passed=2, warnings=1)
    session.stdout.fnmatch_lines(
        ["*PytestWarning: rank 1 was killed by SIGSEGV (signal 11) after *"]
    )


def test_fixture_that_fails_when_the_session_is_cut_short_is_told(inner: Inner) -> None:
    session = inner.run(
        """
@pytest.fixture(scope="session")
def wide(world):
    yield
    raise OSError("not closed")

@ranks(2)
def test_before(wide):
    pass

def test_fails():
    assert False

@ranks(2)
def test_never(wide):
    pass
""",
        "-x",
        "-Werror",
    )
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    session.result.assert_outcomes(passed=1, failed=1, warnings=2)
    for rank in range(2):
        session.stdout.fnmatch_lines(
            [f"*PytestWarning: ending fixtures on ranks: rank {rank}: OSError: not closed"]
        )
