"""The well-known plugins of pytest at work on ranks; docs/plugins.md has the table."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from ._inner import Inner
from ._plugins import Plugged

ROOT = Path(__file__).resolve().parents[2]


def test_table_names_the_versions_that_are_tried() -> None:
    files = [ROOT / "requirements" / f"{name}.txt" for name in ("plugins", "development")]
    pins = "".join(file.read_text() for file in files)
    table = (ROOT / "docs" / "plugins.md").read_text()
    rows = re.findall(r"^\| (pytest-[\w-]+) \| ([\d.]+) \|", table, re.MULTILINE)
    assert {name for name, _ in rows} == set(re.findall(r"^(pytest-\w+)==", pins, re.M)) - {
        "pytest-metadata"
    }
    for name, version in rows:
        assert f"{name}=={version}" in pins


RANDOM = """
import random
import numpy

def draw():
    return random.random(), numpy.random.rand(), torch.rand(1).item()

@ranks(2)
@pytest.mark.parametrize("number", range(8))
def test_numbered(world, number):
    drawn = world.gather((number, *draw()))
    assert drawn[0][0] == drawn[1][0]
    for first, second in zip(drawn[0][1:], drawn[1][1:]):
        assert first != second
    print("drawn", number, drawn)

def test_ordinary():
    random.random()
"""


def test_randomly(plugged: Plugged) -> None:
    def drawn(*args: str) -> list[str]:
        session = plugged.run("randomly", RANDOM, "-p", "randomly", *args)
        session.result.assert_outcomes(passed=9)
        return re.findall(r"^drawn .*", session.text, re.MULTILINE)

    first = drawn("--randomly-seed=5")
    order = [line.split()[1] for line in first]
    assert sorted(order) == [str(number) for number in range(8)]
    assert order != sorted(order)
    assert drawn("--randomly-seed=5") == first
    another = drawn("--randomly-seed=6", "--randomly-dont-reorganize")
    assert [line.split()[1] for line in another] == sorted(order)
    assert not set(another) & set(first)


MOCK = """
class Thing:
    def method(self):
        return "real"

@ranks(2)
def test_patches(world, mocker):
    mocker.patch.object(Thing, "method", return_value=world.rank)
    spy = mocker.spy(os.path, "join")
    os.path.join("a", "b")
    spy.assert_called_once_with("a", "b")
    assert world.gather(Thing().method()) == [0, 1]

@ranks(2)
def test_fails_in_a_patched_world(world, mocker):
    for name in ("os.getpid", "time.monotonic", "time.time", "time.sleep", "json.dumps"):
        mocker.patch(name)
    if world.rank == 1:
        raise ValueError("mine alone")
    reduce()

@ranks(2)
def test_is_undone(world):
    assert Thing().method() == "real"
    assert os.getpid() != 1
    assert reduce() == [2.0] * 4
"""


def test_mock(plugged: Plugged) -> None:
    session = plugged.run("pytest_mock", MOCK)
    session.result.assert_outcomes(passed=2, failed=1)
    session.match_failure(
        "test_fails_in_a_patched_world",
        "___* (rank 1 of 2) _*",
        "E           ValueError: mine alone",
        "-* followed from it -*",
        "rank 0: test_inner.py:*: lost a peer (*)",
    )


ASYNC = """
import asyncio
{import_}

{fixture}
async def place(world):
    await asyncio.sleep(0)
    yield world.rank
    await asyncio.sleep(0)

{mark}
@ranks(2)
async def test_collective(world, place):
    value = torch.ones(4)
    await asyncio.get_running_loop().run_in_executor(None, dist.all_reduce, value)
    assert value.tolist() == [2.0] * 4
    assert world.gather(place) == [0, 1]

{mark}
@ranks(2)
async def test_fails(world):
    await asyncio.sleep(0)
    if world.rank == 1:
        raise ValueError("mine alone")
    reduce()

{mark}
@ranks(2)
async def test_after(world):
    assert world.gather(world.rank) == [0, 1]
