"""Files and folders that appear whole or not at all, and deletions that leave no half of them."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

from shardproof_reference.checkpointing._collective import agree, on_rank_0
from shardproof_reference.errors import SaveError


def publish(targets: Sequence[Path], write: Callable[[list[Path]], None]) -> None:
    """Write under temporary names, sync, and rename when all is complete; collective.

    Where a part of the targets exists, that is what a killed save has left, and is replaced.

    Args:
        targets: Files or folders of one parent, seen by all ranks; not all of them exist.
        write: Writes to the paths that it is given; may be collective.

    Raises:
        SaveError: On every rank; nothing is left behind.
    """
    building = on_rank_0(lambda: _begin(targets), SaveError)
    try:
        agree(lambda: write(building), SaveError)
        on_rank_0(lambda: _finish(building, targets), SaveError)
    except SaveError:
        if dist.get_rank() == 0:
            for path in building:
                _remove(path)
        raise


def replace_json(path: Path, content: Mapping[str, str]) -> None:
    """Replace a JSON file in one step; not collective."""
    new = _temporary(path)
    with new.open("w", encoding="utf-8") as stream:
        json.dump(content, stream)
    _sync(new)
    new.replace(path)
    _sync(path.parent)


def delete(path: Path) -> None:
    """Delete a file or folder, which is gone under its name before any of it is; not collective."""
    gone = _temporary(path)
    path.rename(gone)
    _sync(path.parent)
    _remove(gone)


def _begin(targets: Sequence[Path]) -> list[Path]:
    if all(target.exists() for target in targets):
        raise SaveError(f"{targets[0]} exists; choose another name or delete it first")
    targets[0].parent.mkdir(parents=True, exist_ok=True)
    _remove_left_behind(targets[0].parent)
    return [_temporary(target) for target in targets]


def _finish(building: Sequence[Path], targets: Sequence[Path]) -> None:
    for path in building:
        _sync(path)
    for path, target in zip(building, targets, strict=True):
        path.replace(target)
    _sync(targets[0].parent)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}{_mark()}{os.getpid()}")


def _mark() -> str:
    return f".shardproof-{socket.gethostname()}-"


def _remove_left_behind(folder: Path) -> None:
    """Remove what processes of this host that are no more have not finished."""
    for path in folder.iterdir():
        _, mark, process = path.name.rpartition(_mark())
        if mark and process.isdecimal() and not _lives(int(process)):
            _remove(path)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def _sync(path: Path) -> None:
    """Make a file's content, or a folder's names, survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
