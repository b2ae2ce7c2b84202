"""Lines that run on ranks count for pytest-cov, without any set-up by the user."""

from __future__ import annotations

import re

import pytest

from ._inner import Session
from ._plugins import Plugged

# Each function is called in a place of its own; `never` nowhere.
MODULE = """\
def on_rank_1(value):
    if value:
        return 1
    return 2


def in_teardown():
    return 3


def isolated():
    return 4


def launched():
    return 5


def before_death():
    return 6


def in_death():
    return 7


def here():
    return 8


def never():
    return 9
"""
LINES = {text.strip(): number for number, text in enumerate(MODULE.splitlines(), 1)}

TESTS = """
import measured

@pytest.fixture
def tears_down(world):
    yield
    measured.in_teardown()

@ranks(2)
def test_warm(world, tears_down):
    if world.rank == 1:
        measured.on_rank_1(True)

@ranks(2, isolate=True)
def test_isolated(world):
    measured.isolated()
    raise ValueError("all the same")

def fails():
    measured.launched()
    raise ValueError("all the same")

def test_launch(launch):
    with pytest.raises(Exception, match="all the same"):
        launch(fails, world_size=2)

@ranks(2)
def test_before_death(world):
    measured.before_death()

@ranks(2)
def test_death(world):
    measured.in_death()
    os.kill(os.getpid(), signal.SIGKILL)

def test_here():
    measured.here()
"""


def missing(session: Session) -> str:
    """Return the table's last column for the measured module."""
    found = re.search(r"^measured.py .*%\s*(.*)$", session.text, re.MULTILINE)
    assert found, session.text
    return found[1]


def uncovered(*texts: str) -> str:
    return ", ".join(str(LINES[text]) for text in texts)


@pytest.fixture
def measured(plugged: Plugged) -> Plugged:
    """Sessions beside a module that is to be measured."""
    (plugged.path / "measured.py").write_text(MODULE)
    return plugged


COV = ("--cov=measured", "--cov-report=term-missing")


def test_lines_on_ranks_count(measured: Plugged) -> None:
    session = measured.run("pytest_cov", TESTS, *COV)
    session.result.assert_outcomes(passed=4, failed=2)
    # What a rank ran in a test that it did not survive is lost, and what it ran before is not.
    assert missing(session) == uncovered("return 2", "return 7", "return 9")
    assert [path.name for path in measured.path.glob(".coverage*")] == [".coverage"]


def test_with_workers(measured: Plugged) -> None:
    session = measured.run("pytest_cov xdist", TESTS, "-n2", *COV)
    session.result.assert_outcomes(passed=4, failed=2, warnings=session.text.count("Warning: "))
    assert missing(session) == uncovered("return 2", "return 7", "return 9")
    assert [path.name for path in measured.path.glob(".coverage*")] == [".coverage"]


def test_branches_and_append(measured: Plugged) -> None:
    first = measured.run("pytest_cov", TESTS, "--cov-branch", *COV, "-k", "test_warm")
    assert str(LINES["return 2"]) in missing(first)
    session = measured.run(
        "pytest_cov",
        "import measured\n\n@ranks(2)\ndef test_other():\n    measured.on_rank_1(False)\n",
        *("--cov-branch", "--cov-append", *COV),
    )
    gone = missing(session).split(", ")
    assert str(LINES["return 1"]) not in gone
    assert str(LINES["return 2"]) not in gone
    assert str(LINES["return 9"]) in gone
    assert "->" not in missing(session)


def test_contexts_and_no_cover(measured: Plugged) -> None:
    session = measured.run(
        "pytest_cov",
        """
import coverage
import measured

@ranks(2)
def test_named(world):
    measured.isolated()

@ranks(2)
@pytest.mark.no_cover
def test_not_measured(world):
    measured.launched()

@ranks(2)
def test_measured_again(world):
    measured.here()

def test_has_contexts():
    assert coverage.Coverage.current()
""",
        "--cov-context=test",
        *COV,
    )
    session.result.assert_outcomes(passed=4)
    gone = missing(session).split(", ")
    assert str(LINES["return 5"]) in gone
    assert not {str(LINES["return 4"]), str(LINES["return 8"])} & set(gone)


def test_limit_counts_lines_on_ranks(measured: Plugged) -> None:
    source = "import measured\n\n@ranks(1)\ndef test_it():\n    measured.never()\n"
    for limit, code in ((50, pytest.ExitCode.OK), (90, pytest.ExitCode.TESTS_FAILED)):
        session = measured.run("pytest_cov", source, *COV, f"--cov-fail-under={limit}")
        assert session.ret == code


def test_ranks_write_no_file_that_nobody_would_combine(measured: Plugged) -> None:
    measured.write(conftest="import coverage\ncoverage.Coverage().start()\n")
    session = measured.run(
        "",
        """
import coverage

@ranks(2)
def test_it():
    assert coverage.Coverage.current()
""",
    )
    session.result.assert_outcomes(passed=1)
    assert not list(measured.path.glob(".coverage*"))
