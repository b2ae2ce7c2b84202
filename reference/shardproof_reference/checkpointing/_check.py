"""Whether a checkpoint fits a model and its optimizer; asked before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from shardproof_reference.checkpointing._entries import Entries, Path, TensorSpec, key_of
from shardproof_reference.checkpointing._live import Live
from shardproof_reference.checkpointing._optimizer import (
    GROUPS,
    group_names,
    has_elements,
    state_by_name,
)
from shardproof_reference.checkpointing._parameters import Parameter
from shardproof_reference.checkpointing._pieces import Piece
from shardproof_reference.checkpointing._scheduler import scheduler_problems
from shardproof_reference.errors import LoadError

if TYPE_CHECKING:
    from torch.optim import Optimizer

_MOST_LISTED = 10


def check_fit(
    stored: Mapping[Path, object],
    model: Entries,
    state: Entries,
    live: Live,
    parameters: list[Parameter],
) -> None:
    """Refuse a checkpoint that has too little, too much, or anything of another kind.

    Raises:
        LoadError: With everything that doesn't fit.
    """
    problems = [
        *_compare_names(
            "model",
            {key_of(path) for path in stored if path[0] == "model"},
            {key_of(path) for path in model.pieces},
        ),
        *_compare_kinds(stored, {**model.pieces, **state.pieces}),
        *_compare_trainers(stored, live, parameters),
    ]
    if problems:
        listed = problems[:_MOST_LISTED]
        if len(problems) > len(listed):
            listed.append(f"and {len(problems) - len(listed)} more")
        raise LoadError("the checkpoint doesn't fit:\n  " + "\n  ".join(listed))


def _compare_trainers(
    stored: Mapping[Path, object], live: Live, parameters: list[Parameter]
) -> Iterator[str]:
    """Compare the optimizer and the scheduler, of which each may be none."""
    for name, wanted in (("optimizer", live.optimizer), ("lr_scheduler", live.scheduler)):
        found = any(path[0] == name for path in stored)
        if found != (wanted is not None):
            yield f"{name} is {'in the checkpoint only' if found else 'not in the checkpoint'}"
            return
    if live.optimizer is not None:
        yield from _compare_groups(stored, live.optimizer, parameters)
        yield from _compare_states(stored, live.optimizer, parameters)
    if live.scheduler is not None:
        yield from scheduler_problems(stored, live.scheduler)


def _compare_names(where: str, stored: set[str], live: Iterable[str]) -> Iterator[str]:
    live = set(live)
    for name in sorted(live - stored):
        yield f"{where}: {name} is missing in the checkpoint"
    for name in sorted(stored - live):
        yield f"{where}: {name} is in the checkpoint only"


def _compare_kinds(stored: Mapping[Path, object], live: Mapping[Path, Piece]) -> Iterator[str]:
    """Compare shapes and dtypes; nothing is ever cast."""
    for path, piece in live.items():
        found, wanted = stored.get(path), TensorSpec(piece.shape, piece.dtype)
        if found is not None and found != wanted:
            yield f"{key_of(path)} is {found} in the checkpoint, expected {wanted}"


def _compare_states(
    stored: Mapping[Path, object], optimizer: Optimizer, parameters: list[Parameter]
) -> Iterator[str]:
    """Compare which states a parameter has with those of the optimizer, or of its group.

    A parameter without any has never been stepped; one with some has lost others.
    """
    states = state_by_name(stored)
    for fqn in sorted(states.keys() - {parameter.fqn for parameter in parameters}):
        yield f"optimizer state: {fqn} is in the checkpoint only"
    for group in optimizer.param_groups:
        trained = set(map(id, group["params"]))
        members = [one for one in parameters if id(one.optimized) in trained]
        first = next((states[one.fqn] for one in members if one.fqn in states), {})
        for member in filter(has_elements, members):
            wanted = optimizer.state.get(member.optimized) or first
            found = states.get(member.fqn)
            if found:
                yield from _compare_names(f"state of {member.fqn}", set(found), map(str, wanted))


def _implied(option: str, value: object, optimizer: Optimizer) -> bool:
    """Say whether an older torch, which hasn't the option, means just this value."""
    if option == "decoupled_weight_decay":  # since torch 2.7
        return value is isinstance(optimizer, torch.optim.AdamW)
    return False


def _compare_groups(
    stored: Mapping[Path, object], optimizer: Optimizer, parameters: list[Parameter]
) -> Iterator[str]:
    """Compare each group's options and members; their values are what a load restores."""
    options: dict[object, dict[str, object]] = {}
    for path, value in stored.items():
        if path[: len(GROUPS)] == GROUPS:
            _, _, index, option = path
            options.setdefault(index, {})[str(option)] = value
    groups = optimizer.param_groups
    if len(options) != len(groups):
        yield f"{len(options)} parameter groups in the checkpoint, {len(groups)} in the optimizer"
        return
    for index, group in enumerate(groups):
        found = options.get(index, {})
        ours = {o for o in group if o in found or not _implied(o, group[o], optimizer)}
        theirs = {o for o in found if o in group or not _implied(o, found[o], optimizer)}
        yield from _compare_names(f"parameter group {index}", theirs, ours)
        for option, value in group.items():
            stored_tensor = isinstance(found.get(option), TensorSpec)
            if option in found and stored_tensor != isinstance(value, torch.Tensor):
                kinds = ("a tensor", "none") if stored_tensor else ("no tensor", "one")
                has, wants = kinds
                yield (
                    f"{option} of parameter group {index} is {has} in the checkpoint and {wants} "
                    "in the optimizer"
                )
        members = found.get("params")
        wanted = group_names(group, parameters)
        if isinstance(members, list) and set(members) != set(wanted):
            yield f"parameter group {index} holds {members} in the checkpoint, expected {wanted}"
