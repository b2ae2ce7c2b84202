"""The counter of steps comes back in a dtype that can't count above 256."""

from __future__ import annotations

from shardproof_suites.cell import StateDictType
from shardproof_suites.implementation import LoadResult, Ref, TrainState
from shardproof_suites.implementations.reference import Reference


class CastStep(Reference):
    """Casts `step` to bfloat16 in FULL checkpoints."""

    name = "cast-step"

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load, then cast the counters."""
        result = super().load_(state, ref, strict=strict)
        for values in state.optimizers[0].state.values():
            if self.cell.state_dict_type is StateDictType.FULL:
                values["step"] = values["step"].bfloat16()
        return result
