"""Who has written a file, and how much of a model is in it."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from shardproof_suites.checks._authors import UNKNOWN, author, files_by_author, signed
from shardproof_suites.checks._share import share_violations
from shardproof_suites.oracle import Entry, Kind, Oracle, expected

ORACLE = Oracle(kind=Kind.BITS)
CATALOGUE = (
    Entry("a.weight", "param", (7, 5), torch.bfloat16),
    Entry("a.bias", "param", (7,), torch.bfloat16),
    Entry("scale", "buffer", (3,), torch.float32),
)


@pytest.mark.parametrize("rank", range(UNKNOWN))
def test_a_files_mode_tells_its_author(rank: int, tmp_path: Path) -> None:
    with signed(rank):
        (tmp_path / "python").write_bytes(b"1")
        torch.save({}, tmp_path / "torch")
        subprocess.run(["touch", tmp_path / "child"], check=True)
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "renamed").write_bytes(b"1")
    (tmp_path / "folder" / "renamed").rename(tmp_path / "folder" / "final")
    found = files_by_author(tmp_path, UNKNOWN)
    assert {file.name for file in found.pop(rank)} == {"python", "torch", "child", "final"}
    assert found == {}


def test_a_mode_that_no_rank_signs_with_has_no_author(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "file").chmod(0o644)  # what rank 10 would sign with
    assert files_by_author(tmp_path, 4) == {UNKNOWN: [tmp_path / "file"]}


def test_a_temporary_file_has_no_author(tmp_path: Path) -> None:
    with signed(3), tempfile.NamedTemporaryFile(dir=tmp_path) as stream:
        assert author(Path(stream.name)) == UNKNOWN


def test_ranks_that_dont_fit_in_a_mode_have_no_author(tmp_path: Path) -> None:
    with signed(100):
        (tmp_path / "file").write_bytes(b"1")
    assert author(tmp_path / "file") == UNKNOWN


def test_the_umask_is_put_back() -> None:
    before = os.umask(0o022)
    try:
        with pytest.raises(ValueError, match="lost"), signed(5):
            raise ValueError("lost")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def _rows(first: int, last: int) -> bytes:
    entry = CATALOGUE[0]
    whole = expected(
        entry.fqn,
        entry.role,
        entry.dtype,
        start=0,
        count=math.prod(entry.shape),
        oracle=ORACLE,
    )
    return whole.view(7, 5)[first:last].view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("rows", "shards", "too_much"),
    [((0, 2), 4, False), ((0, 3), 4, True), ((0, 7), 1, False), ((0, 4), 2, False)],
)
def test_more_rows_than_a_share_are_found(
    rows: tuple[int, int], shards: int, too_much: bool, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"header" + _rows(*rows) + b"footer")
    found = list(share_violations("rank 0", [file], CATALOGUE, shards, ORACLE))
    assert bool(found) == too_much


def test_a_row_in_two_files_counts_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(_rows(0, 2))
    files = [tmp_path / "a", tmp_path / "b"]
    assert list(share_violations("rank 0", files, CATALOGUE, 4, ORACLE)) == []


def test_rows_of_several_files_add_up(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(_rows(0, 2))
    (tmp_path / "b").write_bytes(_rows(5, 7))
    files = [tmp_path / "a", tmp_path / "b"]
    (violation,) = share_violations("rank 0", files, CATALOGUE, 4, ORACLE)
    assert violation.details == (
        "wanted at most 24 of 84 bytes, a share of 1/4 rounded up to rows",
        "found 40 bytes of whole rows of the model",
    )
