"""Parameters change their group on a load; every one trains on with another's options."""

from __future__ import annotations

from shardproof_suites.cell import StateDictType
from shardproof_suites.implementation import LoadResult, Ref, TrainState
from shardproof_suites.implementations.reference import Reference


class SwappedGroups(Reference):
    """Gives each group the other one's parameters."""

    name = "swapped-groups"

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load, then swap the members of the two groups."""
        result = super().load_(state, ref, strict=strict)
        first, second = state.optimizers[0].param_groups
        if self.cell.state_dict_type is StateDictType.SHARDED:
            first["params"], second["params"] = second["params"], first["params"]
        return result
