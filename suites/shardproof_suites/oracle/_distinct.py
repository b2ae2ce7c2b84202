"""A lint: a case in which two things that could be swapped are equal proves nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from shardproof_suites.oracle._box import Box
from shardproof_suites.oracle._encoding import Lanes, encoding
from shardproof_suites.oracle._recipe import Oracle
from shardproof_suites.oracle._shard import Entry
from shardproof_suites.oracle._stream import Stream

# Elements of at most so many bits coincide so often that one seed doesn't do.
_NARROW_BITS = 12


class IndistinctError(ValueError):
    """Two shards, rows, roles or seeds of a case hold equal bits: give it other shapes or seeds."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows `first` to `last` (exclusive) of dimension 0; a 0-dim tensor has one."""

    entry: Entry
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.entry.role} of {self.entry.fqn}[{self.first}:{self.last}]"


def assert_distinct(
    entries: Iterable[Entry],
    *,
    world_sizes: Iterable[int],
    seeds: Iterable[int],
    oracle: Oracle | None = None,
) -> None:
    """Refuse a model in which a swap could go unseen.

    Guaranteed afterwards, for what has the same shape and dtype, in one tensor or in two, in one
    role or in two:
      - any two shards (torch.chunk of dimension 0, at any of the world sizes), and any two rows
        of tensors of two or more dimensions, differ in some bit under at least one of the seeds.
        A case that checks with each of the seeds therefore sees them swapped.
      - each tensor differs from itself between any two of the seeds, so a checkpoint of another
        seed is seen in every single tensor.
    Not guaranteed: that single elements differ (in bool and 8 bits they can't), nor that parts cut
    in other ways do. Needs memory for one entry at a time, and time for all of them.

    Args:
        entries: The model's tensors.
        world_sizes: World sizes of the case, saving and loading.
        seeds: Seeds that the case is checked with; narrow dtypes need two (RECIPE.md, recipe 2).
        oracle: Recipe and kind; its seed isn't used. None is recipe 2, kind value.

    Raises:
        IndistinctError: Two things agree; it names both.
        ValueError: No entry, no world size, or too few seeds for a narrow dtype.
    """
    listed, worlds = tuple(entries), tuple(world_sizes)
    oracles = [replace(oracle or Oracle(), seed=seed) for seed in dict.fromkeys(seeds)]
    _require(listed, worlds, oracles)
    seen: dict[bytes, str] = {}
    for entry in listed:
        values = [_values(entry, one) for one in oracles]
        for rows in _pieces(entry, worlds):
            _remember(seen, rows, [_cut(rows, one) for one in values])
    _require_distinct_seeds(listed, oracles)


def _require(entries: tuple[Entry, ...], worlds: tuple[int, ...], oracles: list[Oracle]) -> None:
    if not entries or not worlds or not oracles:
        raise ValueError("nothing to compare: needs entries, world sizes and seeds")
    for entry in entries:
        narrow = encoding(entry.dtype, entry.role, oracles[0]).bits <= _NARROW_BITS
        if narrow and len(oracles) < 2:
            raise ValueError(
                f"{entry.role} of {entry.fqn}: {entry.dtype} is narrow, check it with two seeds"
            )


def _require_distinct_seeds(entries: tuple[Entry, ...], oracles: list[Oracle]) -> None:
    for entry in entries:
        seen: dict[bytes, str] = {}
        for one in oracles:
            digest = _digest(entry.dtype, entry.shape, [_values(entry, one)])
            name = f"{entry.role} of {entry.fqn} with seed {one.seed}"
            _require_new(seen, digest, name)


def _remember(seen: dict[bytes, str], rows: _Rows, values: list[Lanes]) -> None:
    entry = rows.entry
    shape = (rows.last - rows.first, *entry.shape[1:]) if entry.shape else ()
    _require_new(seen, _digest(entry.dtype, shape, values), str(rows))


def _require_new(seen: dict[bytes, str], digest: bytes, name: str) -> None:
    other = seen.setdefault(digest, name)
    if other is not name:
        raise IndistinctError(f"{name} and {other} hold equal bits; change shapes or seeds")


def _digest(dtype: torch.dtype, shape: tuple[int, ...], values: list[Lanes]) -> bytes:
    """Stand in for the bits, so that memory doesn't grow with the model."""
    digest = hashlib.sha256(f"{dtype} {shape}".encode())
    for bits in values:
        digest.update(bits.tobytes())
    return digest.digest()


def _values(entry: Entry, oracle: Oracle) -> Lanes:
    """Give all of a tensor's bits, lanes one after another."""
    corner = tuple(0 for _ in entry.shape)
    box = Box(entry.shape, corner, entry.shape)
    stream = Stream.of(entry.fqn, entry.role, entry.dtype, box, oracle)
    out = np.empty(stream.box.numel, stream.encoding.lane)
    stream.write(out)
    return out


def _cut(rows: _Rows, values: Lanes) -> Lanes:
    length = rows.entry.shape[0] if rows.entry.shape else 1
    width = len(values) // length
    return values[rows.first * width : rows.last * width]


def _pieces(entry: Entry, worlds: tuple[int, ...]) -> Iterator[_Rows]:
    """List every shard and every row with elements, each once."""
    if math.prod(entry.shape) == 0:
        return
    length = entry.shape[0] if entry.shape else 1
    cuts = dict.fromkeys(cut for world in worlds for cut in _chunks(length, world))
    if len(entry.shape) > 1:
        cuts.update(dict.fromkeys((row, row + 1) for row in range(length)))
    for first, last in cuts:
        yield _Rows(entry, first, last)


def _chunks(length: int, world: int) -> Iterator[tuple[int, int]]:
    """Cut dimension 0 as torch.chunk does, which FSDP2 shards by; empty chunks are left out."""
    step = -(-length // world)
    for first in range(0, length, step):
        yield first, min(first + step, length)
