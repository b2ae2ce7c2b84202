"""`dtype/`: a checkpoint is never cast in silence."""

from __future__ import annotations

from dataclasses import replace

from shardproof_suites.capability import Capability
from shardproof_suites.case import Case, Tier
from shardproof_suites.cases._cells import cells
from shardproof_suites.cell import Cell, Dtype, Strategy
from shardproof_suites.checks.refusal import check_refused_load
from shardproof_suites.checks.round_trip import Trip

_STRATEGIES = (Strategy.FULL_SHARD, Strategy.FULLY_SHARD)


def _refused(cell: Cell, dtype: Dtype) -> Case:
    trip = Trip("uneven", stepped=False)
    return Case(
        id=f"dtype/refused/{cell.name}/{trip.model}-as-{dtype.value}",
        clause="loading.4",
        capability=Capability[cell.state_dict_type.name],
        tier=Tier.CORE,
        cells=(cell, replace(cell, dtype=dtype)),
        check=check_refused_load,
        data=trip,
    )


CASES = tuple(
    _refused(cell, Dtype.BFLOAT16)
    for cell in cells(2, (Dtype.FLOAT32,))
    if cell.strategy in _STRATEGIES
)
