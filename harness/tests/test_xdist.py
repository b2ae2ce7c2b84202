"""With pytest-xdist each worker has ranks of its own, and tells of them as without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from ._inner import Inner

TESTS = """
WORKER = os.environ.get("PYTEST_XDIST_WORKER")

def keep(world, name):
    Path(os.environ["KEPT"], f"{name}.{world.rank}").write_text(f"{WORKER} {os.getpid()}")

@ranks(2)
@pytest.mark.parametrize("number", range(8))
def test_passes(world, number, tmp_path, shared_tmp_path):
    keep(world, number)
    assert reduce() == [2.0] * 4
    assert WORKER in str(tmp_path)
    assert world.gather(WORKER) == [WORKER] * 2

@ranks(2)
def test_fails(world):
    print("printed", world.rank)
    if world.rank == 1:
        raise ValueError("mine alone")
    reduce()

@ranks(2)
def test_dies(world):
    if world.rank == 1:
        os._exit(3)
    reduce()

@ranks(2)
def test_disagrees(world):
    if world.rank == 1:
        pytest.skip("not here")

@ranks(2)
def test_is_skipped():
    pytest.skip("nowhere")

@ranks(2)
def test_warns():
    warnings.warn("of mine", UserWarning)

class Odd(UserWarning):
    def __init__(self, text, other):
        super().__init__(text)

@ranks(2)
def test_leaves_something(world):
    if world.rank == 1:
        torch.set_default_dtype(torch.float64)
    warnings.warn(Odd("of its own", 1))

def test_ordinary():
    assert WORKER
    assert not dist.is_initialized()

def one():
    return os.environ.get("PYTEST_XDIST_WORKER")

def test_launch(launch):
    assert launch(one, world_size=2) == [WORKER] * 2
"""


def test_two_workers(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = inner.path / "kept"
    kept.mkdir()
    monkeypatch.setenv("KEPT", str(kept))
    session = inner.run(TESTS, "-n2", "-v")
    session.result.assert_outcomes(passed=12, failed=3, skipped=1, warnings=3)
    session.stdout.fnmatch_lines_random(
        ["*: LeakWarning: the test has left on rank 1 of 2: *", "*: UserWarning: Odd: of its own"]
    )
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    session.match_failure(
        "test_fails",
        "___* test_fails (rank 1 of 2) _*",
        "*[[]gw?[]]*",
        "E           ValueError: mine alone",
        "-* followed from it -*",
        "rank 0: test_inner.py:*: lost a peer (*)",
        "-* Captured stdout call (rank 0) -*",
        "printed 0",
    )
    session.match_failure("test_dies", "rank 1 ended with exit code 3")
    session.match_failure(
        "test_disagrees", "the ranks disagree: rank 0 passed; rank 1 skipped (not here)"
    )
    pids: dict[str, set[str]] = {}
    for path in kept.iterdir():
        worker, pid = path.read_text().split()
        pids.setdefault(worker, set()).add(pid)
    assert set(pids) == {"gw0", "gw1"}
    assert not pids["gw0"] & pids["gw1"]


def test_worker_that_crashes_takes_its_ranks_along(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2)
def test_before(world):
    reduce()

def test_crashes():
    os._exit(1)

@ranks(2)
def test_after(world):
    assert reduce() == [2.0] * 4
""",
        "-n1",
    )
    session.stdout.fnmatch_lines(["*worker 'gw0' crashed while running*test_crashes*"])
    session.result.assert_outcomes(passed=2, failed=1)


HANGS = """
@ranks(2)
def test_hangs(world):
    worker = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    subprocess.Popen(["setsid", "sleep", "600"])
    world.barrier()
    if world.rank == 0:
        Path("written").write_text(worker)
        Path("written").rename("worker")
    ctypes.PyDLL(None).sleep(600)

@ranks(2)
@pytest.mark.parametrize("number", range(3))
def test_passes(world, number):
    assert reduce() == [2.0] * 4
"""


def test_worker_killed_while_its_ranks_hang_is_told_at_once(inner: Inner) -> None:
    inner.write(test_inner=HANGS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n2", "-v"]
    command.append(f"--basetemp={inner.path / 'base'}")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=inner.path,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        worker, deadline = inner.path / "worker", time.monotonic() + 60
        while not worker.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline, "the test does not hang"
            time.sleep(0.02)
        os.kill(int(worker.read_text()), signal.SIGKILL)
        began = time.monotonic()
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "node down" in line:
                break
        took = time.monotonic() - began
        rest, _ = process.communicate(timeout=60)
    assert took < 2, lines
    output = pytest.LineMatcher([*"".join(lines).splitlines(), *rest.splitlines()])
    output.fnmatch_lines(
        [
            "[[]gw?[]] node down: Not properly terminated",
            "worker 'gw?' crashed while running 'test_inner.py::test_hangs'",
            "*1 failed, 3 passed in *",
        ]
    )
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    inner.nothing_left()
