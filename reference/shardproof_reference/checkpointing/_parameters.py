"""The parameters of a wrapped model: their names, and where each rank's memory lies.

Names are the unwrapped model's. FSDP1's flat parameter is read through its own metadata, which is
the same in every release since torch 2.1; padding, at the end and between original parameters, is
no part of any piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shardproof_reference.checkpointing._pieces import BoxPlace, Piece, Place, RangePlace

if TYPE_CHECKING:
    from torch import nn

_WRAPPERS = {"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the unwrapped model.

    Attributes:
        fqn: Its first name in the unwrapped model.
        aliases: Its other names, if it is tied.
        optimized: The tensor that the optimizer knows; a flat parameter stands for several.
        memory: This rank's memory of it.
        place: Where the piece lies in `memory`.
        state_place: The same for optimizer state that is shaped like `optimized`.
    """

    fqn: str
    aliases: tuple[str, ...]
    optimized: nn.Parameter
    memory: torch.Tensor
    place: Place
    state_place: Place

    def piece(self) -> Piece:
        """Describe this rank's memory of the parameter."""
        return self.place.piece(self.memory)


def clean_name(name: str) -> str:
    """Drop what wrappers put into a name."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def parameters(model: nn.Module) -> list[Parameter]:
    """List the parameters in the same order on every rank.

    Groups of `fully_shard` that a forward left unsharded are resharded first, as torch's own
    state dict does.
    """
    found: list[Parameter] = []
    flattened: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            module.reshard()
        elif isinstance(module, FullyShardedDataParallel) and module._handle is not None:
            flat: Any = module._handle.flat_param
            flattened.update(map(id, (flat, *(flat._params or ()), *(flat._shared_params or ()))))
            prefix = clean_name(name)
            found.extend(_flat_parameters(module._handle, prefix and prefix + "."))
    return [*found, *_other_parameters(model, flattened)]


def _flat_parameters(handle: Any, prefix: str) -> Iterator[Parameter]:
    """List what one unit of FSDP1 has flattened."""
    flat = handle.flat_param
    # Before the first forward only the parameter itself has the shard.
    memory = getattr(flat, "_local_shard", flat.data)
    aliases = _flat_aliases(flat)
    for index, fqn in enumerate(flat._fqns):
        info, shape = flat._shard_param_infos[index], tuple(flat._shapes[index])
        start, offset = info.intra_param_start_idx or 0, info.offset_in_shard or 0
        count = info.numel_in_shard or 0
        place = RangePlace(shape, start, slice(offset, offset + count))
        whole = RangePlace(shape, start, slice(0, count))
        yield Parameter(
            fqn=clean_name(prefix + fqn),
            aliases=tuple(clean_name(prefix + alias) for alias in aliases.get(fqn, ())),
            optimized=flat._params[index] if handle._use_orig_params else flat,
            memory=memory.detach(),
            place=place,
            state_place=whole if handle._use_orig_params else place,
        )


def _flat_aliases(flat: Any) -> dict[str, list[str]]:
    """Give the other names of each tied parameter of a unit."""
    aliases: dict[str, list[str]] = {}
    for info in flat._shared_param_infos:
        first = f"{info.prim_module_name}.{info.prim_param_name}".lstrip(".")
        other = f"{info.module_name}.{info.param_name}".lstrip(".")
        aliases.setdefault(first, []).append(other)
    return aliases


def _other_parameters(model: nn.Module, flattened: set[int]) -> Iterator[Parameter]:
    """List the DTensors of `fully_shard`, and parameters that no unit has taken in."""
    names: dict[int, list[str]] = {}
    first: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in flattened:
            names.setdefault(id(parameter), []).append(clean_name(name))
            first.setdefault(id(parameter), parameter)
    for key, parameter in first.items():
        fqn, *aliases = names[key]
        place = tensor_place(parameter)
        memory = local_tensor(parameter)
        yield Parameter(fqn, tuple(aliases), parameter, memory, place, place)


def tensor_place(tensor: torch.Tensor) -> Place:
    """Say where this rank's shard of a DTensor lies; a plain tensor is whole on every rank."""
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return BoxPlace(shape, (0,) * len(shape))
    _, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return BoxPlace(shape, tuple(offsets))


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Give this rank's memory of a tensor, without autograd."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
