"""Find wrong values elsewhere in the model: the same tensor, another one, another checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardproof_suites.oracle._box import Box
from shardproof_suites.oracle._encoding import Lanes, encoding
from shardproof_suites.oracle._origin import Evidence, Origin, OriginKind, certain
from shardproof_suites.oracle._recipe import Oracle
from shardproof_suites.oracle._shard import Entry, unravel
from shardproof_suites.oracle._stream import Stream

# Elements looked at together; bounds memory.
_PIECE = 2**18


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor, under one seed, that may be where wrong values come from."""

    entry: Entry
    oracle: Oracle

    def bits(self) -> int:
        return encoding(self.entry.dtype, self.entry.role, self.oracle).bits

    def read(self, start: int, stop: int) -> Lanes:
        """Give the expected bits of a flat range, stop exclusive, lanes one after another."""
        entry = self.entry
        box = Box((math.prod(entry.shape),), (start,), (stop - start,))
        stream = Stream.of(entry.fqn, entry.role, entry.dtype, box, self.oracle)
        out = np.empty(stream.box.numel, stream.encoding.lane)
        stream.write(out)
        return out


def find_elsewhere(
    evidence: Evidence,
    oracle: Oracle,
    catalogue: tuple[Entry, ...],
    other_seeds: tuple[int, ...],
) -> Origin | None:
    """Look for the wrong values, in a row, in every tensor of the same dtype.

    It costs about as much as generating all of these tensors once.
    """
    places = _places(evidence, oracle, catalogue, other_seeds)
    pattern = _pattern(evidence, places)
    if pattern is None:
        return None
    for place in places:
        start = next(_occurrences(place, pattern, evidence.lanes), None)
        if start is not None:
            elements = int(evidence.wrong()[: len(pattern) // evidence.lanes].sum())
            return _origin(place, start, elements, evidence, oracle)
    return None


def _places(
    evidence: Evidence, oracle: Oracle, catalogue: tuple[Entry, ...], seeds: tuple[int, ...]
) -> list[_Place]:
    """List where to look, the piece's own tensor first."""
    shard = evidence.shard
    own = Entry(shard.fqn, shard.role, shard.global_shape, shard.tensor.dtype)
    entries = dict.fromkeys([own, *(entry for entry in catalogue if entry.dtype is own.dtype)])
    oracles = [oracle, *(replace(oracle, seed=seed) for seed in seeds if seed != oracle.seed)]
    return [_Place(entry, one) for one in oracles for entry in entries]


def _pattern(evidence: Evidence, places: list[_Place]) -> Lanes | None:
    """Take the fewest found elements, in a row, that are certain not to match by chance.

    The first is wrong, so the piece's own place never matches.
    """
    candidates = sum(math.prod(place.entry.shape) for place in places)
    bits = min(place.bits() for place in places)
    wrong = np.cumsum(evidence.wrong())
    for length, elements in enumerate(wrong.tolist(), start=1):
        if certain(candidates, bits, elements):
            return evidence.found[: length * evidence.lanes]
    return None


def _occurrences(place: _Place, pattern: Lanes, lanes: int) -> Iterator[int]:
    """Give the flat index of each element at which the pattern starts."""
    total = math.prod(place.entry.shape)
    length = len(pattern) // lanes
    for start in range(0, total - length + 1, _PIECE):
        bits = place.read(start, min(start + _PIECE + length - 1, total))
        for hit in _matches(bits, pattern, lanes).tolist():
            yield start + hit


def _matches(bits: Lanes, pattern: Lanes, lanes: int) -> npt.NDArray[np.intp]:
    """Give the elements of `bits` at which `pattern` starts."""
    starts = np.flatnonzero(bits[: len(bits) - len(pattern) + 1 : lanes] == pattern[0])
    for position in range(1, len(pattern)):
        starts = starts[bits[starts * lanes + position] == pattern[position]]
    return starts


def _origin(place: _Place, start: int, elements: int, evidence: Evidence, oracle: Oracle) -> Origin:
    entry = place.entry
    index = ",".join(map(str, unravel(start, entry.shape)))
    name = f"{entry.fqn}[{index}]"
    if entry.role != evidence.shard.role:
        name = f"{entry.role} of {name}"
    if place.oracle != oracle:
        text = f"holds {name} of seed {place.oracle.seed}"
        return Origin(OriginKind.OTHER_SEED, text, elements)
    same = (entry.fqn, entry.role) == (evidence.shard.fqn, evidence.shard.role)
    kind = OriginKind.MOVED if same else OriginKind.OTHER_TENSOR
    return Origin(kind, f"holds {name}", elements)
