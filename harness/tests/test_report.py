"""What a session prints and writes of tests on ranks, beside what it does of any test."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from ._inner import Inner, Session

TESTS = """
import logging

@ranks(3)
def test_prints(world):
    print("alike")
    if world.rank == 1:
        print("only here", file=sys.stderr)
    logging.getLogger("mine").warning("logged by %d", world.rank)
    assert world.rank == 7

@ranks(3)
def test_warns(world):
    warnings.warn("on all of them", UserWarning)
    if world.rank == 1:
        warnings.warn("on one of them", FutureWarning)

class MyWarning(UserWarning):
    pass

@ranks(3)
def test_warns_of_its_own():
    warnings.warn("of its own", MyWarning)

@ranks(3)
def test_slow(world):
    time.sleep(0.3 if world.rank == 2 else 0)

@ranks(3)
def test_prints_and_passes(world):
    print("passing", world.rank)

@ranks(3)
def test_records(record_property):
    record_property("key", "value")

@ranks(2)
@pytest.mark.parametrize("value", [0])
def test_parametrized(value):
    assert value

@ranks(2)
def test_long(world):
    if world.rank == 1:
        raise ValueError("x" * 100_000 + "end")

def test_ordinary():
    assert True
"""


@pytest.fixture
def verbose(once: Callable[..., Session]) -> Session:
    """The session of all of the above, told at length."""
    return once(TESTS, "-v", "--durations=0", "--junitxml=report.xml", "--nproc=3")


def test_header_line_comes_after_collection(verbose: Session) -> None:
    verbose.stdout.fnmatch_lines(["*collected 9 items", "ranks: world 3, gloo, *, cpu, torch 2.*"])


def test_verbose_lines_are_those_of_ordinary_tests(verbose: Session) -> None:
    verbose.stdout.fnmatch_lines(
        [
            "test_inner.py::test_prints FAILED *[[] 11%[]]",
            "test_inner.py::test_warns PASSED *[[] 22%[]]",
            "test_inner.py::test_slow PASSED *",
            "test_inner.py::test_parametrized[[]0[]] FAILED *",
            "test_inner.py::test_ordinary PASSED *[[]100%[]]",
        ]
    )


def test_output_is_told_with_its_ranks(verbose: Session) -> None:
    verbose.match_failure(
        "test_prints",
        "-* Captured stdout call (ranks 0-2) -*",
        "alike",
        "-* Captured stderr call (rank 1) -*",
        "only here",
    )
    text = verbose.failure("test_prints")
    assert text.count("alike\n") == 1
    for rank in range(3):
        assert text.count(f"logged by {rank}") == 1


def test_output_of_passing_tests(verbose: Session) -> None:
    passes = verbose.text.partition(" PASSES ")[2]
    for rank in range(3):
        assert passes.count(f"passing {rank}\n") == 1


def test_warnings_reach_the_summary_once(verbose: Session) -> None:
    summary = verbose.text.partition(" warnings summary ")[2].partition(" PASSES ")[0]
    assert summary.count("UserWarning: on all of them") == 1
    assert summary.count("FutureWarning: on one of them") == 1
    assert summary.count("MyWarning: of its own") == 1
    pytest.LineMatcher(summary.splitlines()).fnmatch_lines(
        ["test_inner.py::test_warns", "*test_inner.py:*: UserWarning: on all of them"]
    )
    # the fourth is pytest's own, of record_property with this kind of file
    assert verbose.result.parseoutcomes()["warnings"] == 4


def test_duration_is_the_slowest_ranks(verbose: Session) -> None:
    verbose.stdout.re_match_lines([r"0\.[3-9]\d*s call +test_inner.py::test_slow"])


def test_summary_is_one_line_for_each_failure(verbose: Session) -> None:
    lines = [line for line in verbose.text.splitlines() if line.startswith("FAILED ")]
    assert len(lines) == 3
    pytest.LineMatcher(lines).fnmatch_lines(
        [
            "FAILED test_inner.py::test_prints - *",
            "FAILED test_inner.py::test_parametrized[[]0[]] - ranks 0-1: assert 0",
            "FAILED test_inner.py::test_long - rank 1: ValueError: xxx*...",
        ]
    )


def test_long_text_is_whole(verbose: Session) -> None:
    assert "xend" in verbose.failure("test_long")


def test_junit_xml(verbose: Session) -> None:
    suite = ElementTree.parse(_report_path(verbose)).getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "9",
        "failures": "3",
        "errors": "0",
        "skipped": "0",
    }
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert set(cases) >= {"test_prints", "test_slow", "test_parametrized[0]", "test_ordinary"}
    assert {case.get("classname") for case in cases.values()} == {"test_inner"}
    failure = cases["test_parametrized[0]"].find("failure")
    assert failure is not None
    assert failure.get("message", "").startswith("ranks 0-1: assert 0")
    assert float(cases["test_slow"].get("time", 0)) >= 0.3
    found = cases["test_records"].find("properties/property")
    assert found is not None
    assert found.attrib == {"name": "key", "value": "value"}


RECORDS = """
@ranks(2)
def test_records(world, record_xml_attribute, record_testsuite_property):
    record_xml_attribute("assertions", 7 + world.rank)
    record_testsuite_property("of the suite", f"rank {world.rank}")

