"""`reshard/`: a checkpoint loads at another world size than it was saved at."""

from __future__ import annotations

from shardproof_suites.capability import Capability
from shardproof_suites.case import Case, Tier
from shardproof_suites.cases._cells import cells
from shardproof_suites.cell import Cell, Dtype
from shardproof_suites.checks.round_trip import Trip, check_round_trip

_MODELS = {Dtype.FLOAT32: "uneven", Dtype.BFLOAT16: "tied"}


def _case(cell: Cell, world_size: int) -> Case:
    trip = Trip(_MODELS[cell.dtype], stepped=False)
    return Case(
        id=f"reshard/{cell.world_size}-to-{world_size}/{cell.name}/{trip.name}",
        clause="loading.3",
        capability=Capability.RESHARD,
        tier=Tier.CORE,
        cells=(cell, cell.at(world_size)),
        check=check_round_trip,
        data=trip,
    )


CASES = tuple(_case(cell, 2) for cell in cells(4))
