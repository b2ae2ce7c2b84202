"""Ranks that can't be forked from the pytest process are started otherwise, and work the same."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from shardproof import _linux

from ._inner import Inner, Session

# Leaves a pool of OpenMP's threads in the process, with which no fork can work in parallel.
DIRT = "DIRT = torch.ones(200, 200) @ torch.ones(200, 200)\n"
PARALLEL = """
@ranks(2)
def test_in_parallel(world):
    torch.set_num_threads(2)
    try:
        assert torch.ones(2_000_000).add_(1).sum() == 4_000_000
        value = torch.ones(200_000, requires_grad=True)
        (value * 2).sum().backward()
        assert reduce() == [2.0] * 4
    finally:
        torch.set_num_threads(1)
"""


def line(how: str) -> str:
    """Return the pattern of the line that tells what ranks run on."""
    return f"ranks: world 4, gloo, {how}, cpu, torch *"


@pytest.mark.usefixtures("forks")
def test_clean_session_is_forked(inner: Inner) -> None:
    session = inner.run("import numpy\n\nSMALL = torch.ones(3).sum()\n" + PARALLEL)
    session.stdout.fnmatch_lines([line("fork")])
    session.result.assert_outcomes(passed=1)


@pytest.mark.usefixtures("forks")
def test_module_that_ran_tensor_work_is_named(inner: Inner) -> None:
    inner.write(test_a="import numpy\n" + PARALLEL, test_b=DIRT + PARALLEL, test_c=DIRT)
    session = inner.run(None, timeout=60)
    how = "fork from a clean process (test_b.py ran tensor work during collection)"
    session.stdout.fnmatch_lines([line(how)])
    session.result.assert_outcomes(passed=2)


@pytest.mark.usefixtures("forks")
def test_clean_process_has_what_the_pytest_process_has(inner: Inner) -> None:
    inner.write(conftest="import torch\n" + DIRT)
    (inner.path / "mine.py").write_text("ONE = 1\n")
    session = inner.run(
        """
import mine

os.environ["MKL_NUM_THREADS"] = "7"

@ranks(2)
def test_settings(world, tmp_path, request):
    assert "OMP_NUM_THREADS" not in os.environ
    assert os.environ["MKL_NUM_THREADS"] == "7"
    assert tmp_path.parent.name == f"rank{world.rank}"
    assert sys.flags.optimize == 0
    assert sys.flags.utf8_mode == 0
    assert Path.cwd() == Path(os.environ["HOME"])
    assert request.config.getoption("verbose") == 2
    print("printed", world.rank)
    assert world.rank == mine.ONE
""",
        "-vv",
        "--log-file=kept.log",
        "--log-file-level=INFO",
        "--junitxml=report.xml",
    )
    how = "fork from a clean process (conftest.py ran tensor work during collection)"
    session.stdout.fnmatch_lines([line(how)])
    session.match_failure(
        "test_settings",
        "___* test_settings (rank 0 of 2) _*",
        ">       assert world.rank == mine.ONE",
        "E       *assert 0 == 1*",
        "-* Captured stdout call (rank 0) -*",
        "printed 0",
    )
    assert "test_settings" in (inner.path / "report.xml").read_text()


def test_files_of_the_pytest_process_are_kept(inner: Inner) -> None:
    inner.write(
        conftest="""
import os

def pytest_collection_modifyitems(config):
    (config._tmp_path_factory.getbasetemp() / f"made by {os.getpid()}").touch()
"""
    )
    session = inner.run(
        DIRT
        + """
import logging
logging.getLogger().warning("collected by %d", os.getpid())

def test_before():
    logging.getLogger().warning("run by %d", os.getpid())

@ranks(1)
def test_on_rank(tmp_path):
    pass
