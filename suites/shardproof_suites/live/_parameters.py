"""The parameters and buffers of a wrapped model on this rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shardproof_suites.oracle import LocalShard, clean_name

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class LiveParameter:
    """One parameter of the unwrapped model.

    Attributes:
        names: Its names in the unwrapped model, the first one first; several if it is tied.
        optimized: The tensor that the optimizer knows; a flat parameter stands for several.
        shard: This rank's piece.
        within: Where the piece lies in a flat parameter; None where `optimized` is the piece.
    """

    names: tuple[str, ...]
    optimized: nn.Parameter = field(repr=False)
    shard: LocalShard
    within: slice | None = None


def parameter_shards(parameters: Sequence[LiveParameter]) -> list[LocalShard]:
    """List this rank's piece of every parameter, tied ones once."""
    return [parameter.shard for parameter in parameters]


def buffer_shards(modules: Sequence[nn.Module]) -> list[LocalShard]:
    """List the persistent buffers, which every rank has whole."""
    shards = []
    for root in modules:
        for prefix, module in root.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    fqn = clean_name(f"{prefix}.{name}".lstrip("."))
                    shards.append(_whole(fqn, "buffer", buffer))
    return shards


def live_parameters(modules: Sequence[nn.Module]) -> list[LiveParameter]:
    """List the parameters, in the same order on every rank."""
    return [one for module in modules for one in _of_module(module)]


def tensor_shard(fqn: str, role: str, tensor: torch.Tensor) -> LocalShard:
    """Describe a DTensor's local piece, or a plain tensor, which is whole on every rank."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return _whole(fqn, role, tensor)
    _, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return LocalShard(fqn, role, tensor.to_local(), tuple(tensor.shape), tuple(offset))


def _whole(fqn: str, role: str, tensor: torch.Tensor) -> LocalShard:
    shape = tuple(tensor.shape)
    return LocalShard(fqn, role, tensor.detach(), shape, (0,) * len(shape))


def _of_module(root: nn.Module) -> Iterator[LiveParameter]:
    flattened: set[int] = set()
    for name, module in root.named_modules():
        if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
            flat: Any = module._handle.flat_param
            flattened.update(map(id, (flat, *(flat._params or ()), *(flat._shared_params or ()))))
            yield from _of_unit(module._handle, clean_name(name))
    names: dict[int, list[str]] = {}
    others: dict[int, nn.Parameter] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        if id(parameter) not in flattened:
            others[id(parameter)] = parameter
            names.setdefault(id(parameter), []).append(clean_name(name))
    for key, parameter in others.items():
        shard = tensor_shard(names[key][0], "param", parameter)
        yield LiveParameter(tuple(names[key]), parameter, shard)


def _of_unit(handle: Any, prefix: str) -> Iterator[LiveParameter]:
    """List what one unit of FSDP1 has flattened."""
    flat = handle.flat_param
    aliases: dict[str, list[str]] = {}
    for info in flat._shared_param_infos:
        first = f"{info.prim_module_name}.{info.prim_param_name}".lstrip(".")
        aliases.setdefault(first, []).append(f"{info.module_name}.{info.param_name}".lstrip("."))
    for index, fqn in enumerate(flat._fqns):
        names = tuple(
            clean_name(f"{prefix}.{name}".lstrip(".")) for name in (fqn, *aliases.get(fqn, ()))
        )
        shape, info = tuple(flat._shapes[index]), flat._shard_param_infos[index]
        start = info.intra_param_start_idx or 0
        if not handle._use_orig_params:
            offset = info.offset_in_shard or 0
            within = slice(offset, offset + (info.numel_in_shard or 0))
            shard = LocalShard(names[0], "param", flat.detach()[within], shape, start)
            yield LiveParameter(names, flat, shard, within)
            continue
        parameter = flat._params[index]
        if handle.uses_sharded_strategy:
            shard = LocalShard(names[0], "param", parameter.detach(), shape, start)
        else:
            shard = _whole(names[0], "param", parameter)
        yield LiveParameter(names, parameter, shard)
