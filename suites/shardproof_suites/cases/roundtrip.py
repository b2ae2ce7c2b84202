"""`roundtrip/`: what one set of processes saved, another one of the same size gets back."""

from __future__ import annotations

from shardproof_suites.capability import Capability
from shardproof_suites.case import Case, Tier
from shardproof_suites.cases._cells import cells
from shardproof_suites.cell import Cell, Dtype, Strategy
from shardproof_suites.checks.round_trip import Trip, check_round_trip, check_saving
from shardproof_suites.models import ZOO


def _round_trip(cell: Cell, trip: Trip) -> Case:
    size = cell.world_size
    plain = cell.strategy is Strategy.FULL_SHARD and cell.dtype is Dtype.FLOAT32
    return Case(
        id=f"roundtrip/{size}-to-{size}/{cell.name}/{trip.name}",
        clause="loading.2" if trip.stepped else "loading.1",
        capability=(Capability.LOAD if trip.stepped else Capability[cell.state_dict_type.name]),
        tier=Tier.SMOKE if plain else Tier.CORE,
        cells=(cell, cell),
        check=check_round_trip,
        data=trip,
    )


def _untouched(cell: Cell) -> Case:
    trip = Trip("tied", stepped=False)
    return Case(
        id=f"roundtrip/untouched/{cell.name}/{trip.model}",
        clause="saving.2",
        capability=Capability[cell.state_dict_type.name],
        tier=Tier.CORE,
        cells=(cell,),
        check=check_saving,
        data=trip,
    )


CASES = (
    *(_round_trip(cell, Trip(model, stepped=False)) for cell in cells(4) for model in ZOO),
    *(_round_trip(cell, Trip("uneven", stepped=True)) for cell in cells(4, (Dtype.FLOAT32,))),
    *(_untouched(cell) for cell in cells(2, (Dtype.FLOAT32,))),
)
