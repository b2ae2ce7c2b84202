"""Save a model and its optimizer, all or nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.fsdp import StateDictType

from shardproof_reference.checkpointing._collective import agree, on_rank_0
from shardproof_reference.checkpointing._entries import Entries, model_entries
from shardproof_reference.checkpointing._full import save_full
from shardproof_reference.checkpointing._optimizer import optimizer_entries
from shardproof_reference.checkpointing._parameters import parameters
from shardproof_reference.checkpointing._sharded import save_sharded
from shardproof_reference.errors import SaveError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: Optimizer, state_dict_type: StateDictType
) -> None:
    """Write one folder; collective.

    It is built beside its final name and renamed when it is complete and synced, so a folder of
    that name is whole. The live model and optimizer aren't changed.

    Args:
        folder: Must not exist; its parent may. Seen by all ranks.
        model: Wrapped with FSDP1 or `fully_shard`, outside of a step.
        optimizer: Of the wrapped model, with any state or none.
        state_dict_type: SHARDED_STATE_DICT: each rank writes what it holds, into a DCP folder.
            FULL_STATE_DICT: rank 0 gathers everything in CPU memory and writes two files.

    Raises:
        SaveError: On every rank; nothing is left behind.
    """
    building = on_rank_0(lambda: _begin(folder), SaveError)
    try:
        agree(lambda: _write(building, model, optimizer, state_dict_type), SaveError)
        on_rank_0(lambda: _finish(building, folder), SaveError)
    except SaveError:
        if dist.get_rank() == 0:
            shutil.rmtree(building, ignore_errors=True)
        raise


def _write(
    folder: Path, model: nn.Module, optimizer: Optimizer, state_dict_type: StateDictType
) -> None:
    entries = agree(lambda: _entries(model, optimizer), SaveError)
    if state_dict_type is StateDictType.SHARDED_STATE_DICT:
        save_sharded(folder, entries)
    elif state_dict_type is StateDictType.FULL_STATE_DICT:
        save_full(folder, entries)
    else:
        raise SaveError(f"{state_dict_type.name} is not supported; use SHARDED or FULL")


def _entries(model: nn.Module, optimizer: Optimizer) -> Entries:
    known = parameters(model)
    entries, state = model_entries(model, known), optimizer_entries(optimizer, known)
    entries.pieces |= state.pieces
    entries.objects |= state.objects
    return entries


def _begin(folder: Path) -> Path:
    if folder.exists():
        raise SaveError(f"{folder} exists; choose another name or delete it first")
    building = folder.with_name(f".{folder.name}.building-{os.getpid()}")
    building.mkdir(parents=True)
    return building


def _finish(building: Path, folder: Path) -> None:
    _sync(building)
    building.rename(folder)
    _sync(folder.parent)


def _sync(folder: Path) -> None:
    """Make a folder's names survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
