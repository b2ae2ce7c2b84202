"""FULL: two files that rank 0 writes and reads, with whole tensors in its CPU memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path as FilePath
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist

from shardproof_reference.checkpointing._collective import group, on_rank_0
from shardproof_reference.checkpointing._entries import Entries, Path, TensorSpec
from shardproof_reference.checkpointing._gather import Tensors, gather, scatter
from shardproof_reference.checkpointing._optimizer import GROUPS
from shardproof_reference.errors import LoadError, SaveError

FILES = {"model": "pytorch_model_fsdp.bin", "optimizer": "optimizer.bin"}


def save_full(files: Mapping[str, FilePath], entries: Entries) -> None:
    """Gather everything on rank 0, which writes it; collective.

    Args:
        files: Where the model goes, or the optimizer, or each of them.
        entries: What this rank has of what is to be saved.
    """
    tensors = gather(entries)
    objects: list[dict[Path, object]] = [{}] * dist.get_world_size()
    dist.all_gather_object(objects, entries.objects, group=group())
    everything: dict[Path, object] = {**tensors}
    for one in objects:
        everything |= one
    on_rank_0(lambda: _write(files, everything), SaveError)


class FullSource:
    """One file or two; collective, as only rank 0 reads them.

    Args:
        files: Where the model is, or the optimizer, or each of them.

    Attributes:
        stored: Specification of each tensor, and each object; on every rank.

    Raises:
        LoadError: A file is missing, or holds something that isn't data.
    """

    def __init__(self, files: Mapping[str, FilePath]) -> None:
        self._tensors: Tensors = {}
        self.stored: dict[Path, object] = on_rank_0(lambda: self._open(files), LoadError)

    def _open(self, files: Mapping[str, FilePath]) -> dict[Path, object]:
        stored: dict[Path, object] = {}
        for name, file in files.items():
            if not file.is_file():
                raise LoadError(f"{file.parent}: no {file.name}; not a complete full checkpoint")
            content = _read(file)
            _refuse_other_kind(name, file, content)
            stored |= flatten(content, (name,))
            _refuse_overwritten(file, content)
        for path, value in stored.items():
            if isinstance(value, torch.Tensor):
                self._tensors[path] = value
                stored[path] = TensorSpec(tuple(value.shape), value.dtype)
        return stored

    def plan(self, entries: Entries) -> Callable[[], None]:
        """Return what sends each rank its boxes; that is collective."""
        return lambda: scatter(self._tensors, entries)


def _read(file: FilePath) -> Any:
    """Read what `torch.save` wrote, without running code.

    Raises:
        LoadError: It is damaged, or would run something.
    """
    try:
        return torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, UnpicklingError, EOFError, OSError) as error:
        raise LoadError(f"{file} can't be read: {type(error).__name__}: {error}") from error


def _refuse_other_kind(name: str, file: FilePath, content: object) -> None:
    if not isinstance(content, dict):
        raise LoadError(f"{file} holds a {type(content).__name__}, not a state dict")
    found = "optimizer" if content.keys() >= {"state", "param_groups"} else "model"
    if found != name:
        raise LoadError(f"{file} holds the state of a {found}, but that of a {name} is wanted")


def _refuse_overwritten(file: FilePath, content: dict[Any, Any]) -> None:
    """Refuse an optimizer's state of which a part was lost when it was gathered.

    FSDP1 with original parameters on CPUs gathers all states of a unit into one buffer, so the last
    one overwrites the others (torch 2.4 to 2.13).
    """
    states = content.get("state", {})
    for name, state in states.items() if isinstance(states, dict) else ():
        first, second = state.get("exp_avg"), state.get("exp_avg_sq")
        if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
            few = slice(0, 1000)  # which nearly always tells
            same = all(
                torch.equal(first.reshape(-1)[some], second.reshape(-1)[some])
                for some in (few, slice(None))
            )
            if same and first.numel() > 1 and bool(first.count_nonzero()):
                raise LoadError(
                    f"{file}: exp_avg and exp_avg_sq of {name} are the same: torch's gathering on "
                    "CPUs has overwritten one with the other, and what it held is lost"
                )


def _write(files: Mapping[str, FilePath], everything: dict[Path, object]) -> None:
    content: dict[str, Any] = {name: {} for name in files}
    for file in files.values():
        file.parent.mkdir(exist_ok=True)
    for (name, *outer, last), value in everything.items():
        target = content[str(name)]
        for step in outer:
            target = target.setdefault(step, {})
        target[last] = value
    if "optimizer" in content:
        content["optimizer"].setdefault("state", {})
        groups = content["optimizer"]["param_groups"]
        content["optimizer"]["param_groups"] = [groups[index] for index in sorted(groups)]
    for name, file in files.items():
        with file.open("wb") as stream:
            torch.save(content[name], stream)
            stream.flush()
            os.fsync(stream.fileno())


def flatten(content: Any, path: Path) -> dict[Path, object]:
    """Undo the nesting; of lists, only the parameter groups are nested."""
    steps: Iterable[tuple[Any, Any]]
    if isinstance(content, dict):
        steps = content.items()
    elif path == GROUPS:
        steps = enumerate(content)
    else:
        return {path: content}
    flat: dict[Path, object] = {}
    for step, value in steps:
        flat |= flatten(value, (*path, step))
    return flat
