"""A rank that runs out of something, or takes it from itself: descriptors, disk space."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from ._inner import Inner, Session

CLOSES = """
@pytest.fixture
def closes_on_one(world):
    if world.rank == 1:
        os.closerange(3, 256)

@ranks(2, timeout=5)
def test_fixture(closes_on_one, world):
    reduce()

@ranks(2)
def test_after_fixture():
    assert reduce() == [2.0] * 4

@pytest.fixture
def closes_at_its_end(world):
    yield
    os.closerange(3, 256)

@ranks(2, timeout=5)
def test_teardown(closes_at_its_end):
    reduce()

@ranks(2)
def test_after_teardown():
    assert reduce() == [2.0] * 4

@ranks(1, timeout=5)
def test_without_peers():
    os.closerange(3, 256)

@ranks(1)
def test_after_without_peers():
    assert reduce() == [1.0] * 4

@ranks(2, timeout=5)
def test_output_too(world):
    if world.rank == 1:
        os.closerange(0, 256)
    reduce()

@ranks(2)
def test_after_output_too():
    assert reduce() == [2.0] * 4
"""


@pytest.fixture
def closes(once: Callable[..., Session]) -> Session:
    """The session of the tests that close descriptors."""
    return once(CLOSES)


def test_the_next_tests_pass(closes: Session) -> None:
    closes.result.assert_outcomes(passed=5, failed=2, errors=2)
    assert closes.ret == pytest.ExitCode.TESTS_FAILED
    for name in ("fixture", "teardown", "without_peers", "output_too"):
        assert closes.status(f"test_after_{name}") == "passed"


@pytest.mark.parametrize(
    ("name", "where", "rank"),
    [
        ("test_fixture", "ERROR at setup of test_fixture (rank 1 of 2)", "1"),
        ("test_teardown", "ERROR at teardown of test_teardown (rank* of 2*)", "?"),
        ("test_output_too", "test_output_too (rank 1 of 2)", "1"),
    ],
)
def test_closed_descriptors_are_the_ranks_end(
    closes: Session, name: str, where: str, rank: str
) -> None:
    # Gloo's thread aborts the process, unless the rank has found out before.
    closes.match_failure(name, f"___* {where} _*", f"rank {rank} *")
    text = closes.failure(name)
    assert "was killed by SIGABRT (signal 6)" in text or "ended with exit code 1" in text


def test_rank_says_that_it_has_lost_its_connection(closes: Session) -> None:
    closes.match_failure(
        "test_without_peers",
        "___* test_without_peers (rank 0 of 1) _*",
        "rank 0 ended with exit code 1",
        "rank 0 has lost its connection to pytest: *Bad file descriptor",
    )


# Bytes that a rank may write to a file, in place of a disk that is full.
LIMITED = """
import resource

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

@ranks(2)
def test_prints(world):
    if world.rank == 1:
        limit(1 << 16)
    for number in range(10_000):
        print("line", number)

@ranks(2)
def test_writes_past_python(world):
    if world.rank == 1:
        limit(0)
        os.write(1, b"not kept")
    reduce()

@ranks(2)
def test_swallows(world):
    if world.rank == 1:
        limit(0)
        try:
            print("not kept")
        except OSError:
            pass

@ranks(2)
def test_healthy(world):
    print("kept")
    limits = world.gather(resource.getrlimit(resource.RLIMIT_FSIZE))
    assert limits == [(resource.RLIM_INFINITY,) * 2] * 2
"""


def test_output_that_cannot_be_kept(inner: Inner) -> None:
    session = inner.run(LIMITED)
    for name in ("test_prints", "test_writes_past_python"):
        session.match_failure(name, f"*{name} (rank 1 of 2)*", "E *OSError: *File too large")
    session.match_failure("test_prints", "-* Captured stdout call (rank 1) -*", "line 0")
    assert session.status("test_healthy") == "passed"
    session.stdout.fnmatch_lines(
        ["*LeakWarning: *on rank 1 of 2: the resource limits, RLIMIT_FSIZE (0, -1) (was (-1, -1))*"]
    )


FULL = """
def fill(name):
    with open(name, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

@ranks(2)
def test_prints(world):
    for _ in range(4_000):  # what one large write can't hold is dropped without a word
        sys.stdout.write("x" * 999 + "\\n")

@ranks(2)
def test_after():
    assert reduce() == [2.0] * 4

@ranks(2)
def test_fills_the_disk(world):
    world.barrier()
    if world.rank == 0:
        fill(os.environ["TMPDIR"] + "/filler")
    world.barrier()
    print("no room")

@ranks(2)
def test_on_the_full_disk():
    assert reduce() == [2.0] * 4

def test_makes_room():
    os.unlink(os.environ["TMPDIR"] + "/filler")

@ranks(2)
def test_at_last(tmp_path):
    print("kept")
    assert reduce() == [2.0] * 4
"""

# A disk of 2 MB that nobody else sees, and that is gone with the session.
_SMALL_DISK = (
    'mount -t tmpfs -o size=2m none "$TMPDIR" && "$@"; code=$?; ls -A "$TMPDIR"; exit $code'
)


def on_a_small_disk(inner: Inner, *args: str, others: str = "") -> Session:
    """Run a session whose temporary files are on a disk of 2 MB, or in the folder `others`."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    tried = subprocess.run([*unshare, "mount -t tmpfs none /mnt"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no disk can be mounted here: {tried.stderr.strip()}")
    environment = ["env", f"TMPDIR={others or inner.temporary}"]
    command = [*environment, sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *args]
    command.append(f"--basetemp={inner.path / 'base'}")
    result = inner.pytester.run(*unshare, _SMALL_DISK, "sh", *command, timeout=60)
    inner.nothing_left()
    return Session(result)


def test_full_disk_for_captured_output(inner: Inner) -> None:
    inner.write(test_inner=FULL)
    session = on_a_small_disk(inner)
    session.match_failure("test_prints", "E *OSError: [[]Errno 28[]] No space left on device")
    session.match_failure("test_fills_the_disk", "E *OSError: *No space left on device")
    for name in ("test_after", "test_on_the_full_disk", "test_at_last"):
        assert session.status(name) == "passed", session.text
    assert session.text.splitlines()[-1].startswith("=====")  # nothing is listed after the summary


@pytest.mark.parametrize("options", [("-s",), ()])
def test_full_disk_for_the_log(inner: Inner, options: tuple[str, ...]) -> None:
    inner.write(
        test_inner="""
@ranks(2)
def test_prints(world):
    print("x" * 3_000_000)

@ranks(2)
def test_after(world):
    print("more")
    assert reduce() == [2.0] * 4
"""
    )
    log = f"--ranks-log={inner.temporary}"
    session = on_a_small_disk(inner, log, *options, others=str(inner.path))
    assert session.status("test_prints") == session.status("test_after") == "passed"
    session.stdout.fnmatch_lines(
        ["*PytestWarning: --ranks-log keeps nothing more*: *No space left on device*"]
    )
