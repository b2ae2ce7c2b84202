"""pytest-rerunfailures runs a failing test on ranks again, on ranks."""

from __future__ import annotations

import re

import pytest

from ._inner import Session
from ._plugins import Plugged

TESTS = """
def attempts(world, name):
    \"\"\"Count, for each rank, how often it has come here; return how often before.\"\"\"
    path = Path(os.environ["HOME"], f"{name}.{world.rank}")
    before = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (before + 1))
    return before

@ranks(2)
def test_third_time(world):
    print("attempt", attempts(world, "third"))
    if world.rank == 1:
        assert attempts(world, "third, of rank 1") == 2
    reduce()

@ranks(2)
def test_never(world):
    assert world.rank

@ranks(2)
@pytest.mark.flaky(reruns=1)
def test_dies(world):
    if world.rank == 1 and not attempts(world, "dies"):
        os._exit(3)
    reduce()

@pytest.fixture
def fails_once(world):
    if not attempts(world, "setup"):
        raise OSError("not yet")

@ranks(2)
@pytest.mark.flaky(reruns=1)
def test_setup(fails_once):
    reduce()

class TestClass:
    @ranks(2)
    @pytest.mark.flaky(reruns=1)
    def test_has_a_new_object(self, world):
        assert not hasattr(self, "seen")
        self.seen = True
        assert attempts(world, "class")

@ranks(2)
@pytest.mark.flaky(reruns=1, condition=False)
def test_condition(world):
    assert attempts(world, "condition")

@ranks(2)
@pytest.mark.flaky(reruns=1, condition=lambda error: "mine" in str(error))
def test_condition_on_the_error(world):
    if world.rank == 1 and not attempts(world, "error"):
        raise ValueError("mine alone")
    reduce()

@ranks(2)
@pytest.mark.flaky(reruns=1, only_rerun="ValueError")
def test_only_another_error(world):
    assert attempts(world, "only")

@ranks(2)
@pytest.mark.flaky(reruns=1, only_rerun="ValueError")
def test_only_this_error(world):
    if world.rank == 1 and not attempts(world, "only this"):
        raise ValueError("mine alone")
    reduce()

@ranks(2)
@pytest.mark.flaky(reruns=1, only_rerun="ValueError")
def test_only_an_error_and_dies(world):
    if world.rank == 1 and not attempts(world, "dies without"):
        os._exit(3)
    reduce()

def test_ordinary():
    path = Path(os.environ["HOME"], "ordinary")
    if not path.exists():
        path.touch()
        raise ValueError("the first time")

@ranks(2)
def test_healthy(world):
    assert world.gather(world.rank) == [0, 1]
"""

PASSED = {
    "test_third_time": 2,
    "test_dies": 1,
    "test_setup": 1,
    "test_has_a_new_object": 1,
    "test_condition_on_the_error": 1,
    "test_only_this_error": 1,
    "test_ordinary": 1,
    "test_healthy": 0,
}
FAILED = {
    "test_never": 2,
    "test_condition": 0,
    "test_only_another_error": 0,
    "test_only_an_error_and_dies": 0,
}


def reruns(session: Session, name: str) -> int:
    """Return how often the session says that it ran a test once more."""
    return len(re.findall(rf"^RERUN \S+::{name}$", session.text, re.MULTILINE))


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_reruns(plugged: Plugged, workers: tuple[str, ...]) -> None:
    plugins = "rerunfailures xdist" if workers else "rerunfailures"
    session = plugged.run(plugins, TESTS, "--reruns=2", "-rAR", *workers)
    for name, count in PASSED.items():
        assert session.status(name).startswith("passed"), name
        assert reruns(session, name) == count, name
    for name, count in FAILED.items():
        assert session.status(name).startswith("failed"), name
        assert reruns(session, name) == count, name
    outcomes = session.result.parseoutcomes()
    assert outcomes["rerun"] == sum(PASSED.values()) + sum(FAILED.values())
    assert (outcomes["passed"], outcomes["failed"]) == (len(PASSED), len(FAILED))
    session.match_failure("test_never", "*test_never (rank 0 of 2)*")


def test_letters_stop_and_flaky_exit_code(plugged: Plugged) -> None:
    session = plugged.run(
        "rerunfailures", TESTS, "--reruns=2", "-x", "-k", "third or healthy", "--fail-on-flaky"
    )
    session.stdout.fnmatch_lines(["test_inner.py RR.. *"])
    assert session.ret == 7


def test_limit_of_the_session(plugged: Plugged) -> None:
    session = plugged.run(
        "rerunfailures", TESTS, "--reruns=2", "--max-suite-reruns=1", "-k", "test_never", "-rAR"
    )
    assert reruns(session, "test_never") == 1
    assert session.result.parseoutcomes()["failed"] == 1


def test_without_being_asked_nothing_runs_again(plugged: Plugged) -> None:
    session = plugged.run("rerunfailures", TESTS, "-k", "never or third")
    session.result.assert_outcomes(failed=2)
