"""However a session ends, its ranks end with it, and it says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ._inner import Inner, nothing_left, processes


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
    inside = inner.path / "inside"
    inside.mkdir()
    os.environ["INSIDE"] = str(inside)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    command.append(f"--basetemp={inner.path / 'base'}")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=inner.path
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while len(list(inside.iterdir())) < 2:
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


def test_interrupt_ends_everything(inner: Inner) -> None:
    with running(inner, WAITS) as process:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    pytest.LineMatcher(output.splitlines()).fnmatch_lines(["!* KeyboardInterrupt !*"])
    nothing_left(inner.token, inner.temporary)
    assert store_is_gone(inner)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_the_session_that_is_killed(inner: Inner, signum: int) -> None:
    with running(inner, WAITS) as process:
        assert len(processes(inner.token)) >= 4
        process.send_signal(signum)
        process.wait(timeout=10)
        nothing_left(inner.token, inner.temporary, within=2)
        assert store_is_gone(inner)


def test_killed_zygote_is_told(inner: Inner) -> None:
    session = inner.run(
        STORE
        + """
@ranks(2)
def test_kills_its_parent(world):
    reduce()
    world.barrier()
    Path(os.environ["HOME"], "store").write_text(str(store_folder()))
    world.barrier()
    if world.rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1)

@ranks(2)
def test_after(world):
    reduce()

def test_ordinary():
    pass
""",
        timeout=40,
    )
    assert session.ret != 0
    assert "passed" not in session.status("test_kills_its_parent")
    assert "the zygote ended" in session.text + session.result.stderr.str()
    assert "INTERNALERROR" not in session.text
    assert store_is_gone(inner)
