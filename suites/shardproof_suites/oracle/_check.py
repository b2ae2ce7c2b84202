"""Compare a rank's piece with its closed form, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardproof_suites.oracle._difference import Difference, describe
from shardproof_suites.oracle._encoding import Lanes
from shardproof_suites.oracle._explain import find_origin
from shardproof_suites.oracle._memory import Reader
from shardproof_suites.oracle._origin import Evidence, wrong_elements
from shardproof_suites.oracle._recipe import Oracle
from shardproof_suites.oracle._shard import Entry, LocalShard
from shardproof_suites.oracle._stream import BLOCK, Stream

# Elements looked at to explain what is wrong.
_WINDOW = 4096


def check(
    shard: LocalShard,
    oracle: Oracle,
    *,
    catalogue: tuple[Entry, ...] = (),
    other_seeds: tuple[int, ...] = (),
) -> Difference | None:
    """Compare dtype, then shape, then every bit of a rank's piece with what it should be.

    There is no tolerance: NaN payloads and signed zeros count (the contract's Equality).

    Args:
        shard: The piece; its `dtype` and `size` say what is wanted of the tensor.
        oracle: Seed, recipe and kind that the piece was filled with.
        catalogue: The model's tensors, to tell where wrong values come from.
        other_seeds: Seeds of other checkpoints that wrong values may come from.

    Returns:
        None if the piece is right.

    Raises:
        TypeError: The recipe doesn't define the dtype.
    """
    wrong_form = _check_form(shard)
    if wrong_form is not None:
        return wrong_form
    tensor = shard.tensor
    stream = Stream.of(shard.fqn, shard.role, tensor.dtype, shard.box(), oracle)
    reader = Reader.of(tensor)
    count, first = _count_wrong(stream, reader)
    if count == 0:
        return None
    evidence = _gather(shard, stream, reader, first)
    origin = find_origin(evidence, oracle, catalogue, other_seeds)
    lanes = stream.encoding.lanes
    return _difference(
        shard,
        wrong=count,
        index=shard.global_index(first),
        expected=describe(evidence.expected[:lanes], tensor.dtype),
        found=describe(evidence.found[:lanes], tensor.dtype),
        origin=origin,
    )


def _check_form(shard: LocalShard) -> Difference | None:
    """Compare dtype and shape, in this order."""
    tensor = shard.tensor
    if shard.dtype is not None and tensor.dtype is not shard.dtype:
        return _difference(shard)
    if shard.size is not None and tuple(tensor.shape) != shard.size:
        return _difference(shard)
    reason = shard.box().misfit()
    return None if reason is None else _difference(shard, reason=reason)


def _difference(shard: LocalShard, **found: Any) -> Difference:
    tensor = shard.tensor
    shape = tuple(tensor.shape)
    return Difference(
        fqn=shard.fqn,
        role=shard.role,
        expected_dtype=tensor.dtype if shard.dtype is None else shard.dtype,
        found_dtype=tensor.dtype,
        expected_shape=shape if shard.size is None else shard.size,
        found_shape=shape,
        **found,
    )


def _count_wrong(stream: Stream, reader: Reader) -> tuple[int, int]:
    """Give the number of wrong elements and the local position of the first."""
    count, first = 0, -1
    differ = np.empty(min(BLOCK, stream.box.numel), np.bool_)
    for elements, bits in stream.blocks():
        out = differ[: bits.size]
        np.not_equal(bits, reader.read(elements), out=out)
        if out.any():
            wrong = wrong_elements(out, stream.encoding.lanes)
            if first < 0:
                first = elements.start + int(wrong.argmax())
            count += int(np.count_nonzero(wrong))
    return count, first


def _gather(shard: LocalShard, stream: Stream, reader: Reader, first: int) -> Evidence:
    """Keep what is wanted and found from the first wrong element on, up to _WINDOW elements."""
    last = min(first + _WINDOW, shard.tensor.numel())
    lanes = stream.encoding.lanes
    expected: list[Lanes] = []
    for elements, bits in stream.blocks():
        if elements.start >= last:
            break
        low, high = max(first, elements.start), min(last, elements.stop)
        if low < high:
            skip = elements.start
            expected.append(bits[(low - skip) * lanes : (high - skip) * lanes].copy())
    return Evidence(
        shard=shard,
        expected=np.concatenate(expected),
        found=reader.read(slice(first, last)),
        lanes=lanes,
        bits=stream.encoding.bits,
    )
