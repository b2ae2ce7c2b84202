"""What a rank holds of a tensor, and what a model is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from shardproof_suites.oracle._box import Box


@dataclass(frozen=True, slots=True)
class Entry:
    """One global tensor of a model; a tuple of them is the model's catalogue.

    Attributes:
        fqn: Name in the unwrapped model; of tied parameters only the first is listed.
        role: `param`, `buffer` or the optimizer's own key.
        shape: Global, unsharded shape.
        dtype: Any dtype the recipe defines.
    """

    fqn: str
    role: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class LocalShard:
    """The piece of one global tensor that one rank holds.

    Attributes:
        fqn: Name in the unwrapped model; of tied parameters the first.
        role: `param`, `buffer` or the optimizer's own key.
        tensor: The local piece, on any device; zero elements are legal. Of a DTensor, pass
            `to_local()`.
        global_shape: Shape of the unsharded tensor.
        offset: An int where the piece is a contiguous range of the row-major global tensor that
            starts there (FSDP1 flat parameters; the tensor is 1-D). A tuple where it is a box of
            `tensor.shape` at that corner (DTensor, one int a dimension).
        dtype: Dtype that `tensor` must have; None where only its bits are in question.
        size: Shape that `tensor` must have; None where any that fits the global one will do.

    Raises:
        TypeError: The tensor is a DTensor.
        ValueError: The tensor is on the meta device, so it has no memory.
    """

    fqn: str
    role: str
    tensor: torch.Tensor = field(repr=False)
    global_shape: tuple[int, ...]
    offset: int | tuple[int, ...]
    dtype: torch.dtype | None = None
    size: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if hasattr(self.tensor, "to_local"):
            raise TypeError(f"{self.role} of {self.fqn}: found a DTensor, pass its to_local()")
        if self.tensor.is_meta:
            raise ValueError(f"{self.role} of {self.fqn}: a meta tensor has no memory")

    def box(self) -> Box:
        """Give the piece's place; a flat range is a box of the flattened global tensor."""
        size = tuple(self.tensor.shape)
        if isinstance(self.offset, int):
            return Box((math.prod(self.global_shape),), (self.offset,), size)
        return Box(self.global_shape, self.offset, size)

    def global_index(self, position: int) -> tuple[int, ...]:
        """Turn a row-major position in the local tensor into an index of the global tensor."""
        return unravel(self.box().flat(position), self.global_shape)


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Turn a row-major flat index into one index a dimension.

    Args:
        flat: 0 <= flat < product of `shape`.
        shape: Shape without a zero; empty for a 0-dim tensor.
    """
    index: list[int] = []
    for length in reversed(shape):
        flat, rest = divmod(flat, length)
        index.append(rest)
    return tuple(reversed(index))
