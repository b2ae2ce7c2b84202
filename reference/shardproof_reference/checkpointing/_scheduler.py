"""A scheduler's entries: the leaves of its state dict, nested as DCP nests them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from shardproof_reference.checkpointing._entries import Entries, Path, TensorSpec, is_plain, key_of
from shardproof_reference.checkpointing._pieces import replicated
from shardproof_reference.errors import SaveError

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

SCHEDULER: Path = ("lr_scheduler",)


def scheduler_entries(scheduler: LRScheduler) -> Entries:
    """List the state of a scheduler.

    Raises:
        SaveError: It has state that is neither a tensor nor plain; a function, say.
    """
    entries = Entries()
    for path, value in _leaves(scheduler.state_dict(), SCHEDULER):
        if isinstance(value, torch.Tensor):
            entries.pieces[path] = replicated(value.detach())
        elif is_plain(value):
            entries.objects[path] = value
        else:
            raise SaveError(f"{key_of(path)} is a {type(value).__name__}, which can't be stored")
    return entries


def scheduler_problems(stored: Mapping[Path, object], scheduler: LRScheduler) -> Iterator[str]:
    """Yield the names that only a checkpoint has, or only a scheduler."""
    found = {key_of(path) for path in stored if path[:1] == SCHEDULER}
    wanted = {key_of(path) for path, _ in _leaves(scheduler.state_dict(), SCHEDULER)}
    yield from (f"{key} is missing in the checkpoint" for key in sorted(wanted - found))
    yield from (f"{key} is in the checkpoint only" for key in sorted(found - wanted))


def scheduler_room(stored: Mapping[Path, object]) -> Entries:
    """Make tensors to read a stored scheduler's into; its other values are known."""
    return Entries(
        {
            path: replicated(torch.empty(found.shape, dtype=found.dtype))
            for path, found in stored.items()
            if path[:1] == SCHEDULER and isinstance(found, TensorSpec)
        }
    )


def set_scheduler(scheduler: LRScheduler, stored: Mapping[Path, object], room: Entries) -> None:
    """Give a scheduler its stored state; what nothing was stored of stays as it is."""

    def value_of(path: Path) -> object:
        piece = room.pieces.get(path)
        return stored[path] if piece is None else piece.parts[0].tensor

    scheduler.load_state_dict(_replaced(scheduler.state_dict(), SCHEDULER, value_of))


def _steps(value: Any) -> Iterator[tuple[str | int, Any]] | None:
    """Return the entries of what DCP takes apart: a list of numbers, say, is a leaf."""
    if isinstance(value, dict):
        return iter(value.items())
    nested = isinstance(value, list) and any(isinstance(one, dict | torch.Tensor) for one in value)
    return iter(enumerate(value)) if nested else None


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    steps = _steps(value)
    if steps is None:
        yield path, value
    else:
        for step, inner in steps:
            yield from _leaves(inner, (*path, step))


def _replaced(value: Any, path: Path, value_of: Callable[[Path], object]) -> Any:
    """Return a nested value with other leaves."""
    steps = _steps(value)
    if steps is None:
        return value_of(path)
    inner = {step: _replaced(one, (*path, step), value_of) for step, one in steps}
    return inner if isinstance(value, dict) else list(inner.values())
