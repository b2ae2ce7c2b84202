"""Getting a unit's tensors onto the device, and the same ones on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import nn

from shardproof_reference.errors import WrapError
from shardproof_reference.fsdp import _agreement

ParamInitFn = Callable[[nn.Module], None]


class Placing:
    """Places tensors unit by unit, so that no rank needs more than one of them whole.

    What is one tensor stays one: torch's `to_empty` would make two of a tied parameter.

    Args:
        device: Where tensors go.
        groups: The groups of ranks that share the model: of each dimension of the mesh.
        sync: Whether all get the first rank's values.
        param_init_fn: Puts a module with tensors on the meta device onto the real one, or None.

    Attributes:
        fills: Whether this rank gets values for what it has on the meta device.
        agrees: Whether a rank has a function, which can fail; all are told then.
    """

    def __init__(
        self,
        device: torch.device,
        groups: Sequence[dist.ProcessGroup | None],
        sync: bool,
        param_init_fn: ParamInitFn | None,
    ) -> None:
        self._device = device
        self._groups = groups
        self._sync = sync
        first = all(dist.get_rank(group) == 0 for group in groups)
        self.fills = sync and not first
        self._param_init_fn = param_init_fn
        self.agrees = False
        self._made: dict[torch.Tensor, nn.Parameter] = {}
        self._buffers: dict[torch.Tensor, torch.Tensor] = {}
        self._synced: set[torch.Tensor] = set()

    def place(self, name: str, unit: nn.Module, done: set[nn.Module]) -> None:
        """Place what a unit holds, without what lies in other units.

        Collective if tensors are synchronized or a rank has a function.

        Args:
            name: The unit's name.
            unit: The unit.
            done: The units that are done.

        Raises:
            WrapError: `param_init_fn` has not done what it is for, or has failed on another rank.
        """
        failed = None
        try:
            for place, module in _own_modules(unit, name, done):
                if self._param_init_fn is not None and any(t.is_meta for t in _tensors(module)):
                    self._initialize(self._param_init_fn, place.lstrip("."), module, done)
                self._move(place.lstrip("."), module)
        except Exception as error:
            failed = error
        if self.agrees:
            _agreement.agree(self._groups, (), failed)
        elif failed is not None:
            raise failed
        if self._sync:
            for _, module in _own_modules(unit, name, done):
                for tensor in _tensors(module):
                    self._broadcast(tensor)
        # No parameter lies in two units, and what is kept here would stay whole.
        self._made.clear()
        self._synced.clear()

    def _initialize(
        self, function: ParamInitFn, name: str, module: nn.Module, done: set[nn.Module]
    ) -> None:
        """Let a function fill a module; what was one tensor before stays one."""
        before = _named(module)
        inside = [one for one in module.modules() if one in done]
        others = _marks(inside)
        function(module)
        if others != _marks(inside):
            raise WrapError(
                f"param_init_fn has changed units in {name or 'root'}; it is "
                "called for each module by itself, and has to leave its children alone"
            )
        after = _named(module)
        for key in {**before, **after}:
            old, new = _told(before.get(key)), _told(after.get(key))
            if old != new:
                raise WrapError(
                    f"param_init_fn has made {new} of {f'{name}.{key}'.lstrip('.')}, which is "
                    f"{old}; it only gives tensors their values"
                )
        for key, made in after.items():
            meta = before[key]
            if not meta.is_meta or made.is_meta:
                continue
            if isinstance(made, nn.Parameter):
                vars(made).update(vars(meta) | vars(made))
                module._parameters[key] = self._made.setdefault(meta, made)
                continue
            if meta not in self._buffers:
                placed = self._moved(made)
                self._buffers[meta] = self._buffers[placed] = placed
            module._buffers[key] = self._buffers[meta]

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
                vars(self._made[parameter]).update(vars(parameter))
            module._parameters[key] = self._made[parameter]
        for key, buffer in module._buffers.items():
            if buffer is None:
                continue
            if buffer not in self._buffers:
                is_meta = buffer.is_meta
                self._buffers[buffer] = (
                    self._empty(f"{name}.{key}", buffer) if is_meta else self._moved(buffer)
                )
            module._buffers[key] = self._buffers[buffer]
        for key, value in list(vars(module).items()):
            if not isinstance(value, torch.Tensor):
                continue
            if value in self._buffers:  # another name of a buffer, as rotary embeddings have one
                vars(module)[key] = self._buffers[value]
            elif value.is_meta:
                self._refuse_left(f"{name}.{key}")

    def _moved(self, buffer: torch.Tensor) -> torch.Tensor:
        if self._sync:
            buffer = buffer.resolve_conj().resolve_neg()  # what is written has to be real memory,
            if 0 in buffer.stride():  # and not one element that stands for several
                buffer = buffer.contiguous()
        return buffer.to(self._device)

    def _empty(self, name: str, meta: torch.Tensor) -> torch.Tensor:
        if not self.fills:
            self._refuse_left(name)
        return torch.empty_like(meta, device=self._device, requires_grad=False)

    def _refuse_left(self, name: str) -> NoReturn:
        raise WrapError(f"param_init_fn has left {name.lstrip('.')} on the meta device")

    def _broadcast(self, tensor: torch.Tensor) -> None:
        if tensor in self._synced or not tensor.numel():
            return
        self._synced.add(tensor)
        data = tensor.detach()
        flat = data.contiguous().reshape(-1).view(torch.uint8)
        for group in self._groups:
            dist.broadcast(flat, group_src=0, group=group)
        data.copy_(flat.view(data.dtype).reshape(data.shape))


def _own_modules(
    module: nn.Module, name: str, done: set[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    yield name, module
    for key, child in module._modules.items():
        if child is not None and child not in done:
            yield from _own_modules(child, f"{name}.{key}", done)


def _marks(modules: Iterable[nn.Module]) -> list[tuple[int, int, int]]:
    """Return what changes with the parameters of some modules, or with their values."""
    parameters = [one for module in modules for one in module.parameters()]
    local = [getattr(one, "_local_tensor", one) for one in parameters]
    return [
        (id(one), shard.data_ptr(), shard._version)
        for one, shard in zip(parameters, local, strict=True)
    ]


def _named(module: nn.Module) -> dict[str, torch.Tensor]:
    own = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in own.items() if tensor is not None}


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return list(_named(module).values())


def _told(tensor: torch.Tensor | None) -> str:
    """Return what of a tensor has to stay what it is while it gets values."""
    if tensor is None:
        return "nothing"
    kind = "buffer" if not isinstance(tensor, nn.Parameter) else "trainable parameter"
    if not tensor.requires_grad:
        kind = kind.replace("trainable", "frozen")
    return f"a {kind} {tuple(tensor.shape)} {tensor.dtype}"
