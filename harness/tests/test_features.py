"""pytest's own features are at home on ranks; fixtures and reports have files of their own."""

from __future__ import annotations

import pytest

from ._inner import Inner, Session

SELECT = """
pytestmark = pytest.mark.filterwarnings("error")

@ranks(2)
def test_alpha(world):
    reduce()

@ranks(2)
def test_beta(world):
    assert world.rank or Path("mended").exists()

@pytest.mark.skipif(False, reason="never")
@ranks(2)
def test_gamma(world):
    assert Path("mended").exists()

@pytest.mark.slow
@ranks(2)
def test_delta(world):
    reduce()
"""
CACHE = ("-p", "cacheprovider")


def names(session: Session) -> list[str]:
    """Return the tests that a verbose session has run, in order."""
    lines = [line.split() for line in session.text.splitlines()]
    return [
        line[0].rpartition("::")[2]
        for line in lines
        if len(line) > 1 and "::" in line[0] and line[1] in ("PASSED", "FAILED")
    ]


def test_last_failed_and_failed_first(inner: Inner) -> None:
    inner.pytester.makeini("[pytest]\nmarkers = slow\n")
    first = inner.run(SELECT, *CACHE, "-v")
    first.result.assert_outcomes(passed=2, failed=2)
    again = inner.run(None, *CACHE, "-v", "--lf")
    assert names(again) == ["test_beta", "test_gamma"]
    again.stdout.fnmatch_lines(["*rerun previous 2 failures*"])
    ahead = inner.run(None, *CACHE, "-v", "--ff")
    assert names(ahead) == ["test_beta", "test_gamma", "test_alpha", "test_delta"]
    step = inner.run(None, *CACHE, "-p", "stepwise", "-v", "--stepwise")
    assert names(step) == ["test_alpha", "test_beta"]
    (inner.path / "mended").touch()
    inner.run(None, *CACHE, "--lf").result.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("args", "ran"),
    [
        (("-k", "alpha or delta"), ["test_alpha", "test_delta"]),
        (("-m", "slow"), ["test_delta"]),
        (("-m", "ranks and not slow"), ["test_alpha", "test_beta", "test_gamma"]),
        (("--maxfail=2",), ["test_alpha", "test_beta", "test_gamma"]),
        (("test_inner.py::test_delta", "test_inner.py::test_alpha"), ["test_delta", "test_alpha"]),
    ],
)
def test_selection(inner: Inner, args: tuple[str, ...], ran: list[str]) -> None:
    inner.pytester.makeini("[pytest]\nmarkers = slow\n")
    assert names(inner.run(SELECT, "-v", *args)) == ran


SHOW = """
@pytest.fixture(scope="module")
def wide(world):
    yield

@pytest.fixture(params=["one"])
def small(request):
    return request.param

@pytest.fixture
def asked():
    pass

@ranks(3)
def test_alike(wide, small):
    pass

@ranks(3)
def test_differs(request, world):
    if world.rank == 1:
        request.getfixturevalue("asked")

@ranks(3)
def test_last(wide):
    pass

def test_ordinary(asked):
    pass
"""
ALIKE = [
    "SETUP    S world",
    "    SETUP    M wide (fixtures used: world)",
    "        SETUP    F small['one']",
    "        test_inner.py::test_alike[one] (fixtures used: request, small, wide, world)",
    "        TEARDOWN F small['one']",
]


def shown(session: Session, first: str, last: str) -> list[str]:
    """Return the lines from one to another, the letters of outcomes cut off."""
    lines = [line.removesuffix(".").rstrip() for line in session.text.splitlines()]
    return lines[lines.index(first) : lines.index(last) + 1]


def test_setup_show_is_told_once(inner: Inner) -> None:
    session = inner.run(SHOW, "--setup-show")
    session.result.assert_outcomes(passed=4)
    told = shown(session, ALIKE[0], "TEARDOWN S world")
    assert told[:5] == ALIKE
    asks = "        test_inner.py::test_differs (fixtures used: request, world)"
    assert told[5:] == [
        "ranks 0, 2:",
        asks,
        "rank 1:",
        asks,
        "        SETUP    F asked",
        "rank 1:",
        "        TEARDOWN F asked",
        "        test_inner.py::test_last (fixtures used: request, wide, world)",
        "    TEARDOWN M wide",
        "TEARDOWN S world",
    ]
    assert session.text.count("SETUP    F asked") == 2


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_setup_without_the_tests_is_told_once(inner: Inner, option: str) -> None:
    session = inner.run(SHOW, option)
    assert shown(session, ALIKE[0], ALIKE[-1]) == ALIKE
    assert session.text.count("test_inner.py::test_alike[one]") == 1
    assert session.ret == 0