def test_ordinary(record_testsuite_property):
    record_testsuite_property("of an ordinary test", 1)
"""


def test_what_rank_0_records_for_junit_xml(inner: Inner) -> None:
    session = inner.run(RECORDS, "--junitxml=report.xml", "-o", "junit_family=xunit1")
    suite = ElementTree.parse(_report_path(session)).getroot()[0]
    cases = {case.get("name"): case.get("assertions") for case in suite.iter("testcase")}
    assert cases == {"test_records": "7", "test_ordinary": None}
    properties = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert properties == {"of the suite": "rank 0", "of an ordinary test": "1"}


def _report_path(session: Session) -> str:
    """Return the file that a session says it has written."""
    line = next(line for line in session.text.splitlines() if "generated xml file: " in line)
    return line.partition("generated xml file: ")[2].rstrip("- ")


def test_quiet_and_short(inner: Inner) -> None:
    session = inner.run(TESTS, "-q", "--tb=short", "--no-header", "-k", "prints or parametrized")
    session.stdout.fnmatch_lines(["*F.F*"])
    session.match_failure(
        "test_parametrized[0]",
        "test_inner.py:*: in test_parametrized",
        "    assert value",
        "E   assert 0",
    )


def test_line_style(inner: Inner) -> None:
    session = inner.run(TESTS, "--tb=line", "-k", "parametrized")
    session.stdout.fnmatch_lines(["*test_inner.py:*: ranks 0-1: assert 0"])


def test_stop_after_the_first_failure(inner: Inner) -> None:
    session = inner.run(TESTS, "-x")
    session.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    session.result.assert_outcomes(failed=1)


LOUD = """
def test_first():
    print("of no rank")

@ranks(2)
def test_prints(world):
    print("out", world.rank)
    print("error", world.rank, file=sys.stderr)
    subprocess.run(["echo", "of a child"])
    os.write(1, b"\\xff no end")

@ranks(2)
def test_dies(world):
    print("last words of", world.rank)
    if world.rank:
        os._exit(3)
    reduce()

def prints():
    print("launched")

def test_launch(launch):
    launch(prints, world_size=2)
