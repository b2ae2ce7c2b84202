"""The optimizer state on this rank: tensors shaped like parameters, and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from shardproof_suites.live._parameters import LiveParameter, tensor_shard
from shardproof_suites.oracle import LocalShard

if TYPE_CHECKING:
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Number:
    """A number in the optimizer's state, `step` for example.

    Attributes:
        name: The optimizer's key.
        fqns: The parameters that it counts for; several of a flat parameter.
        state: The state that holds it under `name`, as a number or a 0-dim tensor.
    """

    name: str
    fqns: tuple[str, ...]
    state: dict[str, Any]

    def get(self) -> float:
        """Read it."""
        return float(self.state[self.name])

    @property
    def kind(self) -> str:
        """The dtype of its tensor, or its Python type."""
        held = self.state[self.name]
        return str(held.dtype) if isinstance(held, torch.Tensor) else type(held).__name__

    def set(self, value: float) -> None:
        """Overwrite it in the form that the optimizer keeps."""
        held = self.state[self.name]
        if isinstance(held, torch.Tensor):
            held.fill_(value)
        else:
            self.state[self.name] = type(held)(value)


def optimizer_shards(
    optimizers: Sequence[Optimizer], parameters: Sequence[LiveParameter]
) -> list[LocalShard]:
    """List this rank's piece of every state that has a parameter's shape.

    The wanted local size is the parameter's, so a state that isn't sharded as its parameter is
    found out.
    """
    return [
        _shard(parameter, name, value)
        for parameter, state in _states(optimizers, parameters)
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.dim() > 0
    ]


def optimizer_numbers(
    optimizers: Sequence[Optimizer], parameters: Sequence[LiveParameter]
) -> list[Number]:
    """List the numbers, each once."""
    sharing: dict[int, list[LiveParameter]] = {}
    states: dict[int, dict[str, Any]] = {}
    for parameter, state in _states(optimizers, parameters):
        sharing.setdefault(id(parameter.optimized), []).append(parameter)
        states[id(parameter.optimized)] = state
    return [
        Number(name, tuple(parameter.names[0] for parameter in sharing[key]), state)
        for key, state in states.items()
        for name, value in state.items()
        if isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and not value.dim())
    ]


def _states(
    optimizers: Sequence[Optimizer], parameters: Sequence[LiveParameter]
) -> Iterator[tuple[LiveParameter, dict[str, Any]]]:
    """Pair parameters with their state; one without elements on this rank may have none."""
    for parameter in parameters:
        for optimizer in optimizers:
            state = optimizer.state.get(parameter.optimized)
            if state:
                yield parameter, state


def _shard(parameter: LiveParameter, role: str, value: torch.Tensor) -> LocalShard:
    own = parameter.shard
    size = tuple(own.tensor.shape)
    if parameter.within is not None and tuple(value.shape) == tuple(parameter.optimized.shape):
        piece = value.detach()[parameter.within]
        return LocalShard(own.fqn, role, piece, own.global_shape, own.offset, size=size)
    shard = tensor_shard(own.fqn, role, value)
    offset = own.offset if isinstance(own.offset, int) else shard.offset
    return LocalShard(own.fqn, role, shard.tensor, own.global_shape, offset, size=size)
