"""A launch that does not return on every rank raises, and says how each rank ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ._inner import Session

FAILS = """
from shardproof import RankFailure, current_world

def kinds(error):
    return [outcome.kind for outcome in error.value.ranks]

def raises():
    print("before", dist.get_rank())
    if dist.get_rank() == 1:
        raise KeyError("lost")
    reduce()

def test_raise(launch):
    with pytest.raises(RankFailure) as error:
        launch(raises, world_size=3)
    assert kinds(error) == ["woken", "raised", "woken"]
    outcome = error.value.ranks[1]
    assert (outcome.rank, outcome.exception_type) == (1, "KeyError")
    assert outcome.message == "KeyError: 'lost'"
    assert outcome.detail.startswith("Traceback") and "in raises" in outcome.detail
    assert "shardproof" not in outcome.detail
    text = str(error.value)
    assert text.startswith("raises failed on rank 1 of 3:\\nTraceback (most recent call last):")
    assert "followed on ranks 0, 2: lost a peer (Connection " in text
    assert "rank 1 printed:\\nbefore 1" in text

def hangs():
    if dist.get_rank() == 0:
        time.sleep(60)
    reduce(3)

def test_hang(launch):
    began = time.monotonic()
    with pytest.raises(RankFailure) as error:
        launch(hangs, world_size=2, timeout=1)
    assert time.monotonic() - began < 8
    assert kinds(error) == ["timeout", "timeout"]
    text = str(error.value)
    assert text.startswith("hangs did not end within 1 s on ranks 0-1\\n")
    assert "  rank 1 waits in all_reduce #1 of float32[3]\\n  rank 0 never came to #1" in text
    assert "in hangs" in text

def dies(how):
    if dist.get_rank() == 1:
        how(3) if how is os._exit else os.kill(os.getpid(), signal.SIGKILL)
    reduce()

def test_die(launch):
    with pytest.raises(RankFailure, match="rank 1 was killed by SIGKILL") as error:
        launch(dies, None, world_size=2)
    assert kinds(error) == ["woken", "died"]
    assert str(error.value).startswith("dies ended on rank 1 of 2:\\n")

def test_exit(launch):
    with pytest.raises(RankFailure, match="rank 1 ended with exit code 3") as error:
        launch(dies, os._exit, world_size=2)
    assert kinds(error) == ["woken", "died"]

def exits():
    sys.exit(0)

def test_sys_exit(launch):
    with pytest.raises(RankFailure, match="SystemExit: 0") as error:
        launch(exits, world_size=2)
    assert kinds(error) == ["raised", "raised"]
    assert str(error.value).count("SystemExit") == 1

def returns_lock():
    return threading.Lock()

def test_result_that_cannot_be_pickled(launch):
    with pytest.raises(RankFailure, match="the returned value of type _thread.lock can't be") as e:
        launch(returns_lock, world_size=2)
    assert kinds(e) == ["raised", "raised"]

class Odd:
    def __reduce__(self):
        return (int, ("no number",))

def returns_odd():
    return Odd()

def test_result_that_cannot_be_unpickled(launch):
    with pytest.raises((RankFailure, TypeError, ValueError)) as error:
        launch(returns_odd, world_size=2)
    assert isinstance(error.value, RankFailure)

def mixed():
    rank = dist.get_rank()
    if rank == 0:
        os._exit(9)
    if rank == 1:
        raise ValueError("own")

def test_mixed(launch):
    with pytest.raises(RankFailure) as error:
        launch(mixed, world_size=3)
    assert kinds(error) == ["died", "raised", "returned"]
    text = str(error.value)
    assert "mixed ended on rank 0 of 3:" in text
    assert "mixed failed on rank 1 of 3:" in text

def waits_for_nobody():
    if dist.get_rank() == 0:
        raise ValueError("at once")
    while True:
        time.sleep(0.01)

def test_rank_that_goes_on_is_ended(launch):
    with pytest.raises(RankFailure) as error:
        launch(waits_for_nobody, world_size=2, timeout=50)
    assert kinds(error) == ["raised", "woken"]

def skips():
    pytest.skip("not here")

def test_skip_is_no_result(launch):
    with pytest.raises(RankFailure, match="not here"):
        launch(skips, world_size=2)

def fine():
    return reduce(1)

def test_next_launch(launch):
    assert launch(fine, world_size=3) == [[3.0]] * 3

def test_not_caught(launch):
    launch(raises, world_size=2)
"""


@pytest.fixture
def fails(once: Callable[..., Session]) -> Session:
    """The session of all of the above."""
    return once(FAILS)


@pytest.mark.parametrize(
    "name",
    [
        "test_raise",
        "test_hang",
        "test_die",
        "test_exit",
        "test_sys_exit",
        "test_result_that_cannot_be_pickled",
        "test_result_that_cannot_be_unpickled",
        "test_mixed",
        "test_rank_that_goes_on_is_ended",
        "test_skip_is_no_result",
        "test_next_launch",
    ],
)
def test_failed_launch(fails: Session, name: str) -> None:
    assert fails.status(name) == "passed", fails.failure(name)


def test_failure_that_nobody_catches_shows_the_report_and_no_engine(fails: Session) -> None:
    fails.match_failure(
        "test_not_caught",
        ">       launch(raises, world_size=2)",
        "E       shardproof.errors.RankFailure: raises failed on rank 1 of 2:",
        "E       Traceback (most recent call last):",
        "E       KeyError: 'lost'",
        "E       followed on rank 0: lost a peer (*)",
        "test_inner.py:*: RankFailure",
    )
    assert "_launch.py" not in fails.failure("test_not_caught")
