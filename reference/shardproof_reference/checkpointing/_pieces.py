"""What one rank holds of a global tensor, as boxes that view the live memory.

FSDP1 cuts a unit's parameters as one long vector, so a rank holds a contiguous range of a
row-major tensor; a range is at most 2 * ndim - 1 boxes. Boxes are what DCP stores and reads, at
any other world size and cut too, so nothing has to be gathered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One box of a global tensor.

    Attributes:
        offsets: Global index of its first element.
        tensor: The box itself, a contiguous view of live memory.
    """

    offsets: Shape
    tensor: torch.Tensor

    @property
    def box(self) -> tuple[Shape, Shape]:
        """Give offsets and sizes, which tell one part of a tensor from another."""
        return self.offsets, tuple(self.tensor.shape)


@dataclass(frozen=True, slots=True)
class Piece:
    """What this rank holds of a global tensor; replicas hold equal pieces.

    Attributes:
        shape: Shape of the global tensor.
        dtype: Its dtype.
        parts: This rank's boxes; none for an empty shard.
    """

    shape: Shape
    dtype: torch.dtype
    parts: tuple[Part, ...]


class Place(Protocol):
    """Where a rank's memory of a parameter, or of a state shaped like it, lies."""

    def piece(self, local: torch.Tensor) -> Piece:
        """Describe local memory that has this place."""


@dataclass(frozen=True, slots=True)
class BoxPlace:
    """One box: a DTensor's shard, or all of a replicated tensor.

    Attributes:
        shape: Shape of the global tensor.
        offsets: Global index of the box's first element.
    """

    shape: Shape
    offsets: Shape

    def piece(self, local: torch.Tensor) -> Piece:
        """Describe local memory; an empty shard of a tensor that has elements is no part."""
        empty = local.numel() == 0 and math.prod(self.shape) > 0
        return Piece(self.shape, local.dtype, () if empty else (Part(self.offsets, local),))


@dataclass(frozen=True, slots=True)
class RangePlace:
    """A contiguous range of a row-major tensor, somewhere in a 1-D local tensor.

    Attributes:
        shape: Shape of the global tensor.
        start: Flat index of the range's first element in the global tensor.
        within: Where the range lies in the local tensor.
    """

    shape: Shape
    start: int
    within: slice

    def piece(self, local: torch.Tensor) -> Piece:
        """Cut the range out of local memory, and into boxes."""
        own = local.view(-1)[self.within]
        parts, position = [], 0
        for offsets, sizes in range_boxes(self.shape, self.start, self.start + own.numel()):
            count = math.prod(sizes)
            parts.append(Part(offsets, own[position : position + count].view(sizes)))
            position += count
        return Piece(self.shape, local.dtype, tuple(parts))


def replicated(tensor: torch.Tensor) -> Piece:
    """Describe a tensor that every rank holds whole."""
    shape = tuple(tensor.shape)
    return Piece(shape, tensor.dtype, (Part((0,) * len(shape), tensor),))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor's memory, or that of a contiguous copy, as bytes."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def range_boxes(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """Cut a contiguous range of a row-major tensor into boxes, in order, as (offsets, sizes).

    Args:
        shape: Shape of the tensor.
        start: Flat index of the first element.
        stop: Flat index after the last.
    """
    if start == stop:
        return
    if len(shape) <= 1:
        yield (start,)[: len(shape)], (stop - start,)[: len(shape)]
        return
    row = math.prod(shape[1:])
    first_whole, last_whole = -(-start // row), stop // row
    if first_whole > last_whole:
        yield from _row_boxes(shape, last_whole, start, stop)
        return
    yield from _row_boxes(shape, first_whole - 1, start, first_whole * row)
    if first_whole < last_whole:
        corner = (first_whole, *(0 for _ in shape[1:]))
        yield corner, (last_whole - first_whole, *shape[1:])
    yield from _row_boxes(shape, last_whole, last_whole * row, stop)


def _row_boxes(shape: Shape, index: int, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """Cut a range that lies inside one row of dimension 0."""
    base = index * math.prod(shape[1:])
    for offsets, sizes in range_boxes(shape[1:], start - base, stop - base):
        yield (index, *offsets), (1, *sizes)
