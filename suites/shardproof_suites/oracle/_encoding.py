"""How a mixed 64-bit word becomes a value, as bits (RECIPE.md, 'Value by dtype')."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from shardproof_suites.oracle._recipe import Kind, Oracle, Recipe

Words: TypeAlias = npt.NDArray[np.uint64]
Lanes: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Writer: TypeAlias = Callable[[Words, Words, Lanes], None]
"""Called with (words, scratch as large, out); it may spoil the first two."""

_SIGNED = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
_UNSIGNED = frozenset({torch.uint8, torch.uint16, torch.uint32, torch.uint64})
_MANTISSA = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_REAL = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
_FLOAT8 = frozenset(
    getattr(torch, name)
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
)
# Recipe 1 takes (z >> 33) mod 128 for signed integers, mod 256 for uint8.
_SMALL_SHIFT = np.uint64(33)


@dataclass(frozen=True, slots=True)
class Encoding:
    """How one dtype's elements are made in one role.

    Attributes:
        lane: Unsigned integer type as wide as a real number of the dtype.
        lanes: Lanes an element: 2 for complex dtypes, else 1.
        bits: Information an element carries: a wrong one passes with chance 2**-bits.
        write: Turns mixed words into lanes.
    """

    lane: np.dtype[np.unsignedinteger[Any]]
    lanes: int
    bits: int
    write: Writer


def encoding(dtype: torch.dtype, role: str, oracle: Oracle) -> Encoding:
    """Choose the rule for a dtype.

    Raises:
        TypeError: The recipe doesn't define the dtype.
    """
    real = _REAL.get(dtype, dtype)
    lanes = 1 if real is dtype else 2
    bits, write = _rule(real, oracle, oracle.non_negative(role))
    if write is None or (oracle.recipe is Recipe.ONE and not _in_recipe_1(dtype)):
        raise TypeError(f"recipe {oracle.recipe.value} defines no value for {dtype}")
    return Encoding(lane_type(real), lanes, bits * lanes, write)


def _in_recipe_1(dtype: torch.dtype) -> bool:
    return dtype in _MANTISSA or dtype in _SIGNED or dtype in (torch.uint8, torch.bool)


def lane_type(dtype: torch.dtype) -> np.dtype[np.unsignedinteger[Any]]:
    """Give the unsigned integer type as wide as an element, or as half a complex one."""
    return np.dtype(f"u{_REAL.get(dtype, dtype).itemsize}")


def _rule(dtype: torch.dtype, oracle: Oracle, positive: bool) -> tuple[int, Writer | None]:
    """Give (bits of information, writer) of a real dtype, the writer None if there is no rule."""
    if dtype is torch.bool:
        return 1, _odd
    if dtype in _SIGNED or dtype in _UNSIGNED:
        return _integer_rule(dtype, oracle, positive)
    if dtype in _FLOAT8:
        # At most 2 of 256 patterns are NaN and doubled up elsewhere: count 7 bits, not 8.
        return 7 - positive, partial(_look_up, _float8_table(dtype, positive), np.uint64(56))
    if dtype not in _MANTISSA:
        return 0, None
    if oracle.kind is Kind.BITS:
        return 8 * dtype.itemsize - positive, _top_positive if positive else _top
    return _value_rule(dtype, oracle.kind, positive)


def _integer_rule(dtype: torch.dtype, oracle: Oracle, positive: bool) -> tuple[int, Writer]:
    if oracle.recipe is Recipe.ONE:
        bits = 8 if dtype is torch.uint8 else 7
        return bits, partial(_small, np.uint64(2**bits - 1))
    if positive and dtype in _SIGNED:
        return 8 * dtype.itemsize - 1, _top_magnitude
    return 8 * dtype.itemsize, _top


def _value_rule(dtype: torch.dtype, kind: Kind, positive: bool) -> tuple[int, Writer]:
    mantissa = _MANTISSA[dtype]
    finish = _finish(kind) if positive else None
    if mantissa <= 11:
        table = _value_table(dtype, kind, positive)
        return mantissa - positive, partial(_look_up, table, np.uint64(64 - mantissa))
    return mantissa - positive, partial(_scaled, mantissa, finish)


def _odd(z: Words, _spare: Words, out: Lanes) -> None:
    np.bitwise_and(z, np.uint64(1), out=z)
    np.copyto(out, z, casting="unsafe")


def _small(mask: np.uint64, z: Words, _spare: Words, out: Lanes) -> None:
    np.right_shift(z, _SMALL_SHIFT, out=z)
    np.bitwise_and(z, mask, out=z)
    np.copyto(out, z, casting="unsafe")


def _top(z: Words, _spare: Words, out: Lanes) -> None:
    np.right_shift(z, np.uint64(64 - 8 * out.itemsize), out=z)
    np.copyto(out, z, casting="unsafe")


def _top_positive(z: Words, spare: Words, out: Lanes) -> None:
    """Clear the sign bit: the absolute value of any float, NaN included."""
    np.bitwise_and(z, np.uint64(2**63 - 1), out=z)
    _top(z, spare, out)


def _top_magnitude(z: Words, spare: Words, out: Lanes) -> None:
    """Take the absolute value; the lowest integer, which has none, becomes the highest."""
    _top(z, spare, out)
    signed = out.view(f"i{out.itemsize}")
    np.absolute(signed, out=signed)
    np.minimum(out, out.dtype.type(2 ** (8 * out.itemsize - 1) - 1), out=out)


def _look_up(table: Lanes, shift: np.uint64, z: Words, _spare: Words, out: Lanes) -> None:
    np.right_shift(z, shift, out=z)
    # Every index is in range; with mode "raise" numpy would buffer the output.
    np.take(table, z.view(np.int64), out=out, mode="wrap")


Finish: TypeAlias = Callable[[npt.NDArray[Any]], None]


def _scaled(mantissa: int, finish: Finish | None, z: Words, spare: Words, out: Lanes) -> None:
    """Write (top bits - half) / half; every step is exact in the dtype."""
    np.right_shift(z, np.uint64(64 - mantissa), out=z)
    integers = spare.view(f"i{out.itemsize}")[: z.size]
    np.copyto(integers, z, casting="unsafe")
    values = out.view(f"f{out.itemsize}")
    np.copyto(values, integers, casting="unsafe")
    np.multiply(values, values.dtype.type(2.0 ** (1 - mantissa)), out=values)
    np.subtract(values, values.dtype.type(1), out=values)
    if finish is not None:
        finish(values)


def _finish(kind: Kind) -> Finish:
    return _second_moment if kind is Kind.TRAINING else _absolute


def _absolute(values: npt.NDArray[Any]) -> None:
    np.absolute(values, out=values)


def _second_moment(values: npt.NDArray[Any]) -> None:
    np.absolute(values, out=values)
    np.multiply(values, values.dtype.type(0.5), out=values)
    np.add(values, values.dtype.type(0.5), out=values)


@cache
def _value_table(dtype: torch.dtype, kind: Kind, positive: bool) -> Lanes:
    """List a narrow float's values in order of z's top bits, as bits; a constant, so read-only."""
    half = 2 ** (_MANTISSA[dtype] - 1)
    values = (np.arange(2 * half, dtype=np.float32) - half) / half
    if positive:
        _finish(kind)(values)
    bits = torch.from_numpy(values).to(dtype).view(torch.uint8).numpy().view(lane_type(dtype))
    bits.setflags(write=False)
    return bits


@cache
def _float8_table(dtype: torch.dtype, positive: bool) -> Lanes:
    """List a float8's patterns without NaN: one that would be NaN has bit 6 flipped instead.

    RECIPE.md only says 'without NaN'; the flip is ours. It hits no NaN in any of the five types.
    """
    patterns: Lanes = np.arange(256, dtype=np.uint8)
    nan = torch.from_numpy(patterns).view(dtype).to(torch.float32).isnan().numpy()
    patterns = np.bitwise_xor(patterns, np.uint8(0x40), where=nan, out=patterns.copy())
    # float8_e8m0fnu has no sign: its top bit belongs to the exponent.
    if positive and dtype is not getattr(torch, "float8_e8m0fnu", None):
        patterns = np.bitwise_and(patterns, np.uint8(0x7F))
    patterns.setflags(write=False)
    return patterns
