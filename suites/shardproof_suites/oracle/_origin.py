"""What is known about wrong values, and when an explanation of them is certain.

Every explanation predicts bits. Under none of them a wrong element would agree with a prediction
with chance 2**-bits, so an explanation is named only where the number of predictions tried, times
that chance for all the wrong elements in a row that agree, is below 1e-6 (the contract's Oracle).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardproof_suites.oracle._encoding import Lanes
from shardproof_suites.oracle._shard import LocalShard

MOST_LIKELY_FALSE = 1e-6


class OriginKind(enum.Enum):
    """What wrong values turned out to be."""

    UNTOUCHED = "untouched"
    ZEROS = "zeros"
    CAST = "cast"
    MOVED = "moved"
    OTHER_TENSOR = "other-tensor"
    OTHER_SEED = "other-seed"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the first wrong elements of a piece come from.

    Attributes:
        kind: What they are.
        text: The same in words, e.g. `holds proj.weight[0,2]`.
        elements: Wrong elements, from the first on, that it explains.
    """

    kind: OriginKind
    text: str
    elements: int

    def __str__(self) -> str:
        plural = "" if self.elements == 1 else "s"
        return f"{self.text} (certain from {self.elements} wrong element{plural})"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The neighbourhood of the first wrong element, in row-major order of the piece.

    Attributes:
        shard: The piece.
        expected: Bits wanted, from the first wrong element on; one or two lanes an element.
        found: Bits found, as many.
        lanes: Lanes an element.
        bits: Information an element carries.
    """

    shard: LocalShard
    expected: Lanes
    found: Lanes
    lanes: int
    bits: int

    def wrong(self) -> npt.NDArray[np.bool_]:
        """Say which elements are wrong."""
        return wrong_elements(np.not_equal(self.expected, self.found), self.lanes)

    def agreeing(self, predicted: Lanes) -> int:
        """Count the wrong elements before the first that the prediction misses."""
        misses = wrong_elements(np.not_equal(predicted, self.found), self.lanes)
        until = int(misses.argmax()) if misses.any() else len(misses)
        return int(np.count_nonzero(self.wrong()[:until]))


def wrong_elements(differ: npt.NDArray[np.bool_], lanes: int) -> npt.NDArray[np.bool_]:
    """Turn differing lanes into differing elements."""
    return differ if lanes == 1 else np.any(differ.reshape(-1, lanes), axis=1)


def certain(predictions: int, bits: int, elements: int) -> bool:
    """Say whether so many agreeing elements can't be chance.

    Args:
        predictions: How many were tried.
        bits: Information an element carries.
        elements: Wrong elements in a row that one prediction explains.
    """
    return elements > 0 and predictions * 2.0 ** (-bits * elements) < MOST_LIKELY_FALSE