"""
MODES = {
    "auto": {"import_": "", "fixture": "@pytest.fixture", "mark": ""},
    "strict": {
        "import_": "import pytest_asyncio",
        "fixture": "@pytest_asyncio.fixture",
        "mark": "@pytest.mark.asyncio",
    },
}


@pytest.mark.parametrize("mode", MODES)
def test_asyncio(plugged: Plugged, mode: str) -> None:
    session = plugged.run("asyncio", ASYNC.format(**MODES[mode]), f"--asyncio-mode={mode}")
    session.result.assert_outcomes(passed=2, failed=1)
    session.match_failure(
        "test_fails",
        "___* test_fails (rank 1 of 2) _*",
        "E           ValueError: mine alone",
        "-* followed from it -*",
        "rank 0: *lost a peer (*)",
    )


BENCHMARK = """
@ranks(2)
def test_alone(world, benchmark):
    benchmark.extra_info["odd"] = torch.ones(1)
    benchmark.pedantic(time.sleep, args=(0.001,), rounds=3)

@ranks(2)
@pytest.mark.parametrize("work", [lambda: time.sleep(0.03)], ids=["collective"])
def test_with_peers(world, benchmark, work):
    def round():
        work()
        reduce()
    benchmark.pedantic(round, rounds=5)

def test_ordinary(benchmark):
    benchmark.pedantic(lambda: None, rounds=4)
"""


def test_benchmark_has_the_figures_of_rank_0(plugged: Plugged) -> None:
    session = plugged.run("benchmark", BENCHMARK, "--benchmark-json=figures.json")
    session.result.assert_outcomes(passed=3)
    session.stdout.fnmatch_lines(["*- benchmark: 3 tests -*", "test_with_peers[[]collective[]] *"])
    figures = json.loads((plugged.path / "figures.json").read_text())["benchmarks"]
    rounds = {figure["name"]: figure["stats"]["rounds"] for figure in figures}
    assert rounds == {"test_alone": 3, "test_with_peers[collective]": 5, "test_ordinary": 4}
    assert figures[1]["stats"]["min"] >= 0.03


def test_html_has_the_merged_report(plugged: Plugged) -> None:
    session = plugged.run(
        "html html_fixtures metadata",
        """
@ranks(2)
def test_fails(world):
    print("printed on", world.rank)
    if world.rank == 1:
        raise ValueError("mine alone")
    reduce()

@ranks(2)
def test_passes(world, extras):
    from pytest_html import extras as kinds
    extras.append(kinds.url(f"https://localhost/{world.rank}"))
""",
        "--html=report.html",
        "--self-contained-html",
    )
    session.result.assert_outcomes(passed=1, failed=1, warnings=session.text.count("Warning: "))
    text = (plugged.path / "report.html").read_text()
    found = re.search(r'data-jsonblob="([^"]*)"', text)
    assert found
    tests = json.loads(html.unescape(found[1]))["tests"]
    (failed,) = tests["test_inner.py::test_fails"]
    assert failed["result"] == "Failed"
    log = html.unescape(failed["log"])
    for words in ("ValueError: mine alone", "followed from it", "call (rank 0)", "printed on 1"):
        assert words in log
    (passed,) = tests["test_inner.py::test_passes"]
    assert passed["result"] == "Passed"
    assert [extra["content"] for extra in passed["extras"]] == ["https://localhost/0"]


SUBTESTS = """
import unittest

@ranks(2)
def test_fixture(subtests, world):
    for number in range(3):
        with subtests.test("part", number=number):
            assert number == 0 or world.rank == 0

@ranks(2)
class TestCase(unittest.TestCase):
    def test_method(self):
        for number in range(3):
            with self.subTest("part", number=number):
                self.assertEqual(number, 0)

@ranks(2)
def test_passes(subtests):
    with subtests.test("part"):
        reduce()
