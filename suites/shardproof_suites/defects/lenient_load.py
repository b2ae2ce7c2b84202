"""A checkpoint that doesn't fit is taken as far as it goes."""

from __future__ import annotations

from shardproof_reference import LoadError

from shardproof_suites.implementation import LoadResult, Ref, TrainState
from shardproof_suites.implementations.reference import Reference


class LenientLoad(Reference):
    """Never refuses a load."""

    name = "lenient-load"

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load, or leave it."""
        try:
            return super().load_(state, ref, strict=strict)
        except LoadError:
            return LoadResult()
