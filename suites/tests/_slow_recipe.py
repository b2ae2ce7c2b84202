"""golden/RECIPE.md once more, one element at a time and in Python's own integers.

Shares no code with the package. Gives bits, lane by lane; a complex number is two lanes.
"""

from __future__ import annotations

import hashlib
import struct

_MASK = 2**64 - 1
_NON_NEGATIVE = {
    1: {"exp_avg_sq", "max_exp_avg_sq"},
    2: {"exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg", "acc_delta"},
}
# (bits of mantissa with the hidden one, struct format, bits of the dtype)
_FLOATS = {
    "float64": (53, "<d", 64),
    "float32": (24, "<f", 32),
    "float16": (11, "<e", 16),
    "bfloat16": (8, "<f", 16),
}
_NANS = {
    "float8_e4m3fn": {0x7F, 0xFF},
    "float8_e4m3fnuz": {0x80},
    "float8_e5m2": {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF},
    "float8_e5m2fnuz": {0x80},
    "float8_e8m0fnu": {0xFF},
}
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def word(seed: int, role: str, fqn: str, index: int) -> int:
    """Mix the 64-bit word of one index."""
    digest = hashlib.sha256(f"{seed}/{role}/{fqn}".encode()).digest()
    z = (int.from_bytes(digest[:8], "little") + index * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def lanes(
    seed: int, role: str, fqn: str, dtype: str, index: int, recipe: int, kind: str
) -> list[int]:
    """Give the bits of one element."""
    positive = role in _NON_NEGATIVE[recipe]
    if dtype in _PARTS:
        words = [word(seed, role, fqn, 2 * index + part) for part in (0, 1)]
        return [_lane(z, _PARTS[dtype], recipe, kind, positive) for z in words]
    return [_lane(word(seed, role, fqn, index), dtype, recipe, kind, positive)]


def _lane(z: int, dtype: str, recipe: int, kind: str, positive: bool) -> int:
    if dtype == "bool":
        return z % 2
    if dtype in _NANS:
        return _float8(z >> 56, dtype, positive)
    if dtype in _FLOATS:
        return _float(z, dtype, kind, positive)
    return _integer(z, dtype, recipe, positive)


def _float8(bits: int, dtype: str, positive: bool) -> int:
    if bits in _NANS[dtype]:
        bits ^= 0x40
    return bits % 128 if positive and dtype != "float8_e8m0fnu" else bits


def _float(z: int, dtype: str, kind: str, positive: bool) -> int:
    mantissa, form, width = _FLOATS[dtype]
    if kind == "bits":
        bits = z >> (64 - width)
        return bits % 2 ** (width - 1) if positive else bits
    half = 2 ** (mantissa - 1)
    value = ((z >> (64 - mantissa)) - half) / half
    if positive:
        value = (1 + abs(value)) / 2 if kind == "training" else abs(value)
    bits = int.from_bytes(struct.pack(form, value), "little")
    return bits >> 16 if dtype == "bfloat16" else bits


def _integer(z: int, dtype: str, recipe: int, positive: bool) -> int:
    signed = dtype.startswith("int")
    width = int(dtype.removeprefix("u").removeprefix("int"))
    if recipe == 1:
        return (z >> 33) % (128 if signed else 256)
    bits = z >> (64 - width)
    if positive and signed and bits >= 2 ** (width - 1):
        magnitude: int = 2**width - bits
        return magnitude if magnitude < 2 ** (width - 1) else magnitude - 1
    return bits
