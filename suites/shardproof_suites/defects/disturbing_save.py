"""A save packs two states into one buffer that the optimizer still uses."""

from __future__ import annotations

from pathlib import Path

from shardproof_suites.implementation import Ref, TrainState
from shardproof_suites.implementations.reference import Reference


class DisturbingSave(Reference):
    """Overwrites the live `exp_avg` once it is saved."""

    name = "disturbing-save"

    def save(self, state: TrainState, root: Path, step: int) -> Ref:
        """Save, then overwrite the first moments."""
        ref = super().save(state, root, step)
        for values in state.optimizers[0].state.values():
            values["exp_avg"].copy_(values["exp_avg_sq"])
        return ref
