"""Files and folders that appear whole or not at all, and deletions that leave no half of them."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from shardproof_reference.checkpointing._collective import agree, on_rank_0
from shardproof_reference.errors import SaveError


def publish(
    targets: Sequence[Path],
    write: Callable[[list[Path]], None],
    keep: Callable[[Path], bool] = lambda target: True,
) -> None:
    """Write under temporary names, sync, and rename when all is complete; collective.

    Args:
        targets: Files or folders of one parent, seen by all ranks.
        write: Writes to the paths that it is given; may be collective.
        keep: Says of a target that exists whether it must not be replaced; asked on rank 0.

    Raises:
        SaveError: On every rank; nothing is left behind.
    """
    building, chosen = on_rank_0(lambda: (_begin(targets, keep), [*targets]), SaveError)
    try:
        agree(lambda: _refuse_others(targets, chosen), SaveError)
        agree(lambda: write(building), SaveError)
        on_rank_0(lambda: _finish(building, targets), SaveError)
    except SaveError:
        with suppress(SaveError):  # the first one tells
            on_rank_0(lambda: _remove_all(building), SaveError)
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
    gone = _temporary(path, ".deleted")
    path.rename(gone)
    _sync(path.parent)
    _remove(gone)


def _refuse_others(targets: Sequence[Path], chosen: Sequence[Path]) -> None:
    """Refuse on a rank what isn't rank 0's, before they wait for each other's parts of it."""
    if [*targets] != [*chosen]:
        raise SaveError(f"this rank is to save {targets[0]}, but rank 0 {chosen[0]}")


def _begin(targets: Sequence[Path], keep: Callable[[Path], bool]) -> list[Path]:
    if kept := next((target for target in targets if target.exists() and keep(target)), None):
        raise SaveError(f"{kept} exists; choose another name or delete it first")
    targets[0].parent.mkdir(parents=True, exist_ok=True)
    _remove_left_behind(targets[0].parent)
    return [_temporary(target) for target in targets]


def _finish(building: Sequence[Path], targets: Sequence[Path]) -> None:
    for path in building:
        _sync(path)
    for path, target in zip(building, targets, strict=True):
        if target.is_dir():
            delete(target)
        path.replace(target)
    _sync(targets[0].parent)


def _temporary(path: Path, why: str = "") -> Path:
    return path.with_name(f".{path.name}{why}{_mark()}{os.getpid()}")


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


def _remove_all(paths: Sequence[Path]) -> None:
    for path in paths:
        _remove(path)


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
