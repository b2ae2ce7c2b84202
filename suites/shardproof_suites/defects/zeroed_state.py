"""The first moment is lost; the next forward is right, the next step isn't."""

from __future__ import annotations

from shardproof_suites.implementation import LoadResult, Ref, TrainState
from shardproof_suites.implementations.reference import Reference


class ZeroedState(Reference):
    """Zeroes `exp_avg` while it loads."""

    name = "zeroed-state"

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load, then zero the first moments."""
        result = super().load_(state, ref, strict=strict)
        for values in state.optimizers[0].state.values():
            values["exp_avg"].zero_()
        return result