"""


@pytest.mark.parametrize("plugin", ["", "pytest_subtests.plugin"])
def test_subtests(plugged: Plugged, plugin: str) -> None:
    session = plugged.run(plugin, SUBTESTS)
    session.result.assert_outcomes(passed=1, failed=2)
    session.stdout.fnmatch_lines(
        [
            "FAILED *::test_fixture - rank 1: test_fixture [[]part[]] (number=1): *",
            "FAILED *::test_method - ranks 0-1: *test_method [[]part[]] (number=1): *",
        ]
    )
    session.match_failure("test_fixture", "-* also failed: test_fixture [[]part[]] (number=2) -*")
    text = session.failure("test_method")
    assert text.count("E   ") == 2
    session.match_failure("test_method", "*AssertionError: 1 != 0", "*AssertionError: 2 != 0")


SKIPPED_SUBTESTS = """
import unittest

@ranks(2)
class TestSkips(unittest.TestCase):
    def test_everywhere(self):
        for number in range(3):
            with self.subTest("part", number=number):
                if number == 1:
                    self.skipTest("nowhere")
        print("the only output")

@ranks(3)
def test_one_skips(subtests, world):
    for number in range(3):
        with subtests.test("part", number=number):
            if number == 2 and world.rank == 1:
                pytest.skip("not here")

@ranks(2)
def test_one_xfails(subtests, world):
    with subtests.test("part"):
        if world.rank == 0:
            pytest.xfail("known")

@ranks(2)
def test_each_has_its_reason(subtests, world):
    for name in ("a", "b")[:: 1 if world.rank else -1]:
        with subtests.test(name):
            pytest.skip(f"for {world.rank}")

@ranks(2)
@pytest.mark.xfail(reason="known", strict=False)
def test_marked(subtests, world):
    with subtests.test("part"):
        assert world.rank

@ranks(2)
def test_fails_then_skips(subtests, world):
    with subtests.test("part"):
        assert world.rank
    pytest.skip("the rest")

@ranks(2)
def test_fails_twice(subtests):
    with subtests.test("part"):
        assert 0, "in the part"
    assert 0, "afterwards"

@ranks(2)
def test_one_fails(subtests, world):
    for number in range(2):
        with subtests.test("part", number=number):
            assert number == 0 or world.rank == 0
"""


def test_subtests_that_ranks_skip(inner: Inner) -> None:
    session = inner.run(SKIPPED_SUBTESTS, "-v")
    text = session.text
    for number, word in enumerate(("PASS", "SKIP", "PASS")):
        mark = rf"SUB{word}\S*\s?\[part\] \(number={number}\)"
        assert len(re.findall(rf"TestSkips::test_everywhere .*{mark}", text)) == 1
    assert len(re.findall(r"::test_one_fails .*SUBPASS\S*\s?\[part\] \(number=0\)", text)) == 1
    assert not re.search(r"::test_one_fails .*SUBPASS.*number=1", text)
    assert session.status("test_everywhere") == "passed"
    assert session.status("test_each_has_its_reason") == "passed"
    assert session.status("test_marked") == "xpass, xpass"  # as pytest has it
    assert session.status("test_fails_then_skips") == "failed"
    session.match_failure("test_fails_twice", "E *afterwards", "*also failed: *", "E *in the part")
    assert re.search(r"- Captured stdout call \(ranks 0-1\) -+\nthe only output\n", text)
    session.match_failure(
        "test_one_skips",
        "the ranks disagree: ranks 0, 2 passed; "
        "rank 1 passed, test_one_skips [[]part[]] (number=2) skipped (not here)",
    )
    session.match_failure(
        "test_one_xfails", "*: rank 0 passed, test_one_xfails [[]part[]] xfailed; *"
    )


def test_everything_together(plugged: Plugged) -> None:
    """Several plugins wrap the same hooks; a test on ranks runs once under all of them."""
    session = plugged.run(
        "timeout rerunfailures randomly pytest_mock pytest_cov html metadata",
        """
@ranks(2)
def test_flaky(world, shared_tmp_path, mocker):
    path = Path(os.environ["HOME"], f"ran{world.rank}")
    world.barrier()
    if not path.exists():
        path.touch()
        raise ValueError("the first time")
    reduce()
""",
        *("--timeout=60", "--reruns=2", "--cov=test_inner", "--html=report.html"),
    )
    assert session.result.parseoutcomes()["rerun"] == 1
    assert session.result.parseoutcomes()["passed"] == 1
    assert "failed" not in session.result.parseoutcomes()
