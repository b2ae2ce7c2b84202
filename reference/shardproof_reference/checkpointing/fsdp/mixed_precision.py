"""Modalities' names for what FSDP1 computes in."""

from __future__ import annotations

from enum import Enum

import torch
from torch.distributed.fsdp import MixedPrecision


class MixedPrecisionSettings(Enum):
    """A policy of FSDP1, by name."""

    FP_16 = MixedPrecision(torch.float16, torch.float16, torch.float16)
    BF_16 = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    BF_16_WORKING = MixedPrecision(torch.float32, torch.bfloat16, torch.bfloat16)
    FP_32 = MixedPrecision(torch.float32, torch.float32, torch.float32)
    MIXED_PRECISION_MEGATRON = MixedPrecision(torch.bfloat16, torch.float32)
    NO_MIXED_PRECISION = None

    @classmethod
    def _missing_(cls, value: object) -> MixedPrecisionSettings | None:
        """Find it by its name, too."""
        return cls.__members__.get(str(value))
