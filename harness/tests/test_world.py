"""What a test on ranks knows of its world, and what it can do with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ._inner import Inner, Session

WORLD = """
from shardproof import World, current_world

@ranks(4)
def test_place(world):
    assert isinstance(world, World)
    assert (world.rank, world.world_size) == (dist.get_rank(), dist.get_world_size())
    assert (world.world_size, world.backend) == (4, "gloo")
    assert world.device == torch.device("cpu")
    assert repr(world) == f"<World rank {world.rank} of 4, gloo>"
    assert current_world() is world

@ranks(4)
def test_without_fixture():
    assert current_world().rank == dist.get_rank()
    assert reduce() == [4.0] * 4

@ranks(4)
def test_environment(world):
    assert os.environ["RANK"] == os.environ["LOCAL_RANK"] == str(world.rank)
    assert os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"] == "4"
    assert os.environ["GROUP_RANK"] == "0"
    assert os.environ["MASTER_ADDR"] == "127.0.0.1"
    assert len(set(world.gather(os.environ["MASTER_PORT"]))) == 1

@ranks(4)
def test_gather(world):
    got = world.gather({"rank": world.rank, "text": "x" * 10 ** world.rank})
    assert [entry["rank"] for entry in got] == [0, 1, 2, 3]
    assert [len(entry["text"]) for entry in got] == [1, 10, 100, 1000]
    assert world.gather(None) == [None] * 4

@ranks(4)
def test_barrier(world, shared_tmp_path):
    if world.rank == 3:
        time.sleep(0.3)
        (shared_tmp_path / "written").touch()
    world.barrier()
    assert (shared_tmp_path / "written").exists()

@ranks(4)
def test_subworld(world):
    before = os.environ["MASTER_PORT"]
    with world.subworld(2) as sub:
        if world.rank < 2:
            assert (sub.rank, sub.world_size, sub.backend) == (world.rank, 2, "gloo")
            assert dist.get_world_size() == 2 and os.environ["WORLD_SIZE"] == "2"
            assert current_world() is sub
            assert reduce() == [2.0] * 4
            assert sub.gather(sub.rank) == [0, 1]
        else:
            assert sub is None
            assert not dist.is_initialized()
    assert current_world() is world
    assert dist.get_world_size() == 4 and os.environ["WORLD_SIZE"] == "4"
    assert reduce() == [4.0] * 4
    assert world.gather(world.rank) == [0, 1, 2, 3]

@ranks(4)
def test_subworlds_in_turn(world):
    for size in (1, 4, 3, 2):
        with world.subworld(size) as sub:
            if sub:
                assert reduce() == [float(size)] * 4
        assert reduce() == [4.0] * 4

@ranks(4)
def test_collective_without_a_group(world):
    dist.destroy_process_group()
    reduce()

@ranks(4)
@pytest.mark.parametrize("size", [0, -1, 5])
def test_bounds(world, size):
    with pytest.raises(ValueError, match=f"a subworld of 4 ranks can't have {size}"):
        with world.subworld(size):
            pass
    assert reduce() == [4.0] * 4

@ranks(4)
def test_fails_inside(world):
    with world.subworld(2) as sub:
        if sub:
            if sub.rank == 1:
                raise ValueError("inside")
            reduce()

@ranks(4)
def test_outer_rank_fails_inside(world):
    with world.subworld(2) as sub:
        if sub:
            reduce()
        elif world.rank == 3:
            raise ValueError("outside")

@ranks(4)
def test_one_does_not_enter(world):
    if world.rank == 2:
        raise ValueError("before")
    with world.subworld(3):
        pass

@ranks(4)
def test_dies_inside(world):
    with world.subworld(2) as sub:
        if world.rank == 3:
            os._exit(7)
        if sub:
            reduce()

@ranks(4, timeout=1.5)
def test_hangs_inside(world):
    with world.subworld(2) as sub:
        if world.rank == 1:
            time.sleep(60)

@ranks(4, timeout=1)
def test_one_forgets_to_enter(world):
    if world.rank:
        with world.subworld(3):
            pass

@ranks(4)
def test_healthy(world):
    assert world.gather(world.rank) == [0, 1, 2, 3]
    assert current_world() is world

