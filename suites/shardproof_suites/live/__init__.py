"""What each rank holds of a live model and its optimizer, read without any implementation.

Names are the unwrapped model's, padding is left out, empty shards are legal. All of it is local to
a rank and is asked outside of a step. It shares no code with the reference, which is judged by it.
"""

from __future__ import annotations

from shardproof_suites.live._optimizer import Number, optimizer_numbers, optimizer_shards
from shardproof_suites.live._parameters import (
    LiveParameter,
    buffer_shards,
    live_parameters,
    parameter_shards,
)
from shardproof_suites.live._sharding import sharding_violations

__all__ = [
    "LiveParameter",
    "Number",
    "buffer_shards",
    "live_parameters",
    "optimizer_numbers",
    "optimizer_shards",
    "parameter_shards",
    "sharding_violations",
]
