"""Load a model and its optimizer in place, once it is known that all of it fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import StateDictType

from shardproof_reference.checkpointing._check import check_fit
from shardproof_reference.checkpointing._collective import agree
from shardproof_reference.checkpointing._entries import (
    Entries,
    check_same,
    model_entries,
    with_scratch,
)
from shardproof_reference.checkpointing._full import FullSource
from shardproof_reference.checkpointing._optimizer import State, group_path, make_room
from shardproof_reference.checkpointing._parameters import parameters
from shardproof_reference.checkpointing._sharded import ShardedSource
from shardproof_reference.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.optim import Optimizer


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: Optimizer, state_dict_type: StateDictType
) -> None:
    """Read one folder into a wrapped model and its optimizer; collective.

    World size, strategy and mesh may differ from those of the save. Names, shapes and dtypes may
    not: nothing is skipped or cast. The optimizer may have taken a step or not.

    Args:
        folder: As `save_checkpoint` wrote it, seen by all ranks.
        model: Wrapped with FSDP1 or `fully_shard`, outside of a step.
        optimizer: Of the wrapped model.
        state_dict_type: The type that it was saved with.

    Raises:
        LoadError: On every rank. If the checkpoint doesn't fit, nothing was changed.
    """
    source = agree(lambda: _open(folder, state_dict_type), LoadError)
    target, state = agree(lambda: _prepare(source.stored, model, optimizer), LoadError)
    agree(lambda: source.read(target), LoadError)
    agree(lambda: check_same(target), LoadError)
    _set_state(optimizer, state)
    _set_options(optimizer, source.stored)


def _open(folder: Path, state_dict_type: StateDictType) -> ShardedSource | FullSource:
    if state_dict_type is StateDictType.SHARDED_STATE_DICT:
        return ShardedSource(folder)
    if state_dict_type is StateDictType.FULL_STATE_DICT:
        return FullSource(folder)
    raise LoadError(f"{state_dict_type.name} is not supported; use SHARDED or FULL")


def _prepare(
    stored: Mapping[tuple[str | int, ...], object], model: nn.Module, optimizer: Optimizer
) -> tuple[Entries, State]:
    """List where to read to, if the checkpoint fits there."""
    known = parameters(model)
    target = model_entries(model, known)
    room, state = make_room(optimizer, known, stored)
    check_fit(stored, target, room, optimizer, known)
    return with_scratch(
        Entries(target.pieces | room.pieces, room.objects, target.same | room.same)
    ), state


def _set_state(optimizer: Optimizer, state: State) -> None:
    """Give each parameter its stored state, and none to those that have none."""
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            if tensor in state:
                optimizer.state[tensor] = state[tensor]
            else:
                optimizer.state.pop(tensor, None)


def _set_options(optimizer: Optimizer, stored: Mapping[tuple[str | int, ...], object]) -> None:
    """Give each group its stored options; those that are tensors have been read in place."""
    for index, group in enumerate(optimizer.param_groups):
        for option, value in group.items():
            if option != "params" and not isinstance(value, torch.Tensor):
                group[option] = stored[group_path(index, option)]
