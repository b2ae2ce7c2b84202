"""A rank that is killed at any step of saving and deleting loses nothing that was complete."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from shardproof import Launch
from shardproof.errors import RankFailure
from shardproof_reference import (
    AppState,
    CheckpointSaving,
    DCPCheckpointLoading,
    DCPCheckpointSaving,
    FSDP1CheckpointLoading,
    FSDP1CheckpointSaving,
    MixedPrecisionSettings,
    SaveKMostRecentCheckpointsStrategy,
    TrainingProgress,
)
from torch.distributed.fsdp import ShardingStrategy

from ._models import Model, build, snapshot, train

Saving = type[FSDP1CheckpointSaving] | type[DCPCheckpointSaving]
INFO = "last_checkpoint_info.json"
STEPS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")


def _die_at(step: int, folder: Path) -> None:
    """Let this process end at once when it touches a folder for the nth time."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in STEPS and str(arguments[0]).startswith(str(folder)):
            seen += 1
            if seen > step:
                os._exit(9)

    sys.addaudithook(watch)


def _state(saving: Saving, steps: int) -> AppState:
    """Make the state that is saved after a number of steps; the same each time."""
    kind = "original" if saving is FSDP1CheckpointSaving else "fully-shard"
    model, optimizer = build(kind, seed=steps)
    train(model, optimizer)
    return AppState(model, optimizer)


def _progress(steps: int) -> TrainingProgress:
    return TrainingProgress(steps, steps, 9, 9)


def _save_and_die(folder: Path, saving: Saving, victim: int, step: int) -> None:
    """Save, and then save again with the first one to be deleted; one rank may die of that."""
    rank = torch.distributed.get_rank()
    strategy = SaveKMostRecentCheckpointsStrategy(1)
    checkpoints = CheckpointSaving(strategy, saving(folder, "e", rank))
    checkpoints.save_checkpoint(_progress(1), None, _state(saving, 1))
    second = _state(saving, 2)
    torch.distributed.barrier()
    if rank == victim:
        _die_at(step, folder)
    checkpoints.save_checkpoint(_progress(2), None, second)


def _resume(folder: Path, saving: Saving) -> int:
    """Load what the info file names, and save the next; return which it was."""
    rank = torch.distributed.get_rank()
    named = [Path(path) for path in json.loads((folder / INFO).read_text()).values()]
    (steps,) = {int(path.name.partition("seen_steps_")[2][0]) for path in named}
    torch.distributed.barrier()  # the info file is about to change
    wanted = _state(saving, steps)
    if saving is FSDP1CheckpointSaving:
        none = MixedPrecisionSettings.NO_MIXED_PRECISION
        loading = FSDP1CheckpointLoading(rank, ["Block"], none, ShardingStrategy.FULL_SHARD)
        model = loading.load_model_checkpoint(Model(), named[0])
        optimizer = torch.optim.AdamW(model.parameters())
        loading.load_optimizer_checkpoint_(optimizer, model, named[1])
    else:
        model, optimizer = build("fully-shard", seed=9)
        DCPCheckpointLoading(rank).load_checkpoint_(AppState(model, optimizer), named[0])
    assert snapshot(model, optimizer) == snapshot(wanted.model_parts[0], wanted.optimizer)
    checkpoints = CheckpointSaving(
        SaveKMostRecentCheckpointsStrategy(-1), saving(folder, "e", rank)
    )
    for again in range(steps + 1, 4):  # what the killed run was at, too, as a resumed one is
        checkpoints.save_checkpoint(_progress(again), None, _state(saving, again))
    return steps


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("saving", [FSDP1CheckpointSaving, DCPCheckpointSaving])
def test_killed_at_each_step(saving: Saving, victim: int, launch: Launch, tmp_path: Path) -> None:
    found = []
    for step in range(100):
        folder = tmp_path / str(step)
        try:
            launch(_save_and_die, folder, saving, victim, step, world_size=2)
        except RankFailure:
            found.append(launch(_resume, folder, saving, world_size=2)[0])
            left = [path.name for path in folder.iterdir() if path.name.startswith(".")]
            assert left == []
            assert "seen_steps_3-" in (folder / INFO).read_text()
        else:
            break
    assert sorted(found) == found  # the first checkpoint, and from some step on the second
    if victim == 0:
        assert {*found} == {1, 2}
        assert len(found) > 10
