"""Folders and files are Modalities': it reads ours, and we read its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from shardproof import Launch
from shardproof_reference import (
    AppState,
    CheckpointingInstruction,
    DCPCheckpointLoading,
    DCPCheckpointSaving,
    FSDP1CheckpointSaving,
    TrainingProgress,
)
from torch.optim.lr_scheduler import StepLR

from ._models import build, snapshot, train
from ._peers import NEEDS_PEERS, differing, import_peers

PROGRESS = TrainingProgress(3, 96, 10, 320)
NAME = "eid_e-{}seen_steps_3-seen_tokens_96-target_steps_10-target_tokens_320"


def _state(kind: Any, app_state: Any, seed: int = 0, steps: int = 2) -> Any:
    model, optimizer = build(kind, seed=seed)
    scheduler = StepLR(optimizer, 1, 0.5)
    train(model, optimizer, steps)
    for _ in range(steps):
        scheduler.step()
    return app_state(model, optimizer, scheduler)


def _held(state: Any) -> dict[str, Any]:
    found = snapshot(state.model_parts[0], state.optimizer)
    return found | {"scheduler": state.lr_scheduler.state_dict()}


def _ours_to_theirs(folder: Path, kind: str) -> list[str]:
    rank = torch.distributed.get_rank()
    state = _state(kind, AppState)
    now = CheckpointingInstruction(save_current=True)
    DCPCheckpointSaving(folder, "e", rank).run_checkpoint_instruction(now, PROGRESS, state)
    import_peers()
    from modalities.checkpointing.fsdp import fsdp_checkpoint_loading
    from modalities.checkpointing.stateful import app_state

    other = _state(kind, app_state.AppState, seed=1, steps=0)
    loading = fsdp_checkpoint_loading.DCPCheckpointLoading(rank)
    loading.load_checkpoint_(other, folder / NAME.format(""))
    return differing(_held(other), _held(state))


def _theirs_to_ours(folder: Path, kind: str) -> list[str]:
    import_peers()
    from modalities.checkpointing import checkpoint_saving_instruction
    from modalities.checkpointing.fsdp import fsdp_checkpoint_saving
    from modalities.checkpointing.stateful import app_state
    from modalities.training import training_progress

    rank = torch.distributed.get_rank()
    state = _state(kind, app_state.AppState)
    now = checkpoint_saving_instruction.CheckpointingInstruction(save_current=True)
    progress = training_progress.TrainingProgress(**asdict(PROGRESS))
    saving = fsdp_checkpoint_saving.DCPCheckpointSaving(folder, "e", rank)
    saving.run_checkpoint_instruction(now, progress, state)
    other = _state(kind, AppState, seed=1, steps=0)
    DCPCheckpointLoading(rank).load_checkpoint_(other, folder / NAME.format(""))
    return differing(_held(other), _held(state))


def _our_optimizer_to_theirs(folder: Path, kind: str) -> list[str]:
    """Load one of two full files; the other one's loading, and their saving, need a GPU."""
    rank = torch.distributed.get_rank()
    state = _state(kind, AppState)
    now = CheckpointingInstruction(save_current=True)
    FSDP1CheckpointSaving(folder, "e", rank).run_checkpoint_instruction(now, PROGRESS, state)
    import_peers()
    from modalities.checkpointing.fsdp import fsdp_checkpoint_loading

    loading = fsdp_checkpoint_loading.FSDP1CheckpointLoading(rank, [], None, None)
    model, optimizer = state.model_parts[0], torch.optim.AdamW(state.model_parts[0].parameters())
    file = folder / f"{NAME.format('optimizer-')}.bin"
    loading.load_optimizer_checkpoint_(optimizer, model, file)
    return differing(snapshot(model, optimizer), snapshot(model, state.optimizer))


@NEEDS_PEERS
@pytest.mark.parametrize(
    ("direction", "kind"),
    [
        (_ours_to_theirs, "fully-shard"),
        (_ours_to_theirs, "original"),
        (_theirs_to_ours, "fully-shard"),
        (_theirs_to_ours, "original"),
        (_theirs_to_ours, "flat"),
        (_our_optimizer_to_theirs, "original"),
        (_our_optimizer_to_theirs, "flat"),
    ],
)
def test_files_are_modalities(
    direction: Callable[..., list[str]], kind: str, launch: Launch, tmp_path: Path
) -> None:
    assert launch(direction, tmp_path, kind, world_size=2) == [[], []]