""",
        "--log-file=kept.log",
        f"--basetemp={inner.path / 'base'}",
    )
    session.result.assert_outcomes(passed=2)
    written = re.findall(r" (collected|run) by (\d+)", (inner.path / "kept.log").read_text())
    pid = written[-1][1]
    assert written == [("collected", pid), ("run", pid)]
    assert (inner.path / "base" / f"made by {pid}").exists()
    assert (inner.path / "base" / "rank0" / "test_on_rank0").is_dir()


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "threading.Thread(target=time.sleep, args=(600,), name='mine', daemon=True).start()\n",
            "started the thread 'mine'",
        ),
        ("torch.set_num_threads(2)\n" + DIRT, "ran tensor work"),
    ],
    ids=["thread", "dirty-again"],
)
def test_spawned_where_no_process_would_be_clean(inner: Inner, source: str, why: str) -> None:
    session = inner.run(source + PARALLEL)
    session.stdout.fnmatch_lines([line(f"spawn (test_inner.py {why} during collection)")])
    session.result.assert_outcomes(passed=1)


def test_session_without_ranks_leaves_no_probe(inner: Inner) -> None:
    session = inner.run(
        DIRT
        + """
def test_children():
    assert open(f"/proc/self/task/{os.getpid()}/children").read() == ""
"""
    )
    session.result.assert_outcomes(passed=1)


def test_options_and_order_are_those_of_the_pytest_process(inner: Inner) -> None:
    inner.write(
        conftest="""
import os

def pytest_addoption(parser):
    parser.addoption("--salt", default=os.urandom(8).hex())

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: os.urandom(8))
"""
    )
    session = inner.run(
        """
@ranks(2)
@pytest.mark.parametrize("number", range(6))
def test_item(number, request, world):
    assert request.node.name == f"test_item[{number}]"
    assert len(set(world.gather((number, request.config.getoption("salt"))))) == 1
""",
        "--ranks-start-method=spawn",
    )
    session.result.assert_outcomes(passed=6)


CHANGING = """
@ranks(2)
@pytest.mark.parametrize("number", [time.time_ns()])
def test_changing(number):
    pass

def test_launch(launch):
    launch(os.getpid, world_size=1)
"""


@pytest.mark.usefixtures("forks")
def test_ids_that_change_are_told(inner: Inner) -> None:
    session = inner.run(DIRT + CHANGING)
    assert session.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(
        [
            "ERROR: ranks can't be started: collected again in another process, there is no "
            "test_inner.py::test_changing[[]*[]]: ids must be the same each time, *"
        ]
    )


def test_ids_that_change_are_told_by_spawned_ranks(inner: Inner) -> None:
    session = inner.run(CHANGING, "--ranks-start-method=spawn")
    session.result.assert_outcomes(failed=1, errors=1)
    session.stdout.fnmatch_lines(
        [
            "2 ranks did not form a process group",
            "ranks 0-1 printed:",
            "collected again in another process, there is no test_inner.py::test_changing[[]*",
        ]
    )
    assert "test session starts" not in session.text.partition("ranks did not form")[2]


@pytest.mark.usefixtures("forks")
def test_module_that_fails_the_second_time_is_shown(inner: Inner) -> None:
    session = inner.run(DIRT + "Path('made').mkdir()\n" + PARALLEL)
    assert session.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(
        ["*there is no test_inner.py::test_in_parallel; this failed:", "E   FileExistsError: *"]
    )


SPAWNED = """
@pytest.fixture(scope="module")
def wide():
    yield dist.new_group([0, 1])

@ranks(2)
@pytest.mark.parametrize("value", ["a/b", "ü", 3.5])
def test_parametrized(world, wide, value, shared_tmp_path):
    dist.barrier(wide)
    assert world.gather(value) == [value] * 2
    assert world.gather(str(shared_tmp_path))[0] == str(shared_tmp_path)

@ranks(2)
class TestClass:
    def test_pids(self, world):
        assert len(set(world.gather(os.getpid()))) == 2

@ranks(2)
def test_raises(world):
    print("printed", world.rank)
    if world.rank == 1:
        raise ValueError("mine alone")
    reduce()

@ranks(2)
def test_dies(world):
    if world.rank == 1:
        os._exit(3)
    reduce()

@ranks(2, isolate=True)
def test_isolated(world):
    assert reduce() == [2.0] * 4

@ranks(2, timeout=2)
def test_hangs(world):
    if world.rank == 0:
        reduce()
    time.sleep(60)

@ranks(2)
def test_after(world):
    assert reduce() == [2.0] * 4

def one(value):
    print("inside")
    if value is None:
        raise ValueError("no value")
    return value, os.getpid()

def test_launch(launch):
    pairs = launch(one, "x", world_size=2)
    assert [value for value, _ in pairs] == ["x", "x"]
    assert len({pid for _, pid in pairs} | {os.getpid()}) == 3

