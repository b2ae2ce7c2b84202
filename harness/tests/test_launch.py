"""`launch` runs a function on fresh ranks and returns each rank's result."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ._inner import Inner, Session

WORKS = """
from shardproof import RankFailure, current_world

def place(offset, *, scale=1):
    world = current_world()
    assert dist.get_rank() == world.rank
    return (world.rank + offset) * scale, world.world_size, reduce(1)

def test_results_in_rank_order(launch):
    assert launch(place, 10, scale=2, world_size=3) == [
        (20, 3, [3.0]), (22, 3, [3.0]), (24, 3, [3.0])
    ]

def test_default_world(launch):
    assert len(launch(place, 0)) == 4

MEMORY = []

def save(folder):
    MEMORY.append("saved")
    (folder / f"{dist.get_rank()}").write_text(str(os.getpid()))
    return os.getpid(), len(MEMORY)

def load(folder):
    MEMORY.append("loaded")
    return os.getpid(), len(MEMORY), sorted(path.name for path in folder.iterdir())

def test_stages_share_only_the_disk(launch, tmp_path):
    saved = launch(save, tmp_path, world_size=3)
    loaded = launch(load, tmp_path, world_size=2)
    assert [count for _, count in saved] == [1, 1, 1]
    assert [count for _, count, _ in loaded] == [1, 1]
    assert [names for _, _, names in loaded] == [["0", "1", "2"]] * 2
    pids = [entry[0] for entry in saved + loaded] + [os.getpid()]
    assert len(set(pids)) == 6
    assert [int((tmp_path / str(rank)).read_text()) for rank in range(3)] == pids[:3]
    assert MEMORY == []

def big(size):
    return torch.full((size,), float(dist.get_rank()))

def test_tensors_and_big_values(launch):
    first, second = launch(big, 4_000_000, world_size=2)
    assert first.shape == second.shape == (4_000_000,)
    assert (first == 0).all() and (second == 1).all()

def test_big_argument(launch):
    assert launch(len, b"x" * 30_000_000, world_size=2) == [30_000_000] * 2

def nothing():
    print("printed on", dist.get_rank())

def test_what_returns_nothing(launch):
    assert launch(nothing, world_size=2) == [None, None]
    assert not dist.is_initialized()

def test_closure(launch):
    local = 5
    def inside():
        return local
    for function in (inside, lambda: 5):
        with pytest.raises(TypeError, match="Use a function at module level and plain arguments"):
            launch(function, world_size=1)

def test_argument_that_cannot_be_pickled(launch):
    with pytest.raises(TypeError, match="can't be pickled"):
        launch(place, threading.Lock(), world_size=1)

def subworlds():
    world = current_world()
    with world.subworld(1) as sub:
        inside = sub and sub.world_size
    return inside, reduce(1)

def test_subworld(launch):
    assert launch(subworlds, world_size=3) == [(1, [3.0]), (None, [3.0]), (None, [3.0])]

def destroys():
    dist.destroy_process_group()
    return 1

def test_function_that_destroys_the_group(launch):
    assert launch(destroys, world_size=2) == [1, 1]

def test_backend(launch):
    assert launch(dist.get_backend, world_size=1, backend="gloo") == ["gloo"]

def test_too_many(launch):
    launch(place, 0, world_size=9)
    raise AssertionError("not reached")

@pytest.fixture
def saved(launch, tmp_path):
    return launch(save, tmp_path, world_size=2)

def test_in_a_fixture(saved):
    assert len(saved) == 2

@ranks(2)
def test_inside_a_ranked_test(launch):
    pass

@pytest.mark.parametrize("world_size", [1, 2])
def test_parametrized(launch, world_size):
    assert len(launch(place, 0, world_size=world_size)) == world_size
"""


@pytest.fixture
def works(once: Callable[..., Session]) -> Session:
    """The session of all of the above."""
    return once(WORKS)


@pytest.mark.parametrize(
    "name",
    [
        "test_results_in_rank_order",
        "test_default_world",
        "test_stages_share_only_the_disk",
        "test_tensors_and_big_values",
        "test_big_argument",
        "test_what_returns_nothing",
        "test_closure",
        "test_argument_that_cannot_be_pickled",
        "test_subworld",
        "test_function_that_destroys_the_group",
        "test_backend",
        "test_in_a_fixture",
        "test_parametrized[1]",
        "test_parametrized[2]",
    ],
)
def test_launch(works: Session, name: str) -> None:
    assert works.status(name) == "passed", works.failure(name)


def test_more_ranks_than_allowed_skips(works: Session) -> None:
    works.stdout.fnmatch_lines(
        ["SKIPPED test_inner.py::test_too_many - Skipped: needs 9 ranks, CPUs allows 4"]
    )


def test_launch_on_a_rank_is_refused(works: Session) -> None:
    works.match_failure(
        "test_inside_a_ranked_test",
        "*ERROR at setup of test_inside_a_ranked_test (ranks 0-1 of 2)*",
        "launch starts ranks from the pytest process: request it by name in a test that isn't *",
    )


SEEDS = """
import json
import numpy
from shardproof import current_world

def first():
    return random.random(), float(numpy.random.rand()), torch.rand(1).item()

def test_seeds(launch):
    drawn = launch(first, world_size=2) + launch(first, world_size=2)
    Path(os.environ["DRAWN"]).open("a").write(json.dumps(drawn) + "\\n")

def test_other_seeds(launch):
    Path(os.environ["DRAWN"]).open("a").write(json.dumps(launch(first, world_size=2)) + "\\n")
"""


def test_seeds_differ_by_rank_and_launch_and_repeat_from_run_to_run(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = inner.path / "drawn"
    monkeypatch.setenv("DRAWN", str(drawn))
    for _ in range(2):
        inner.run(SEEDS).result.assert_outcomes(passed=2)
    first, other, again, other_again = (eval(line) for line in drawn.read_text().splitlines())
    assert first == again
    assert other == other_again
    for numbers in zip(*first, *other, strict=True):
        assert len(set(numbers)) == 6


def test_only_launches_start_the_engine_too(inner: Inner) -> None:
    session = inner.run(
        """
def one():
    return 1

@pytest.fixture
def ones(launch):
    return launch(one, world_size=2)

def test_it(ones):
    assert ones == [1, 1]

def test_by_name(request):
    assert request.getfixturevalue("launch")(one, world_size=1) == [1]
"""
    )
    session.stdout.fnmatch_lines(["ranks: world 4, gloo, *"])
    session.result.assert_outcomes(passed=2)
