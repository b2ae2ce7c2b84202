"""Getting a unit's tensors onto the device, and the same ones on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from shardproof_reference.errors import WrapError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

ParamInitFn = Callable[[nn.Module], None]


class Placing:
    """Places tensors unit by unit, so that no rank needs more than one of them whole.

    What is one tensor stays one: torch's `to_empty` would make two of a tied parameter.

    Args:
        device: Where tensors go.
        mesh: The ranks that share the model; None is all.
        sync: Whether all get the first rank's values; collective then.
        param_init_fn: Puts a module with tensors on the meta device onto the real one, or None.
    """

    def __init__(
        self,
        device: torch.device,
        mesh: DeviceMesh | None,
        sync: bool,
        param_init_fn: ParamInitFn | None,
    ) -> None:
        self._device = device
        self._groups = [None] if mesh is None else mesh.get_all_groups()
        self._sync = sync
        self._param_init_fn = param_init_fn
        self._made: dict[torch.Tensor, nn.Parameter] = {}
        self._buffers: dict[torch.Tensor, torch.Tensor] = {}
        self._synced: set[torch.Tensor] = set()

    def refuse_other_models(self, model: nn.Module) -> None:
        """Refuse to synchronize models that don't have the same tensors; collective with `sync`.

        Raises:
            WrapError: Naming the first difference, on every rank of the group.
        """
        mine = _described(model)
        for group in self._groups if self._sync else ():
            every: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(every, mine, group=group)
            for rank, theirs in enumerate(every):
                pairs = zip_longest(every[0], theirs)
                if different := next((pair for pair in pairs if pair[0] != pair[1]), None):
                    raise WrapError(
                        f"rank {rank} of the group has another model than its first rank: "
                        f"{different[1]} in place of {different[0]}"
                    )

    def place(self, name: str, unit: nn.Module, apart: set[nn.Module]) -> None:
        """Place what a unit holds, without what lies in other units; collective with `sync`.

        Args:
            name: The unit's name.
            unit: The unit.
            apart: The units that are done.

        Raises:
            WrapError: A tensor is on the meta device and nothing gives it a value.
        """
        for place, module in _own_modules(unit, name, apart):
            if self._param_init_fn is not None and any(t.is_meta for t in _tensors(module)):
                self._param_init_fn(module)
            self._move(place, module)
        if self._sync:
            for _, module in _own_modules(unit, name, apart):
                for tensor in _tensors(module):
                    self._broadcast(tensor)
        # No parameter lies in two units, and what is kept here would stay whole.
        self._made.clear()
        self._synced.clear()

    def _move(self, name: str, module: nn.Module) -> None:
        """Put what a module itself holds onto the device; what is one tensor stays one."""
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            if not parameter.is_meta:
                parameter.data = parameter.data.to(self._device)
                continue
            if parameter not in self._made:
                empty = self._empty(f"{name}.{key}", parameter)
                self._made[parameter] = nn.Parameter(empty, parameter.requires_grad)
            module._parameters[key] = self._made[parameter]
        for key, buffer in module._buffers.items():
            if buffer is None:
                continue
            if buffer not in self._buffers:
                is_meta = buffer.is_meta
                self._buffers[buffer] = (
                    self._empty(f"{name}.{key}", buffer) if is_meta else buffer.to(self._device)
                )
            module._buffers[key] = self._buffers[buffer]

    def _empty(self, name: str, meta: torch.Tensor) -> torch.Tensor:
        if not self._sync:
            raise WrapError(
                f"{name.lstrip('.')} is on the meta device; give param_init_fn to make it, or "
                "sync_module_states to have it from rank 0"
            )
        return torch.empty_like(meta, device=self._device, requires_grad=False)

    def _broadcast(self, tensor: torch.Tensor) -> None:
        if tensor in self._synced or not tensor.numel():
            return
        self._synced.add(tensor)
        data = tensor.detach()
        flat = data.contiguous().reshape(-1).view(torch.uint8)
        for group in self._groups:
            dist.broadcast(flat, group_src=0, group=group)
        data.copy_(flat.view(data.dtype).reshape(data.shape))


def _described(model: nn.Module) -> list[tuple[str, tuple[int, ...], str]]:
    named = (*model.named_parameters(), *model.named_buffers())
    return [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]


def _own_modules(
    module: nn.Module, name: str, apart: set[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    yield name, module
    for key, child in module._modules.items():
        if child is not None and child not in apart:
            yield from _own_modules(child, f"{name}.{key}", apart)


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    own = (*module._parameters.values(), *module._buffers.values())
    return [tensor for tensor in own if tensor is not None]
