"""The bits of an expected tensor, a cache-sized block at a time.

Measured on one core: numpy's unsigned 64-bit ufuncs run this about twice as fast as torch's
signed ones, which need a mask after every shift; and they start no threads, so a process that has
used the oracle can still be forked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import torch

from shardproof_suites.oracle._box import Block, Box
from shardproof_suites.oracle._encoding import Encoding, Lanes, Words, encoding
from shardproof_suites.oracle._recipe import Oracle, fingerprint

Change: TypeAlias = Callable[[Lanes], None]

# Three arrays of 256 KiB and the output fit a second-level cache of 1 MiB. Measured: half of it
# costs 10% (calls), a quarter 30%.
BLOCK = 32768

_MASK = 2**64 - 1
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_STEPS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)


@dataclass(frozen=True, slots=True)
class Stream:
    """The expected bits of one piece.

    Attributes:
        hash: `h` of RECIPE.md.
        box: The piece, in lanes (a complex number is two).
        encoding: How a mixed word becomes a lane.
    """

    hash: int
    box: Box
    encoding: Encoding

    @classmethod
    def of(cls, fqn: str, role: str, dtype: torch.dtype, box: Box, oracle: Oracle) -> Stream:
        """Describe a piece given in elements.

        Raises:
            TypeError: The oracle's recipe doesn't define the dtype.
            ValueError: The box doesn't lie in its global shape.
        """
        reason = box.misfit()
        if reason is not None:
            raise ValueError(f"{role} of {fqn}: {reason}")
        code = encoding(dtype, role, oracle)
        return cls(fingerprint(fqn, role, oracle.seed), box.with_lanes(code.lanes), code)

    def write(self, out: Lanes, change: Change | None = None) -> None:
        """Write the whole piece.

        Args:
            out: 1-D, contiguous, one unsigned integer a lane.
            change: Applied to each part of `out` while it is in the cache.
        """
        for part, z, spare in self._mixed():
            self.encoding.write(z, spare, out[part])
            if change is not None:
                change(out[part])

    def blocks(self) -> Iterator[tuple[slice, Lanes]]:
        """Give the piece block by block, as (positions of its elements, bits).

        The bits lie in one buffer that the next block overwrites. A block never cuts an element.
        """
        lanes = self.encoding.lanes
        out = np.empty(min(BLOCK, self.box.numel), self.encoding.lane)
        for part, z, spare in self._mixed():
            bits = out[: z.size]
            self.encoding.write(z, spare, bits)
            yield slice(part.start // lanes, part.stop // lanes), bits

    def _mixed(self) -> Iterator[tuple[slice, Words, Words]]:
        most = min(BLOCK, self.box.numel)
        z, spare = np.empty(most, np.uint64), np.empty(most, np.uint64)
        for block in self.box.blocks(BLOCK):
            count = block.part.stop - block.part.start
            _seed_words(self.hash, block, z[:count])
            _mix(z[:count], spare[:count])
            yield block.part, z[:count], spare[:count]


@cache
def _ramp() -> Words:
    """Give i * GAMMA for the first block; a constant, so read-only."""
    ramp: Words = np.arange(BLOCK, dtype=np.uint64)
    ramp *= _GAMMA
    ramp.setflags(write=False)
    return ramp


def _seed_words(base: int, block: Block, z: Words) -> None:
    """Write h + i * GAMMA for the block's elements: one addition each."""
    starts = block.starts * _GAMMA + np.uint64(base & _MASK)
    np.add(starts[:, None], _ramp()[: block.length], out=z.reshape(-1, block.length))


def _mix(z: Words, spare: Words) -> None:
    """Mix in place: SplitMix64's finalizer, as RECIPE.md spells it out."""
    for shift, factor in _STEPS:
        np.right_shift(z, shift, out=spare)
        np.bitwise_xor(z, spare, out=z)
        np.multiply(z, factor, out=z)
    np.right_shift(z, _LAST_SHIFT, out=spare)
    np.bitwise_xor(z, spare, out=z)
