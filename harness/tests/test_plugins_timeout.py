"""pytest-timeout's value becomes the deadline of the ranks; no timer is armed anywhere."""

from __future__ import annotations

from ._plugins import Plugged

TIMEOUT = """
HANDLER = signal.getsignal(signal.SIGALRM)

def sleeps():
    assert signal.getsignal(signal.SIGALRM) == HANDLER
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert threading.active_count() == 2  # the other one gives evidence
    time.sleep(60)

@ranks(2)
@pytest.mark.timeout(1)
def test_mark(world):
    sleeps()

@ranks(2)
@pytest.mark.timeout(1.5, method="thread")
def test_thread(world):
    sleeps()

@ranks(2, timeout=0.7)
@pytest.mark.timeout(60)
def test_ranks_wins(world):
    sleeps()

@ranks(2, timeout=0.8)
@pytest.mark.timeout(60, func_only=True)
def test_ranks_wins_func_only(world):
    sleeps()

@ranks(2)
def test_option(world):
    sleeps()

@pytest.fixture
def slow(world):
    time.sleep(1.2)
    yield
    time.sleep(1.2)

@ranks(2)
@pytest.mark.timeout(1, func_only=True)
def test_func_only_leaves_fixtures_alone(slow):
    pass

@ranks(2)
@pytest.mark.timeout(0.6, func_only=True)
def test_func_only(world):
    if world.rank == 1:
        sleeps()

def one():
    return 1

@pytest.mark.timeout(60)
def test_launch(launch):
    assert launch(one, world_size=2) == [1, 1]

@pytest.mark.timeout(0.5)
def test_ordinary():
    time.sleep(60)

@ranks(2)
def test_healthy(world):
    assert world.gather(world.rank) == [0, 1]
"""


def test_timeout_becomes_the_deadline(plugged: Plugged) -> None:
    session = plugged.run("timeout", TIMEOUT, "--timeout=2", "--ranks-timeout=50")
    ends = "the test did not end within"
    session.match_failure("test_mark", f"{ends} 1 s on ranks 0-1", "*File*in test_mark")
    session.match_failure("test_thread", f"{ends} 1.5 s on ranks 0-1")
    session.match_failure("test_ranks_wins", f"{ends} 0.7 s on ranks 0-1")
    session.match_failure("test_ranks_wins_func_only", f"{ends} 0.8 s on ranks 0-1")
    session.match_failure("test_option", f"{ends} 2 s on ranks 0-1")
    session.match_failure("test_func_only", f"{ends} 0.6 s on rank 1")
    session.match_failure("test_ordinary", "E*Failed: Timeout (>0.5s) from pytest-timeout.")
    session.result.assert_outcomes(passed=3, failed=7)


def test_timeout_of_the_ini_file_wins_over_ours(plugged: Plugged) -> None:
    (plugged.path / "pytest.ini").write_text("[pytest]\ntimeout = 1\nranks_timeout = 50\n")
    session = plugged.run("timeout", "@ranks(2)\ndef test_it(): time.sleep(60)\n")
    session.match_failure("test_it", "the test did not end within 1 s on ranks 0-1")
