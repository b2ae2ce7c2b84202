"""Which rank has written which file, and what of the model is in it.

Each rank saves under a umask of its own, so the mode of a file tells who created it, whatever
wrote it: Python, C++, Rust, or a child process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# One bit of a rank's number each: group and others may read and write, or not.
_BITS = (0o040, 0o020, 0o004, 0o002)
# All bits off is also what tempfile makes, so this number says nothing.
UNKNOWN = 2 ** len(_BITS) - 1


@contextmanager
def signed(rank: int) -> Iterator[None]:
    """Create files so that `author` finds the rank; ranks from 15 on are `UNKNOWN`."""
    number = min(rank, UNKNOWN)
    before = os.umask(sum(bit for place, bit in enumerate(_BITS) if number >> place & 1))
    try:
        yield
    finally:
        os.umask(before)


def author(file: Path) -> int:
    """Tell which rank created a file, or `UNKNOWN`."""
    mode = stat.S_IMODE(file.stat().st_mode)
    return sum(1 << place for place, bit in enumerate(_BITS) if not mode & bit)


def files_by_author(folder: Path, world_size: int) -> dict[int, list[Path]]:
    """List the files below a folder by the rank that created them, or under `UNKNOWN`.

    A mode that no rank signs with was given by hand, and says nothing.
    """
    found: dict[int, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            rank = author(file)
            found.setdefault(rank if rank < world_size else UNKNOWN, []).append(file)
    return found
