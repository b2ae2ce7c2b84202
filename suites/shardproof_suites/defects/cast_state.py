"""A state is kept in the dtype of the transport."""

from __future__ import annotations

import torch

from shardproof_suites.implementation import LoadResult, Ref, TrainState
from shardproof_suites.implementations.reference import Reference


class CastState(Reference):
    """Casts `exp_avg_sq` to bfloat16 while it loads."""

    name = "cast-state"

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load, then cast the second moments."""
        result = super().load_(state, ref, strict=strict)
        for values in state.optimizers[0].state.values():
            values["exp_avg_sq"] = values["exp_avg_sq"].to(torch.bfloat16)
        return result