@pytest.mark.parametrize("mode", ["prepend", "append", "importlib"])
def test_import_modes(inner: Inner, mode: str) -> None:
    for folder in ("one", "two"):
        package = inner.path / folder
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "test_same.py").write_text(
            "import pytest\n\n"
            f"def where():\n    return {folder!r}\n\n"
            "@pytest.mark.ranks(2)\ndef test_marked(world):\n"
            f"    assert world.gather(where()) == [{folder!r}] * 2\n\n"
            "def test_launch(launch):\n"
            f"    assert launch(where, world_size=2) == [{folder!r}] * 2\n"
        )
    session = inner.run(None, f"--import-mode={mode}")
    session.result.assert_outcomes(passed=4)


def test_world_sizes_by_parametrization(inner: Inner) -> None:
    session = inner.run(
        """
@pytest.mark.parametrize("size", [pytest.param(n, marks=ranks(n)) for n in (1, 2, 3)])
def test_sizes(size, world):
    assert world.world_size == size == dist.get_world_size()
    assert reduce() == [float(size)] * 4

@pytest.mark.parametrize("size", [pytest.param(2, marks=ranks(2)), None])
def test_some(size, request):
    if size is None:
        assert not dist.is_initialized()
    else:
        assert request.getfixturevalue("world").world_size == size

@pytest.fixture(params=[pytest.param(2, marks=ranks(2)), pytest.param(3, marks=ranks(3))])
def sized(request):
    return request.param

def test_by_fixture(sized, world):
    assert world.world_size == sized
"""
    )
    session.result.assert_outcomes(passed=7)


def test_module_mark_and_dynamic_fixtures(inner: Inner) -> None:
    session = inner.run(
        """
pytestmark = ranks(2)

@pytest.fixture(scope="module")
def wide(request):
    return request.getfixturevalue("world").rank

def test_dynamic(request):
    world = request.getfixturevalue("world")
    assert world.gather(request.getfixturevalue("wide")) == [0, 1]
    assert request.getfixturevalue("tmp_path").is_dir()

@ranks(3)
def test_closest_mark_counts(world):
    assert world.world_size == 3

class TestClass:
    pytestmark = ranks(1)

    def test_of_the_class(self, world):
        assert world.world_size == 1
"""
    )
    session.result.assert_outcomes(passed=3)


def test_methods_of_unittest_set_up_on_ranks(inner: Inner) -> None:
    session = inner.run(
        """
import unittest

def note(event):
    with open(f"events.{dist.get_rank()}", "a") as file:
        file.write(event + " ")

@ranks(2)
class TestPlain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        note("+class")

    @classmethod
    def tearDownClass(cls):
        note("-class")

    def setUp(self):
        note("+")
        self.addCleanup(note, "cleanup")

    def tearDown(self):
        note("-")

    def test_one(self):
        note("one")

    def test_two(self):
        note("two")

@ranks(2)
class TestAsync(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.rank = dist.get_rank()

    async def test_awaits(self):
        dist.barrier()
        self.assertEqual(self.rank, dist.get_rank())

    async def test_awaits_and_fails(self):
        self.assertEqual(self.rank, 0)
"""
    )
    session.result.assert_outcomes(passed=3, failed=1)
    session.match_failure("test_awaits_and_fails", "*(rank 1 of 2)*", "E*AssertionError: 1 != 0")
    for rank in range(2):
        events = (inner.path / f"events.{rank}").read_text()
        assert events == "+class + one - cleanup + two - cleanup -class "


def test_doctests(inner: Inner) -> None:
    source = '''
"""
>>> import torch.distributed as dist
>>> dist.get_world_size()
2
"""
import pytest
pytestmark = pytest.mark.ranks(2)

def fails():
    """
    >>> import torch.distributed as dist
    >>> dist.get_rank()
    0
    """
'''
    (inner.path / "documented.py").write_text(source)
    session = inner.run(None, "--doctest-modules", "documented.py")
    session.result.assert_outcomes(passed=1, failed=1)
    session.match_failure("documented.fails", "*(rank 1 of 2)*", "Expected:", "    0", "    1")


def test_load_groups_of_workers(inner: Inner) -> None:
    session = inner.run(
        """
def note(group):
    print("noted", group, os.environ["PYTEST_XDIST_WORKER"])

@pytest.mark.xdist_group("ordinary")
@pytest.mark.parametrize("number", range(4))
def test_ordinary(number):
    note("ordinary")

@pytest.mark.xdist_group("ranks")
@ranks(2)
@pytest.mark.parametrize("number", range(4))
def test_ranks(world, number):
    note("ranks")
    assert reduce() == [2.0] * 4
""",
        *("-n2", "--dist=loadgroup", "-v"),
    )
    session.result.assert_outcomes(passed=8)
    noted = {tuple(x.split()[1:]) for x in session.text.splitlines() if x.startswith("noted ")}
    workers = {
        name: {worker for group, worker in noted if group == name} for name in ("ordinary", "ranks")
    }
    # pytest-xdist 3.8 can't group with pytest 9.2: then ordinary tests are spread, too.
    assert len(workers["ranks"]) == 1 or len(workers["ordinary"]) == 2
