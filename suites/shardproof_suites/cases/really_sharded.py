"""`really-sharded/`: the live model is sharded as asked, and so are the files."""

from __future__ import annotations

from shardproof_suites.capability import Capability
from shardproof_suites.case import Case, Tier
from shardproof_suites.cases._cells import cells
from shardproof_suites.cell import Cell, Dtype, StateDictType
from shardproof_suites.checks.round_trip import Trip, check_saving
from shardproof_suites.checks.sharding import check_sharding

_SHARDED = (StateDictType.SHARDED,)


def _live(cell: Cell) -> Case:
    return Case(
        id=f"really-sharded/live/{cell.model_name}/uneven-w{cell.world_size}",
        clause="sharding.1",
        capability=Capability.SHARDED,
        tier=Tier.CORE,
        cells=(cell,),
        check=check_sharding,
        data="uneven",
    )


def _files(cell: Cell) -> Case:
    return Case(
        id=f"really-sharded/files/{cell.model_name}/uneven-w{cell.world_size}",
        clause="saving.1",
        capability=Capability.SHARDED,
        tier=Tier.CORE,
        cells=(cell,),
        check=check_saving,
        data=Trip("uneven", stepped=False),
    )


CASES = (
    *(_live(cell) for size in (4, 2) for cell in cells(size, (Dtype.FLOAT32,), _SHARDED)),
    *(_files(cell) for cell in cells(4, (Dtype.FLOAT32,), _SHARDED) if cell.shard_group_size > 1),
)