"""


def test_no_capture_marks_each_line_with_its_rank(inner: Inner) -> None:
    session = inner.run(LOUD, "-s")
    session.result.assert_outcomes(passed=3, failed=1)
    lines = session.text.splitlines()
    for rank in range(2):
        mark = f"[rank {rank}] "
        assert [line.removeprefix(mark) for line in lines if line.startswith(mark)] == [
            f"out {rank}",
            f"error {rank}",
            "of a child",
            "\N{REPLACEMENT CHARACTER} no end",
            f"last words of {rank}",
            "launched",
        ]
    assert "test_inner.py of no rank" in lines
    # It has been shown, and stands in no report.
    assert "last words" not in session.failure("test_dies")


def test_no_capture_loses_nothing(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2)
def test_prints(world):
    for number in range(50_000):
        print(number)
    print("\\U0001f600" * 500_000)
""",
        "-s",
    )
    session.result.assert_outcomes(passed=1)
    lines = session.text.splitlines()
    for rank in range(2):
        mark = f"[rank {rank}] "
        mine = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
        assert mine[:50_000] == [str(number) for number in range(50_000)]
        assert "".join(mine[50_000:]) == "\U0001f600" * 500_000


def test_log_keeps_each_ranks_output(inner: Inner) -> None:
    folder = inner.path / "logs"
    folder.mkdir()
    (folder / "rank1.log").write_text("of an earlier session")
    (folder / "rank_notes.log").write_text("mine")
    session = inner.run(LOUD, "--ranks-log", "logs")
    session.result.assert_outcomes(passed=3, failed=1)
    logs = {path.name: path.read_text(errors="replace") for path in folder.iterdir()}
    assert logs.pop("rank_notes.log") == "mine"
    assert set(logs) == {"rank0.log", "rank1.log"}
    assert logs["rank1.log"].splitlines() == [
        "===== test_inner.py::test_prints =====",
        "--- Captured stdout call",
        "out 1",
        "of a child",
        "\N{REPLACEMENT CHARACTER} no end",
        "--- Captured stderr call",
        "error 1",
        "===== test_inner.py::test_dies =====",
        "last words of 1",
        "===== test_inner.py::test_launch/0 =====",
        "launched",
    ]
    assert "--- Captured stdout call\nlast words of 0\n" in logs["rank0.log"]


@pytest.mark.parametrize(("options", "name"), [(("-s",), "rank1.log"), (("-n1",), "gw0-rank1.log")])
def test_log_of_what_is_shown_and_of_a_worker(
    inner: Inner, options: tuple[str, ...], name: str
) -> None:
    inner.run(LOUD, "--ranks-log=logs", "-k", "prints", *options).result.assert_outcomes(passed=1)
    text = (inner.path / "logs" / name).read_text()
    assert text.startswith("===== test_inner.py::test_prints =====\n")
    assert "out 1\n" in text
    assert "error 1\n" in text


def test_log_that_is_a_file_is_a_usage_error(inner: Inner) -> None:
    (inner.path / "logs").write_text("")
    session = inner.run(LOUD, "--ranks-log=logs")
    assert session.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(["ERROR: --ranks-log wants a folder, and logs is a file"])


def test_output_too_long_for_a_report_loses_its_middle(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2)
def test_fails(world):
    print("begin")
    for _ in range(200):
        sys.stdout.write(("x" * 99 + "\\n") * 10_000)
    print("end")
    assert not world.rank

@ranks(2)
def test_dies(world):
    os.write(1, b"begin\\n" + b"y" * 10_000_000 + b"\\nend\\n")
    os._exit(1)
"""
    )
    session.result.assert_outcomes(failed=2)
    session.match_failure(
        "test_fails", "begin", "x*", "[[]1* characters left out; --ranks-log DIR keeps *", "end"
    )
    session.match_failure("test_dies", "begin", "[[]* bytes left out; --ranks-log *", "end")
    assert len(session.text) < 8_000_000


EARLY = """
import logging

LOGGER = logging.getLogger("early")
LOGGER.propagate = False
LOGGER.addHandler(logging.StreamHandler())

@ranks(2)
def test_logs():
    LOGGER.warning("words of a handler made at import")
    assert False
"""


def test_handler_made_at_import_writes_to_the_ranks_own_stderr(inner: Inner) -> None:
    session = inner.run(EARLY)
    session.match_failure(
        "test_logs", "-* Captured stderr call (ranks 0-1) -*", "words of a handler made at import"
    )
    assert "Logging error" not in session.text
