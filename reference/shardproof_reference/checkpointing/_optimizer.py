"""The optimizer's entries: one state for each parameter name, and its parameter groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from shardproof_reference.checkpointing._entries import Entries, Path, TensorSpec, is_plain, key_of
from shardproof_reference.checkpointing._parameters import Parameter, local_tensor
from shardproof_reference.checkpointing._pieces import Piece, replicated
from shardproof_reference.errors import LoadError, SaveError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch.optim import Optimizer

State: TypeAlias = dict[torch.Tensor, dict[str, object]]

STATE: Path = ("optimizer", "state")
GROUPS: Path = ("optimizer", "param_groups")


def optimizer_entries(optimizer: Optimizer, parameters: Iterable[Parameter]) -> Entries:
    """List the state of an optimizer as it is.

    Raises:
        SaveError: A state that is neither a number, nor 0-dim, nor shaped like its parameter.
    """
    entries, known = Entries(), list(parameters)
    for parameter in filter(has_elements, known):
        for name, value in optimizer.state.get(parameter.optimized, {}).items():
            _add(entries, (*STATE, parameter.fqn, name), value, parameter)
    for index, group in enumerate(optimizer.param_groups):
        for option, value in group.items():
            stored = group_names(group, known) if option == "params" else value
            _add(entries, group_path(index, option), stored)
    return entries


def has_elements(parameter: Parameter) -> bool:
    """Say whether this rank's optimizer steps the parameter.

    FSDP1 gives an original parameter without elements on this rank no gradient. Whatever state
    it has here is stale: the other ranks' `step` goes on.
    """
    return parameter.optimized.numel() > 0


def group_names(group: Mapping[str, object], parameters: Iterable[Parameter]) -> list[str]:
    """List the names of a group's parameters; a flat parameter stands for several."""
    names: dict[int, list[str]] = {}
    for parameter in parameters:
        names.setdefault(id(parameter.optimized), []).append(parameter.fqn)
    tensors = group["params"]
    assert isinstance(tensors, list)
    return [name for tensor in tensors for name in names[id(tensor)]]


def group_path(index: int, option: str) -> Path:
    """Give the path of one option of one parameter group."""
    return (*GROUPS, index, option)


def _add(entries: Entries, path: Path, value: object, parameter: Parameter | None = None) -> None:
    if isinstance(value, torch.Tensor):
        entries.pieces[path] = _piece(path, value, parameter)
    elif is_plain(value):
        entries.objects[path] = value
    else:
        raise SaveError(f"{key_of(path)} is a {type(value).__name__}, which can't be stored")


def _piece(path: Path, value: torch.Tensor, parameter: Parameter | None) -> Piece:
    if value.dim() == 0:
        return replicated(value.detach())
    if parameter is None or value.shape != parameter.optimized.shape:
        raise SaveError(
            f"{key_of(path)} has shape {list(value.shape)}; only 0-dim state "
            f"and state of its parameter's shape can be stored"
        )
    return parameter.state_place.piece(local_tensor(value))


def make_room(
    optimizer: Optimizer, parameters: Iterable[Parameter], stored: Mapping[Path, object]
) -> tuple[Entries, State]:
    """List where to read a stored state to: the optimizer's own tensors, or new ones.

    An optimizer that has taken no step has no state, and only the checkpoint knows what it will
    have. Nothing of the optimizer is changed.

    Args:
        optimizer: With any state or none.
        parameters: Of the model that it trains.
        stored: What the checkpoint has, as tensor specifications and objects.

    Returns:
        The entries to read into, and each optimized tensor's state once they are read.

    Raises:
        LoadError: A stored tensor where the optimizer has something else.
    """
    room = _Room(optimizer)
    states = state_by_name(stored)
    for parameter in filter(has_elements, parameters):
        for name, found in states.get(parameter.fqn, {}).items():
            room.add(parameter, name, found)
    for index, group in enumerate(optimizer.param_groups):
        for option, value in group.items():
            if isinstance(value, torch.Tensor):
                room.entries.pieces[group_path(index, option)] = replicated(value.detach())
    return room.entries, room.state


def state_by_name(stored: Mapping[Path, object]) -> dict[str, dict[str, object]]:
    """Sort a checkpoint's optimizer state by parameter name and state name."""
    states: dict[str, dict[str, object]] = {}
    for path, found in stored.items():
        if path[: len(STATE)] == STATE:
            _, _, fqn, name = path
            states.setdefault(str(fqn), {})[str(name)] = found
    return states


class _Room:
    """Collects where stored state goes."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.entries = Entries()
        self.state: State = {}
        self._first: dict[tuple[torch.Tensor, str], Path] = {}
        self._optimizer = optimizer
        self._on_device = {
            tensor
            for group in optimizer.param_groups
            for tensor in group["params"]
            if group.get("fused") or group.get("capturable")
        }

    def add(self, parameter: Parameter, name: str, found: object) -> None:
        """Make room for one state of one parameter."""
        path: Path = (*STATE, parameter.fqn, name)
        new = self.state.setdefault(parameter.optimized, {})
        if not isinstance(found, TensorSpec):
            self.entries.objects[path] = new.setdefault(name, found)
            return
        if name not in new:
            new[name] = self._tensor(path, found, parameter)
        tensor = new[name]
        assert isinstance(tensor, torch.Tensor)
        self.entries.pieces[path] = _piece(path, tensor, parameter)
        first = self._first.setdefault((parameter.optimized, name), path)
        if tensor.dim() == 0 and first != path:
            # One number for all that a flat parameter stands for: the checkpoint must agree.
            self.entries.same[path] = first

    def _tensor(self, path: Path, spec: TensorSpec, parameter: Parameter) -> torch.Tensor:
        own = self._optimizer.state.get(parameter.optimized, {}).get(str(path[-1]))
        if isinstance(own, torch.Tensor):
            return own
        if own is not None:
            raise LoadError(f"{key_of(path)} is a tensor, {spec}, but the optimizer has {own!r}")
        if spec.shape:
            return torch.zeros_like(parameter.optimized.detach(), dtype=spec.dtype)
        on_device = parameter.optimized in self._on_device
        device = parameter.optimized.device if on_device else None
        return torch.zeros((), dtype=spec.dtype, device=device)
