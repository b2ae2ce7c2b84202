"""Explain wrong values: untouched, zeros, rounded, or found elsewhere in the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from shardproof_suites.oracle._encoding import Lanes
from shardproof_suites.oracle._fill import complement
from shardproof_suites.oracle._memory import tensor_of
from shardproof_suites.oracle._origin import Evidence, Origin, OriginKind, certain
from shardproof_suites.oracle._recipe import Oracle
from shardproof_suites.oracle._search import find_elsewhere
from shardproof_suites.oracle._shard import Entry

# What a value can be rounded through, with the bits of information that it then still carries.
_FLOAT8 = {torch.float8_e4m3fn: 4, torch.float8_e5m2: 3}
_NARROWER: dict[torch.dtype, dict[torch.dtype, int]] = {
    torch.float64: {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11},
    torch.float32: {torch.bfloat16: 8, torch.float16: 11, **_FLOAT8},
    torch.float16: {torch.bfloat16: 8, **_FLOAT8},
    torch.bfloat16: {torch.float16: 8, **_FLOAT8},
    torch.complex128: {torch.complex64: 48},
    torch.int64: {torch.int32: 32, torch.int16: 16, torch.int8: 8, torch.float32: 24},
    torch.int32: {torch.int16: 16, torch.int8: 8, torch.float32: 24},
    torch.int16: {torch.int8: 8},
}


@dataclass(frozen=True, slots=True)
class _Prediction:
    """What the neighbourhood would hold, and how much one element that agrees tells."""

    kind: OriginKind
    text: str
    values: Lanes
    bits: int


def find_origin(
    evidence: Evidence,
    oracle: Oracle,
    catalogue: tuple[Entry, ...],
    other_seeds: tuple[int, ...],
) -> Origin | None:
    """Try the explanations, cheapest first.

    Args:
        evidence: What was found.
        oracle: Seed, recipe and kind of the expected values.
        catalogue: The model's tensors; the piece's own need not be listed.
        other_seeds: Seeds of other checkpoints.

    Returns:
        The first that is certain, or None.
    """
    predictions = list(_predictions(evidence))
    for prediction in predictions:
        elements = evidence.agreeing(prediction.values)
        if certain(len(predictions), prediction.bits, elements):
            return Origin(prediction.kind, prediction.text, elements)
    return find_elsewhere(evidence, oracle, catalogue, other_seeds)


def _predictions(evidence: Evidence) -> Iterator[_Prediction]:
    dtype, bits = evidence.shard.tensor.dtype, evidence.bits
    poison = evidence.expected.copy()
    complement(poison, dtype)
    text = "untouched memory: still the poison"
    yield _Prediction(OriginKind.UNTOUCHED, text, poison, bits)
    yield _Prediction(OriginKind.ZEROS, "zeros", np.zeros_like(poison), bits)
    for narrow, left in _NARROWER.get(dtype, {}).items():
        text = f"right value, rounded through {narrow}"
        rounded = _rounded(evidence.expected, dtype, narrow)
        # Not all bits: 0.5 is what 0.47 rounds to in a short format, but also just a round number.
        yield _Prediction(OriginKind.CAST, text, rounded, min(bits, left))


def _rounded(bits: Lanes, dtype: torch.dtype, narrow: torch.dtype) -> Lanes:
    values = tensor_of(bits.copy(), dtype).to(narrow).to(dtype)
    return values.view(torch.uint8).numpy().view(bits.dtype)
