"""Shard a model with FSDP1 or `fully_shard`, the same way on CPU and GPU.

HYBRID strategies need an explicit 2-D mesh: without one and with an auto-wrap policy torch makes
groups of all devices of a host, which on a CPU-only host shards nothing, in silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from shardproof_reference.errors import WrapError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

_HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)


def wrap_fsdp1(
    module: nn.Module,
    strategy: ShardingStrategy,
    *,
    blocks: Collection[type[nn.Module]],
    device: torch.device,
    device_mesh: DeviceMesh | None = None,
    use_orig_params: bool = False,
) -> FullyShardedDataParallel:
    """Wrap a model: one unit for each block and one for the rest; collective.

    Args:
        module: An unwrapped model.
        strategy: Sharding strategy; NO_SHARD too, which torch has deprecated. In a group of one
            rank torch makes NO_SHARD of each.
        blocks: Classes whose instances become units.
        device: Where the shards live, `cpu` included.
        device_mesh: 2-D (replicate, shard) for the HYBRID strategies, else None: all ranks.
        use_orig_params: Keep the original parameters instead of one flat parameter a unit.

    Raises:
        WrapError: HYBRID without a 2-D mesh, another strategy with one, or a parameter that two
            units share.
    """
    if (strategy in _HYBRID) != (device_mesh is not None and device_mesh.ndim == 2):
        found = "none" if device_mesh is None else f"{device_mesh.ndim}-D"
        wanted = "a 2-D device mesh (replicate, shard)" if strategy in _HYBRID else "no 2-D mesh"
        raise WrapError(f"{strategy.name} needs {wanted}, found {found}")
    _refuse_ties_across(module, blocks)
    with _without_known_warnings():
        return FullyShardedDataParallel(
            module,
            sharding_strategy=strategy,
            auto_wrap_policy=ModuleWrapPolicy(set(blocks)),
            device_id=device,
            device_mesh=device_mesh,
            use_orig_params=use_orig_params,
        )


def wrap_fully_shard(
    module: nn.Module, *, blocks: Collection[type[nn.Module]], device_mesh: DeviceMesh
) -> nn.Module:
    """Apply `fully_shard` in place: one group for each block and one for the rest; collective.

    Args:
        module: An unwrapped model.
        blocks: Classes whose instances become groups.
        device_mesh: 1-D (shard), or 2-D (replicate, shard) with named dimensions.

    Returns:
        The same module.

    Raises:
        WrapError: A parameter that two groups share; torch finds it only at the first forward.
    """
    _refuse_ties_across(module, blocks)
    for child in module.modules():
        if child is not module and isinstance(child, tuple(blocks)):
            fully_shard(child, mesh=device_mesh)
    fully_shard(module, mesh=device_mesh)
    return module


def _refuse_ties_across(module: nn.Module, blocks: Collection[type[nn.Module]]) -> None:
    """Refuse a parameter that would lie in two units; each unit would train its own copy."""
    units = {name for name, child in module.named_modules() if isinstance(child, tuple(blocks))}
    seen: dict[int, tuple[str, str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        unit = _unit_of(name, units)
        first, first_unit = seen.setdefault(id(parameter), (name, unit))
        if unit != first_unit:
            raise WrapError(
                f"{first} and {name} are one parameter, but lie in the units "
                f"{first_unit or 'root'} and {unit or 'root'}; wrap both in one unit"
            )


def _unit_of(name: str, units: Collection[str]) -> str:
    """Return the innermost unit that holds a name; the empty string is the root."""
    prefix = name
    while "." in prefix:
        prefix = prefix.rpartition(".")[0]
        if prefix in units:
            return prefix
    return ""


@contextmanager
def _without_known_warnings() -> Iterator[None]:
    """Wrap without torch's warnings on NO_SHARD: it was asked for, or there is one rank."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*NO_SHARD.*deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "FSDP is switching to use `NO_SHARD`", UserWarning)
        yield
