"""Two parameters of one shape come back in each other's place; all shapes are right."""

from __future__ import annotations

from shardproof_suites.implementation import LoadResult, Ref, TrainState
from shardproof_suites.implementations.reference import Reference
from shardproof_suites.live import live_parameters

_SWAPPED = ("blocks.0.lin.weight", "blocks.1.lin.weight")


class SwappedShards(Reference):
    """Swaps two parameters while it loads."""

    name = "swapped-shards"

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load, then swap what this rank holds of the two."""
        result = super().load_(state, ref, strict=strict)
        own = {one.names[0]: one.shard.tensor for one in live_parameters(state.modules)}
        if all(name in own for name in _SWAPPED):
            one, other = (own[name] for name in _SWAPPED)
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)
        return result
