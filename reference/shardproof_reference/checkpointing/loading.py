"""Load a model and its optimizer in place, once it is known that all of it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch.distributed.fsdp import StateDictType

from shardproof_reference.checkpointing._check import check_fit
from shardproof_reference.checkpointing._collective import agree
from shardproof_reference.checkpointing._entries import Entries, Path, check_same, with_scratch
from shardproof_reference.checkpointing._full import FILES, FullSource
from shardproof_reference.checkpointing._live import Live
from shardproof_reference.checkpointing._optimizer import State, group_path, make_room
from shardproof_reference.checkpointing._scheduler import scheduler_room, set_scheduler
from shardproof_reference.checkpointing._sharded import ShardedSource
from shardproof_reference.errors import LoadError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Source(Protocol):
    """Files to load from.

    Attributes:
        stored: Specification of each tensor, and each object; the same on every rank.
    """

    stored: dict[Path, object]

    def plan(self, entries: Entries) -> Callable[[], None]:
        """Return what reads this rank's boxes into their memory, which is collective.

        Raises:
            LoadError: They can't be read; nothing was.
        """


def load_checkpoint(
    folder: FilePath, model: nn.Module, optimizer: Optimizer, state_dict_type: StateDictType
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
    load(agree(lambda: _open(folder, state_dict_type), LoadError), Live((model,), optimizer))


class Misfits(NamedTuple):
    """Names that only one side has, in order.

    Attributes:
        missing_keys: What the model has and the checkpoint hasn't.
        unexpected_keys: What the checkpoint has and the model hasn't.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def load(source: Source, live: Live, *, strict: bool = True) -> Misfits:
    """Read what fits into what is live; collective.

    Args:
        source: Where to read from.
        live: What to read into.
        strict: Whether a name of the model that only one side has is refused.

    Returns:
        Those names.

    Raises:
        LoadError: On every rank. If the checkpoint doesn't fit, nothing was changed.
    """

    def prepare() -> tuple[Misfits, _Prepared, Callable[[], None]]:
        live.refuse_unwrapped()
        misfits = _misfits(source.stored, live)
        if strict:
            prepared = _prepare(source.stored, live)
        else:
            prepared = _prepare(*_in_common(source.stored, live, misfits))
        return misfits, prepared, source.plan(prepared.target)

    def finish() -> None:
        read()
        check_same(prepared.target)

    misfits, prepared, read = agree(prepare, LoadError)
    agree(finish, LoadError)
    if live.optimizer is not None:
        _set_state(live.optimizer, prepared.state)
        _set_options(live.optimizer, source.stored)
    if live.scheduler is not None:
        set_scheduler(live.scheduler, source.stored, prepared.scheduler)
    return misfits


def _misfits(stored: Mapping[Path, object], live: Live) -> Misfits:
    wanted = [str(path[1]) for path in live.model_entries().pieces]
    found = [str(path[1]) for path in stored if path[0] == "model"]
    return Misfits(
        [name for name in wanted if name not in set(found)],
        [name for name in found if name not in set(wanted)],
    )


def _in_common(
    stored: Mapping[Path, object], live: Live, misfits: Misfits
) -> tuple[Mapping[Path, object], Live]:
    """Leave out what only one side has."""
    unexpected = {("model", name) for name in misfits.unexpected_keys}
    both = {path: found for path, found in stored.items() if path not in unexpected}
    return both, replace(live, without=frozenset(misfits.missing_keys))


def refuse_misfit(stored: Mapping[Path, object], live: Live) -> None:
    """Refuse what `load` would; of a model, wrapped or not.

    Raises:
        LoadError: With everything that doesn't fit.
    """
    _prepare(stored, live)


def _open(folder: FilePath, state_dict_type: StateDictType) -> Source:
    if state_dict_type is StateDictType.SHARDED_STATE_DICT:
        return ShardedSource(folder)
    if state_dict_type is StateDictType.FULL_STATE_DICT:
        return FullSource({name: folder / file for name, file in FILES.items()})
    raise LoadError(f"{state_dict_type.name} is not supported; use SHARDED or FULL")


class _Prepared(NamedTuple):
    """Where to read to: everything, the scheduler's part of it, and the optimizer's state then."""

    target: Entries
    scheduler: Entries
    state: State


def _prepare(stored: Mapping[Path, object], live: Live) -> _Prepared:
    """List where to read to, if the checkpoint fits there."""
    target = live.model_entries()
    known = live.parameters()
    state: State = {}
    room = Entries()
    if live.optimizer is not None:
        room, state = make_room(live.optimizer, known, stored)
    check_fit(stored, target, room, live, known)
    target.add(room)
    scheduler = scheduler_room(stored) if live.scheduler is not None else Entries()
    target.add(scheduler)
    return _Prepared(with_scratch(target), scheduler, state)


def _set_state(optimizer: Optimizer, state: State) -> None:
    """Give each parameter its stored state, and none to those that have none."""
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            if tensor in state:
                optimizer.state[tensor] = state[tensor]
            else:
                optimizer.state.pop(tensor, None)


def _set_options(optimizer: Optimizer, stored: Mapping[Path, object]) -> None:
    """Give each group its stored options; those that are tensors have been read in place."""
    for index, group in enumerate(optimizer.param_groups):
        for option, value in group.items():
            path = group_path(index, option)
            if option != "params" and path in stored and not isinstance(value, torch.Tensor):
                group[option] = stored[path]
