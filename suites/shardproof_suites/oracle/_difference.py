"""What a check found, in numbers and in one message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shardproof_suites.oracle._encoding import Lanes
from shardproof_suites.oracle._memory import tensor_of
from shardproof_suites.oracle._origin import Origin


@dataclass(frozen=True, slots=True)
class Difference:
    """How a piece differs from what it should be: in dtype, else in shape, else in bits.

    Attributes:
        fqn: Name of the global tensor.
        role: Role of the global tensor.
        expected_dtype: Dtype wanted.
        found_dtype: Dtype of the piece.
        expected_shape: Local shape wanted.
        found_shape: Local shape of the piece.
        wrong: Elements with wrong bits; 0 where dtype or shape differ, as bits weren't compared.
        index: Global index of the first wrong element.
        expected: Value and bits wanted there, as text.
        found: Value and bits found there, as text.
        origin: Where the found values come from, if that is certain.
        reason: Why the piece can't be part of the tensor, where the shape alone doesn't say it.
    """

    fqn: str
    role: str
    expected_dtype: torch.dtype
    found_dtype: torch.dtype
    expected_shape: tuple[int, ...]
    found_shape: tuple[int, ...]
    wrong: int = 0
    index: tuple[int, ...] | None = None
    expected: str | None = None
    found: str | None = None
    origin: Origin | None = None
    reason: str | None = None

    def __str__(self) -> str:
        return "\n".join([f"{self.role} of {self.fqn}: {self._summary()}", *self._details()])

    def _summary(self) -> str:
        if self.expected_dtype is not self.found_dtype:
            return f"dtype is {self.found_dtype}, expected {self.expected_dtype}"
        if self.reason is not None:
            return self.reason
        if self.expected_shape != self.found_shape:
            return f"local shape is {self.found_shape}, expected {self.expected_shape}"
        total = int(np.prod(self.found_shape, dtype=np.int64))
        return f"{self.wrong} of {total} elements are wrong ({self.found_dtype})"

    def _details(self) -> list[str]:
        lines: list[str] = []
        if self.index is not None:
            place = f"[{','.join(map(str, self.index))}]"
            lines.append(f"  first at global index {place}")
            lines.append(f"  expected {self.expected}")
            lines.append(f"  found    {self.found}")
        if self.origin is not None:
            lines.append(f"  origin   {self.origin}")
        return lines


def describe(lanes: Lanes, dtype: torch.dtype) -> str:
    """Write one element as its value and its bits, e.g. `0.5 (0x3f000000)`.

    Args:
        lanes: The element's one lane, or two of a complex number (real, imaginary).
        dtype: Dtype of the element.
    """
    digits = 2 * lanes.itemsize
    bits = " ".join(f"0x{int(lane):0{digits}x}" for lane in lanes)
    value = tensor_of(lanes.copy(), dtype).item()
    # Nine digits tell all float32 apart; Python's repr would show the float64 it turns into.
    short = isinstance(value, float) and dtype is not torch.float64
    return f"{value:.9g} ({bits})" if short else f"{value!r} ({bits})"
