"""The state of a fresh optimizer is the template of the load: nothing is asked for."""

from __future__ import annotations

from shardproof_suites.implementation import LoadResult, Ref, TrainState
from shardproof_suites.implementations.reference import Reference


class LostState(Reference):
    """Restores the optimizer's state only where there is one already."""

    name = "lost-state"

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load, and drop the state again if there was none before."""
        had_state = bool(state.optimizers[0].state)
        result = super().load_(state, ref, strict=strict)
        if not had_state:
            state.optimizers[0].state.clear()
        return result
