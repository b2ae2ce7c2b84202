"""Put expected values, or their complement, into tensors."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from shardproof_suites.oracle._box import Box
from shardproof_suites.oracle._encoding import Lanes
from shardproof_suites.oracle._memory import lanes_of, tensor_of
from shardproof_suites.oracle._recipe import Oracle
from shardproof_suites.oracle._shard import LocalShard
from shardproof_suites.oracle._stream import Change, Stream


def expected(
    fqn: str, role: str, dtype: torch.dtype, *, start: int, count: int, oracle: Oracle
) -> torch.Tensor:
    """Give a contiguous range of a global tensor, seen as flat and row-major.

    Args:
        fqn: Name in the unwrapped model; of tied parameters the first.
        role: `param`, `buffer` or the optimizer's own key.
        dtype: Dtype of the result.
        start: Flat index of the first element.
        count: Number of elements.
        oracle: Seed, recipe and kind.

    Returns:
        A CPU tensor of shape (count,).

    Raises:
        TypeError: The recipe doesn't define the dtype.
        ValueError: `start` or `count` is negative.
    """
    box = Box((start + count,), (start,), (count,))
    return _generate(fqn, role, dtype, box, oracle)


def expected_box(
    fqn: str,
    role: str,
    dtype: torch.dtype,
    *,
    global_shape: tuple[int, ...],
    offset: tuple[int, ...],
    size: tuple[int, ...],
    oracle: Oracle,
) -> torch.Tensor:
    """Give an axis-aligned box of a global tensor.

    Args:
        fqn: Name in the unwrapped model; of tied parameters the first.
        role: `param`, `buffer` or the optimizer's own key.
        dtype: Dtype of the result.
        global_shape: Shape of the unsharded tensor.
        offset: Global index of the box's first element.
        size: Shape of the box.
        oracle: Seed, recipe and kind.

    Returns:
        A contiguous CPU tensor of shape `size`.

    Raises:
        TypeError: The recipe doesn't define the dtype.
        ValueError: The box doesn't lie in the global shape.
    """
    return _generate(fqn, role, dtype, Box(global_shape, offset, size), oracle)


def fill_(shard: LocalShard, oracle: Oracle) -> None:
    """Overwrite a rank's piece with its expected values, in place and without autograd.

    Raises:
        TypeError: The recipe doesn't define the tensor's dtype.
        ValueError: The piece doesn't lie in the global shape.
    """
    _overwrite(shard, oracle, None)


def poison_(shard: LocalShard, oracle: Oracle) -> None:
    """Overwrite a rank's piece with the bitwise complement of its expected values (bool: not).

    Done before a load, it makes memory that the load leaves alone wrong in every element and
    every dtype (the contract's Oracle).

    Raises:
        TypeError: The recipe doesn't define the tensor's dtype.
        ValueError: The piece doesn't lie in the global shape.
    """
    _overwrite(shard, oracle, partial(complement, dtype=shard.tensor.dtype))


def complement(bits: Lanes, dtype: torch.dtype) -> None:
    """Turn expected bits into poison in place; a bool is one byte of which one bit counts."""
    if dtype is torch.bool:
        np.bitwise_xor(bits, np.uint8(1), out=bits)
    else:
        np.invert(bits, out=bits)


def _generate(fqn: str, role: str, dtype: torch.dtype, box: Box, oracle: Oracle) -> torch.Tensor:
    stream = Stream.of(fqn, role, dtype, box, oracle)
    lanes = np.empty(stream.box.numel, stream.encoding.lane)
    stream.write(lanes)
    return tensor_of(lanes, dtype).reshape(box.size)


def _overwrite(shard: LocalShard, oracle: Oracle, change: Change | None) -> None:
    tensor = shard.tensor.detach()
    stream = Stream.of(shard.fqn, shard.role, tensor.dtype, shard.box(), oracle)
    direct = lanes_of(tensor)
    if direct is not None:
        stream.write(direct, change)
    elif tensor.is_contiguous():
        _copy_blocks(tensor.view(-1), stream, change)
    else:
        lanes = np.empty(stream.box.numel, stream.encoding.lane)
        stream.write(lanes, change)
        tensor.copy_(tensor_of(lanes, tensor.dtype).reshape(tensor.shape))


def _copy_blocks(flat: torch.Tensor, stream: Stream, change: Change | None) -> None:
    """Fill a tensor of another device without holding all of it on the host."""
    for elements, bits in stream.blocks():
        if change is not None:
            change(bits)
        flat[elements].copy_(tensor_of(bits, flat.dtype))
