"""Whether a model that was asked to be sharded really is; asked on both sides of every save.

Without it, a test of sharded checkpoints can pass on a model that was never sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, ShardingStrategy
from torch.distributed.tensor import DTensor, Replicate, Shard

from shardproof_suites.cell import Cell, Strategy
from shardproof_suites.live._parameters import live_parameters
from shardproof_suites.oracle import clean_name
from shardproof_suites.violation import Code, Violation

if TYPE_CHECKING:
    from torch import nn

CLAUSE = "sharding.1"


def sharding_violations(modules: Sequence[nn.Module], cell: Cell, units: int) -> list[Violation]:
    """Compare wrap class, number of units, strategy, group sizes and local sizes with a cell.

    Args:
        modules: The sharded model, or its parts.
        cell: What was asked for.
        units: Number of units that the model has, its root included.
    """
    found = [module for root in modules for module in _wrapped(root, cell)]
    wanted = "FSDPModule" if cell.strategy.fsdp_version == 2 else "FullyShardedDataParallel"
    if not found:
        classes = ", ".join(type(root).__name__ for root in modules)
        return [_violation(Code.NOT_WRAPPED, "model", f"wanted {wanted}", f"found {classes}")]
    violations = []
    if len(found) != units:
        details = f"wanted {units} units of {wanted}", f"found {len(found)}"
        violations.append(_violation(Code.WRONG_UNITS, "model", *details))
    for name, module in found:
        if isinstance(module, FullyShardedDataParallel):
            violations += _flat_unit(name or "root", module, cell)
    for root in modules:
        check = _dtensors if cell.strategy.fsdp_version == 2 else _left_out
        violations += check(root, cell)
    return violations


def _wrapped(root: nn.Module, cell: Cell) -> Iterator[tuple[str, object]]:
    wanted = FSDPModule if cell.strategy.fsdp_version == 2 else FullyShardedDataParallel
    for name, module in root.named_modules():
        if isinstance(module, wanted):
            yield clean_name(name), module


def _flat_unit(name: str, unit: FullyShardedDataParallel, cell: Cell) -> Iterator[Violation]:
    """Check one unit of FSDP1."""
    shards = cell.shard_group_size
    strategy = _fsdp1_strategy(cell)
    if unit.sharding_strategy is not strategy:
        details = f"wanted {strategy.name}", f"found {unit.sharding_strategy}"
        yield _violation(Code.WRONG_STRATEGY, f"unit {name}", *details)
    sizes = _group_sizes(unit)
    # NO_SHARD too has a group of all ranks, which are all replicas.
    wanted = cell.mesh or (cell.world_size,)
    if sizes != wanted:
        details = f"wanted groups of {wanted} ranks", f"found {sizes}"
        yield _violation(Code.WRONG_GROUP, f"unit {name}", *details)
    handle: Any = unit._handle
    if handle is None:
        return
    whole, local = handle.flat_param._unpadded_unsharded_size.numel(), handle.flat_param.numel()
    if local != -(-whole // shards):
        details = f"wanted {-(-whole // shards)} of {whole} elements", f"found {local}"
        yield _violation(Code.WRONG_LOCAL_SIZE, f"unit {name}", *details)


def _left_out(root: nn.Module, cell: Cell) -> Iterator[Violation]:
    """Find parameters that are whole on every rank, as those that no unit has taken in are."""
    for one in live_parameters([root]) if cell.shard_group_size > 1 else ():
        if not isinstance(one.shard.offset, int):
            details = "wanted a part of a flat parameter", "found it whole on every rank"
            yield _violation(Code.WRONG_LOCAL_SIZE, f"parameter {one.names[0]}", *details)


def _fsdp1_strategy(cell: Cell) -> ShardingStrategy:
    """Give torch's name; in a group of one rank torch turns every strategy into NO_SHARD."""
    if cell.shard_group_size == 1:
        return ShardingStrategy.NO_SHARD
    if cell.strategy is Strategy.HYBRID_SHARD_ZERO2:
        return ShardingStrategy._HYBRID_SHARD_ZERO2
    return ShardingStrategy[cell.strategy.name]


def _group_sizes(unit: Any) -> tuple[int, ...]:
    """Give the sizes of a unit's groups: (replicate, shard), or the one that there is."""
    replicas = getattr(unit, "_inter_node_pg", None)
    own = unit.process_group.size()
    return (own,) if replicas is None else (replicas.size(), own)


def _dtensors(root: nn.Module, cell: Cell) -> Iterator[Violation]:
    """Check the parameters of `fully_shard`."""
    mesh = cell.mesh or (cell.world_size,)
    placements = (*(Replicate() for _ in mesh[:-1]), Shard(0))
    for name, parameter in root.named_parameters():
        item = f"parameter {clean_name(name)}"
        if not isinstance(parameter, DTensor):
            details = "wanted a DTensor", f"found {type(parameter).__name__}"
            yield _violation(Code.NOT_WRAPPED, item, *details)
            continue
        if tuple(parameter.device_mesh.shape) != mesh or parameter.placements != placements:
            found = tuple(parameter.device_mesh.shape), parameter.placements
            details = f"wanted mesh {mesh}, {placements}", f"found mesh {found[0]}, {found[1]}"
            yield _violation(Code.WRONG_GROUP, item, *details)
            continue
        rows, local = _rows(parameter), parameter.to_local().shape[0]
        if local != rows:
            details = f"wanted {rows} of {parameter.shape[0]} rows", f"found {local}"
            yield _violation(Code.WRONG_LOCAL_SIZE, item, *details)


def _rows(parameter: DTensor) -> int:
    """Count the rows that torch.chunk gives this rank."""
    rank, shards = parameter.device_mesh.get_local_rank(-1), parameter.device_mesh.size(-1)
    step = -(-parameter.shape[0] // shards)
    return max(0, min(step, parameter.shape[0] - rank * step))


def _violation(code: Code, item: str, *details: str) -> Violation:
    return Violation(CLAUSE, code, item, details)