def test_launch_fails(launch):
    launch(one, None, world_size=2)
"""


@pytest.fixture
def spawned(once: Callable[..., Session]) -> Session:
    """A session of all that ranks do, on spawned ones."""
    return once(SPAWNED, "--ranks-start-method=spawn", "--import-mode=importlib", "-Werror")


def test_spawned_ranks_pass_and_fail_as_others(spawned: Session) -> None:
    spawned.stdout.fnmatch_lines([line("spawn")])
    spawned.result.assert_outcomes(passed=7, failed=4)
    spawned.match_failure(
        "test_raises",
        "___* test_raises (rank 1 of 2) _*",
        "E           ValueError: mine alone",
        "-* followed from it -*",
        "rank 0: test_inner.py:*: lost a peer (*)",
        "-* Captured stdout call (rank 0) -*",
        "printed 0",
    )
    spawned.match_failure("test_dies", "rank 1 ended with exit code 3")


def test_spawned_rank_that_hangs_gives_its_own_stack_only(spawned: Session) -> None:
    spawned.match_failure("test_hangs", '  File "*test_inner.py", line * in test_hangs')
    assert "_spawned.py" not in spawned.failure("test_hangs")
    assert "<string>" not in spawned.failure("test_hangs")


def test_spawned_rank_has_not_printed_what_pytest_prints_to_collect(spawned: Session) -> None:
    text = spawned.failure("test_launch_fails")
    assert re.search(r"^E? *ranks 0-1 printed:\nE? *inside$", text, re.MULTILINE)
    assert "test session starts" not in text


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_xdist(inner: Inner, method: str) -> None:
    session = inner.run(
        DIRT
        + PARALLEL
        + """
@pytest.mark.xdist_group("one")
@ranks(2)
@pytest.mark.parametrize("number", range(2))
def test_grouped(world, number, worker_id):
    assert worker_id == os.environ["PYTEST_XDIST_WORKER"]
    assert reduce() == [2.0] * 4
""",
        "-n2",
        "--dist=loadgroup",
        f"--ranks-start-method={method}",
    )
    session.result.assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--ranks-start-method=exec",), "*--ranks-start-method: invalid choice: 'exec'*"),
        (("-oranks_start_method=exec",), "*ranks_start_method is fork or spawn, got 'exec'"),
    ],
)
def test_unknown_start_method(pytester: pytest.Pytester, args: tuple[str, ...], says: str) -> None:
    result = pytester.runpytest_inprocess(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([says])


def interpreter_that_warns() -> str:
    """Return a Python of 3.12 or newer; Python warns of a fork with threads since then."""
    for name in (sys.executable, "python3.14", "python3.13", "python3.12"):
        command = [name, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"]
        with suppress(FileNotFoundError):
            if subprocess.run(command, capture_output=True).returncode == 0:
                return name
    pytest.skip("needs Python 3.12 or newer")


def test_fork_with_threads_is_no_warning() -> None:
    python = interpreter_that_warns()
    code = (
        "import importlib.util, os, sys, threading, time\n"
        "spec = importlib.util.spec_from_file_location('linux', sys.argv[1])\n"
        "linux = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(linux)\n"
        "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "if (pid := linux.fork()) == 0:\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    command = [python, "-Walways", "-c", code, str(Path(_linux.__file__))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("7\n", "")


@pytest.mark.usefixtures("forks")
def test_zygote_is_replaced_by_a_clean_one_after_tensor_work_of_tests(inner: Inner) -> None:
    session = inner.run(
        """
ZYGOTE = Path(os.environ["HOME"], "zygote")

@ranks(2)
def test_before(world):
    ZYGOTE.write_text(str(os.getppid()))

def test_kills():
    torch.ones(200, 200) @ torch.ones(200, 200)
    os.kill(int(ZYGOTE.read_text()), signal.SIGKILL)
    os.waitid(os.P_PID, int(ZYGOTE.read_text()), os.WEXITED | os.WNOWAIT)

@ranks(2, timeout=5)
def test_after(world):
    torch.set_num_threads(2)
    assert (torch.ones(400_000) + 1).sum() == 800_000
    torch.set_num_threads(1)
"""
    )
    session.result.assert_outcomes(passed=3)