def test_ordinary():
    with pytest.raises(RuntimeError, match="this process is no rank"):
        current_world()

def test_unmarked_asks_for_world(world):
    pass

def test_unmarked_asks_for_shared_folder(shared_tmp_path):
    pass
"""


@pytest.fixture
def world_session(once: Callable[..., Session]) -> Session:
    """The session of all of the above."""
    return once(WORLD)


@pytest.mark.parametrize(
    "name",
    [
        "test_place",
        "test_without_fixture",
        "test_environment",
        "test_gather",
        "test_barrier",
        "test_subworld",
        "test_subworlds_in_turn",
        "test_bounds[0]",
        "test_bounds[-1]",
        "test_bounds[5]",
        "test_healthy",
        "test_ordinary",
    ],
)
def test_world(world_session: Session, name: str) -> None:
    assert world_session.status(name) == "passed", world_session.failure(name)


def test_failure_inside_a_subworld(world_session: Session) -> None:
    world_session.match_failure(
        "test_fails_inside",
        "___* test_fails_inside (rank 1 of 4) _*",
        "E                   ValueError: inside",
        "-* followed from it -*",
    )
    assert world_session.failure("test_fails_inside").count("ValueError: ") == 1


def test_failure_of_a_rank_outside_of_the_subworld(world_session: Session) -> None:
    world_session.match_failure(
        "test_outer_rank_fails_inside",
        "___* test_outer_rank_fails_inside (rank 3 of 4) _*",
        "E               ValueError: outside",
        "-* followed from it -*",
        "*another rank failed*",
    )


def test_failure_before_a_subworld(world_session: Session) -> None:
    world_session.match_failure(
        "test_one_does_not_enter",
        "___* test_one_does_not_enter (rank 2 of 4) _*",
        "E           ValueError: before",
        "-* followed from it -*",
        "ranks 0-1, 3: test_inner.py:*: lost a peer (another rank failed)",
    )


def test_collective_without_a_group_is_the_ranks_own_failure(world_session: Session) -> None:
    world_session.match_failure(
        "test_collective_without_a_group",
        "___* test_collective_without_a_group (ranks 0-3 of 4) _*",
        "*Error: Default process group has not been initialized*",
    )
    assert "followed" not in world_session.failure("test_collective_without_a_group")


def test_death_inside_a_subworld(world_session: Session) -> None:
    world_session.match_failure("test_dies_inside", "rank 3 ended with exit code 7")


def test_hang_inside_a_subworld(world_session: Session) -> None:
    world_session.match_failure(
        "test_hangs_inside",
        "the test did not end within 1.5 s on ranks 0-3",
        "rank 1 [[]S (sleeping)[]], the innermost call first:",
        '  File "*test_inner.py", line * in test_hangs_inside',
    )


def test_rank_that_forgets_the_subworld_is_named(world_session: Session) -> None:
    world_session.match_failure(
        "test_one_forgets_to_enter",
        "___* test_one_forgets_to_enter (ranks 1-3 of 4) _*",
        "the test did not end within 1 s on ranks 1-3",
        "  rank 0 had finished the test",
        '  File "*test_inner.py", line * in test_one_forgets_to_enter',
    )


def test_unmarked_tests_are_told_what_they_miss(world_session: Session) -> None:
    world_session.match_failure(
        "test_unmarked_asks_for_world",
        "the world fixture needs @pytest.mark.ranks on the test",
    )
    world_session.match_failure(
        "test_unmarked_asks_for_shared_folder",
        "shared_tmp_path needs @pytest.mark.ranks on the test",
    )


def test_groups_by_the_environment(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2, timeout=10)
@pytest.mark.parametrize("method", [None, "env://"])
def test_env(world, method):
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=method)
    assert (dist.get_rank(), dist.get_world_size()) == (world.rank, 2)
    assert reduce() == [2.0] * 4

@ranks(2)
def test_after(world):
    assert reduce() == [2.0] * 4
    assert len(dist.distributed_c10d._world.pg_map) == 1
"""
    )
    session.result.assert_outcomes(passed=3)
