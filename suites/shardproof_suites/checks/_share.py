"""How much of a model one rank has written.

The files are searched for the rows that the closed form predicts, so no format has to be known:
rows of tensors of two or more dimensions stand as they are in every uncompressed format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from shardproof_suites.oracle import Entry, Oracle, expected
from shardproof_suites.violation import Code, Violation


def share_violations(
    name: str, files: Iterable[Path], catalogue: Iterable[Entry], shards: int, oracle: Oracle
) -> Iterator[Violation]:
    """Find out whether one writer has written more than one rank's share.

    A rank's share is at most its rows of every tensor, rounded up, as torch cuts DTensors; what
    FSDP1's flat parameters give one rank is never more.

    Args:
        name: Who wrote the files.
        files: Everything that it wrote.
        catalogue: The model's tensors.
        shards: Over how many ranks each tensor is cut.
        oracle: What the values are made from.
    """
    content = [file.read_bytes() for file in files]
    cut = [entry for entry in catalogue if entry.role != "buffer"]
    allowed = sum(_row_size(entry) * -(-_rows(entry) // shards) for entry in cut)
    total = sum(_row_size(entry) * _rows(entry) for entry in cut)
    found = sum(_row_size(entry) * _count(entry, content, oracle) for entry in cut)
    if found > allowed:
        details = (
            f"wanted at most {allowed} of {total} bytes, a share of 1/{shards} rounded up to rows",
            f"found {found} bytes of whole rows of the model",
        )
        yield Violation("saving.1", Code.WROTE_TOO_MUCH, f"what {name} wrote", details)


def _rows(entry: Entry) -> int:
    return entry.shape[0] if entry.shape else 1


def _row_size(entry: Entry) -> int:
    return math.prod(entry.shape[1:]) * entry.dtype.itemsize


def _count(entry: Entry, content: list[bytes], oracle: Oracle) -> int:
    """Count the rows that some file holds; rows of one element would be found anywhere."""
    if len(entry.shape) < 2:
        return 0
    numel, size = math.prod(entry.shape), _row_size(entry)
    whole = expected(entry.fqn, entry.role, entry.dtype, start=0, count=numel, oracle=oracle)
    values = whole.view(torch.uint8).numpy().tobytes()
    rows = (values[start : start + size] for start in range(0, len(values), size))
    return sum(any(row in one for one in content) for row in rows)
