"""Names and meshes of cells, and the table of what torch can't do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shardproof_suites.cell import Cell, Dtype, StateDictType, Strategy, default_mesh
from shardproof_suites.legality import legal

FULL_SHARD = Cell(Strategy.FULL_SHARD, Dtype.FLOAT32, StateDictType.SHARDED, 4, False)
HYBRID = replace(FULL_SHARD, strategy=Strategy.HYBRID_SHARD, mesh=(2, 2))
FULLY_SHARD = replace(FULL_SHARD, strategy=Strategy.FULLY_SHARD, use_orig_params=None, mesh=(4,))
FULLY_SHARD_2D = replace(FULLY_SHARD, strategy=Strategy.FULLY_SHARD_2D, mesh=(2, 2))
LOCAL = replace(FULL_SHARD, state_dict_type=StateDictType.LOCAL)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (FULL_SHARD, None),
        (replace(FULL_SHARD, use_orig_params=True), None),
        (replace(FULL_SHARD, strategy=Strategy.SHARD_GRAD_OP), None),
        (replace(FULL_SHARD, strategy=Strategy.NO_SHARD), None),
        (replace(FULL_SHARD, world_size=1), None),
        (replace(FULL_SHARD, state_dict_type=StateDictType.FULL), None),
        (HYBRID, None),
        (replace(HYBRID, strategy=Strategy.HYBRID_SHARD_ZERO2), None),
        (replace(HYBRID, mesh=(1, 4)), None),
        (FULLY_SHARD, None),
        (FULLY_SHARD_2D, None),
        (LOCAL, None),
        (replace(LOCAL, strategy=Strategy.NO_SHARD), "stores the full one"),
        (replace(FULL_SHARD, world_size=0), "at least one rank"),
        (replace(HYBRID, world_size=6), "every rank once"),
        (replace(FULLY_SHARD, mesh=(2,)), "every rank once"),
        (replace(HYBRID, mesh=None), "explicit 2-D mesh"),
        (replace(HYBRID, mesh=(4,)), "explicit 2-D mesh"),
        (replace(HYBRID, strategy=Strategy.HYBRID_SHARD_ZERO2, mesh=None), "explicit 2-D mesh"),
        (replace(FULL_SHARD, mesh=(2, 2)), "first dimension"),
        (replace(FULLY_SHARD, mesh=(2, 2)), "number of dimensions"),
        (replace(FULLY_SHARD, mesh=None), "number of dimensions"),
        (replace(FULLY_SHARD_2D, mesh=(4,)), "number of dimensions"),
        (replace(FULLY_SHARD, use_orig_params=True), "always keeps"),
        (replace(FULL_SHARD, use_orig_params=None), "needs a choice"),
        (replace(FULLY_SHARD, state_dict_type=StateDictType.LOCAL), "no LOCAL"),
        (replace(LOCAL, mesh=(4,)), "with a device mesh"),
        (replace(HYBRID, state_dict_type=StateDictType.LOCAL), "with a device mesh"),
        (replace(LOCAL, use_orig_params=True), "hides them"),
    ],
)
def test_legal_says_why_torch_cant_do_a_cell(cell: Cell, reason: str | None) -> None:
    found = legal(cell)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 8])
def test_the_usual_mesh_is_legal_at_every_world_size(strategy: Strategy, world_size: int) -> None:
    original = None if strategy.fsdp_version == 2 else False
    mesh = default_mesh(strategy, world_size)
    cell = Cell(strategy, Dtype.FLOAT32, StateDictType.FULL, world_size, original, mesh)
    assert legal(cell) is None
    assert legal(cell.at(world_size + 1)) is None


@pytest.mark.parametrize(
    ("strategy", "world_size", "mesh"),
    [
        (Strategy.FULL_SHARD, 4, None),
        (Strategy.HYBRID_SHARD, 4, (2, 2)),
        (Strategy.HYBRID_SHARD, 3, (1, 3)),
        (Strategy.HYBRID_SHARD, 2, (1, 2)),
        (Strategy.FULLY_SHARD, 3, (3,)),
        (Strategy.FULLY_SHARD_2D, 8, (2, 4)),
    ],
)
def test_the_usual_mesh_has_two_replicas_where_groups_stay_groups(
    strategy: Strategy, world_size: int, mesh: tuple[int, ...] | None
) -> None:
    assert default_mesh(strategy, world_size) == mesh


@pytest.mark.parametrize(
    ("cell", "name", "shards"),
    [
        (FULL_SHARD, "full-shard-flat-float32-sharded", 4),
        (replace(HYBRID, use_orig_params=True), "hybrid-shard-orig-float32-sharded", 2),
        (replace(FULL_SHARD, strategy=Strategy.NO_SHARD), "no-shard-flat-float32-sharded", 1),
        (replace(FULLY_SHARD_2D, dtype=Dtype.BFLOAT16), "fully-shard-2d-bfloat16-sharded", 2),
    ],
)
def test_a_cell_has_a_name_and_a_shard_group(cell: Cell, name: str, shards: int) -> None:
    assert (cell.name, cell.shard_group_size) == (name, shards)
