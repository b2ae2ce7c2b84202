"""Which cells torch can do at all. One pure table: the reasons are read by people."""

from __future__ import annotations

import math
from collections.abc import Callable

from shardproof_suites.cell import Cell, StateDictType, Strategy

_HYBRID = (Strategy.HYBRID_SHARD, Strategy.HYBRID_SHARD_ZERO2)


def legal(cell: Cell) -> str | None:
    """Say why torch can't do a cell, or None where it can.

    An implementation must either round-trip an illegal cell exactly or refuse it with nothing
    written.
    """
    return next((reason for reason, applies in _RULES if applies(cell)), None)


def _is_local(cell: Cell) -> bool:
    return cell.state_dict_type is StateDictType.LOCAL


_RULES: tuple[tuple[str, Callable[[Cell], bool]], ...] = (
    ("a world has at least one rank", lambda cell: cell.world_size < 1),
    (
        "the mesh must hold every rank once",
        lambda cell: cell.mesh is not None and math.prod(cell.mesh) != cell.world_size,
    ),
    (
        "HYBRID needs an explicit 2-D mesh: without one torch makes groups of a host's devices, "
        "and on a CPU-only host shards nothing",
        lambda cell: cell.strategy in _HYBRID and len(cell.mesh or ()) != 2,
    ),
    (
        "a strategy that isn't HYBRID shards over the first dimension of a 2-D mesh only",
        lambda cell: (
            cell.strategy.fsdp_version == 1
            and cell.strategy not in _HYBRID
            and len(cell.mesh or ()) > 1
        ),
    ),
    (
        "fully_shard needs a mesh of the strategy's number of dimensions",
        lambda cell: (
            cell.strategy.fsdp_version == 2
            and len(cell.mesh or ()) != cell.strategy.mesh_dimensions
        ),
    ),
    (
        "fully_shard always keeps the original parameters",
        lambda cell: cell.strategy.fsdp_version == 2 and cell.use_orig_params is not None,
    ),
    (
        "FSDP1 needs a choice of use_orig_params",
        lambda cell: cell.strategy.fsdp_version == 1 and cell.use_orig_params is None,
    ),
    (
        "fully_shard has no LOCAL state dict",
        lambda cell: _is_local(cell) and cell.strategy.fsdp_version == 2,
    ),
    (
        "NO_SHARD has no LOCAL state dict: torch stores the full one, with a warning",
        lambda cell: _is_local(cell) and cell.strategy is Strategy.NO_SHARD,
    ),
    (
        "torch refuses LOCAL with a device mesh, which HYBRID needs",
        lambda cell: _is_local(cell) and cell.mesh is not None,
    ),
    (
        "LOCAL stores flat parameters, and use_orig_params=True hides them",
        lambda cell: _is_local(cell) and cell.use_orig_params is True,
    ),
)
