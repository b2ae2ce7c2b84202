"""`refusing/`: what an implementation doesn't claim, it refuses."""

from __future__ import annotations

from shardproof_suites.capability import Capability
from shardproof_suites.case import Case, Tier
from shardproof_suites.cases._cells import cells
from shardproof_suites.cell import Cell, Dtype, StateDictType, Strategy
from shardproof_suites.checks.round_trip import Trip, check_round_trip


def _unclaimed(cell: Cell) -> Case:
    """Ask for a LOCAL state dict; an implementation that claims it round-trips."""
    trip = Trip("uneven", stepped=False)
    return Case(
        id=f"refusing/unclaimed/{cell.name}/{trip.name}",
        clause="refusing.1",
        capability=Capability.LOCAL,
        tier=Tier.CORE,
        cells=(cell, cell),
        check=check_round_trip,
        data=trip,
    )


CASES = tuple(
    _unclaimed(cell)
    for cell in cells(2, (Dtype.FLOAT32,), (StateDictType.LOCAL,))
    if cell.strategy is Strategy.FULL_SHARD
)
