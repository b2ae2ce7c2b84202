"""The cells that the cases of several areas go through."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from shardproof_suites.cell import Cell, Dtype, StateDictType, Strategy, default_mesh
from shardproof_suites.legality import legal

_ORIGINAL_PARAMETERS = (None, False, True)


def cells(
    world_size: int,
    dtypes: Iterable[Dtype] = tuple(Dtype),
    types: Iterable[StateDictType] = (StateDictType.FULL, StateDictType.SHARDED),
) -> list[Cell]:
    """List the legal cells of every strategy at one world size, on its usual mesh."""
    listed = [
        Cell(strategy, dtype, kind, world_size, original, default_mesh(strategy, world_size))
        for strategy, original, dtype, kind in product(
            Strategy, _ORIGINAL_PARAMETERS, dtypes, types
        )
    ]
    return [cell for cell in listed if legal(cell) is None]
