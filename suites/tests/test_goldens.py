"""The frozen checkpoints are all there, and a change to one is named before it is read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from shardproof_suites import goldens as module
from shardproof_suites.goldens import GOLDEN_ROOT, Golden, GoldenError, goldens, verify

LOCAL = "accelerate-1.11.0+torch2.9.1/fsdp1-local-flat/tied-float32-ws2"
ALL = goldens()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Copy two goldens, and the sums of these two."""
    root = tmp_path / "golden"
    sums = (GOLDEN_ROOT / "SHA256SUMS").read_text().splitlines(keepends=True)
    ids = [LOCAL, "torch-2.13.0+torch2.13.0/dcp-fsdp2/uneven-float32-ws2"]
    for golden_id in ids:
        shutil.copytree(GOLDEN_ROOT / golden_id, root / golden_id)
    kept = [line for line in sums if any(golden_id in line for golden_id in ids)]
    (root / "SHA256SUMS").write_text("".join(kept))
    return root


@pytest.fixture
def local(root: Path) -> Golden:
    return goldens(root)[0]


def test_all_are_there() -> None:
    assert len(ALL) == 68
    assert sum(len(golden.files) for golden in ALL) == 245
    assert sum(bool(golden.known_problems) for golden in ALL) == 13
    assert [golden.id for golden in ALL] == sorted(golden.id for golden in ALL)


def test_the_readme_lists_them() -> None:
    text = (GOLDEN_ROOT / "README.md").read_text()
    codes = {("uneven", "float32"): "u", ("uneven", "bfloat16"): "b", ("tied", "float32"): "t"}
    for golden in ALL:
        producer, layout = golden.id.split("/")[:2]
        row = next(line for line in text.splitlines() if line.startswith(f"| {producer} |"))
        code = f"{codes[golden.model, golden.dtype]}{golden.world_size}"
        cell = re.search(rf"[ ;]{re.escape(layout)}: ([^;|]+)", row)
        assert cell is not None
        assert f"{code}{'*' if golden.known_problems else ''}" in cell.group(1).split()


@pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.id)
def test_every_golden_is_as_frozen(golden: Golden) -> None:
    verify(golden)


def test_fields_come_from_the_manifest(local: Golden) -> None:
    assert (local.id, local.producer, local.versions["torch"]) == (LOCAL, "accelerate", "2.9.1")
    assert (local.model, local.dtype, local.buffer_dtype) == ("tied", "float32", None)
    assert (local.seed, local.world_size, local.fsdp_version) == (0, 2, 1)
    assert (local.strategy, local.use_orig_params) == ("FULL_SHARD", False)
    assert local.optimizer is not None
    assert local.optimizer["step"] == 3
    assert local.known_problems[0].where == "loader"
    assert local.manifest["case"]["state_dict_type"] == "LOCAL_STATE_DICT"


def flip_a_byte(path: Path) -> str:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return r"found SHA-256 [0-9a-f]{64}, wanted [0-9a-f]{64}"


def append_a_byte(path: Path) -> str:
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0")
    return f"found {size + 1} bytes, wanted {size}"


def remove(path: Path) -> str:
    path.unlink()
    return "found none, wanted it"


def make_a_link(path: Path) -> str:
    moved = path.rename(path.parents[4] / "elsewhere")
    path.symlink_to(moved)
    return "found a link, wanted a file"


@pytest.mark.parametrize("change", [flip_a_byte, append_a_byte, remove, make_a_link])
@pytest.mark.parametrize("name", ["optimizer_0/.metadata", "pytorch_model_fsdp_rank1.bin"])
def test_a_changed_file_is_named(local: Golden, name: str, change: Callable[[Path], str]) -> None:
    message = change(local.path / name)
    with pytest.raises(GoldenError, match=f"{re.escape(name)}: {message}") as error:
        verify(local)
    assert len(str(error.value).splitlines()) == 2
    assert LOCAL in str(error.value)


@pytest.mark.parametrize("name", ["extra.bin", "optimizer_0/.hidden", "new/file"])
def test_an_extra_file_is_named(local: Golden, name: str) -> None:
    path = local.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(GoldenError, match=f"{re.escape(name)}: found a file, wanted none"):
        verify(local)


def test_a_manifest_changed_after_listing_is_named(local: Golden) -> None:
    flip_a_byte(local.path / "manifest.json")
    with pytest.raises(GoldenError, match=r"manifest\.json: found SHA-256"):
        verify(local)


def test_a_changed_manifest_is_not_parsed(root: Path) -> None:
    (root / LOCAL / "manifest.json").write_text("{")
    with pytest.raises(GoldenError, match=r"manifest\.json: found SHA-256"):
        goldens(root)


def test_a_missing_golden_is_an_error(root: Path) -> None:
    shutil.rmtree(root / LOCAL)
    with pytest.raises(GoldenError, match=f"golden {re.escape(LOCAL)}: .*found none, wanted it"):
        goldens(root)


def test_an_unlisted_golden_is_an_error(root: Path) -> None:
    shutil.copytree(root / LOCAL, root / "accelerate-9.0.0+torch2.9.1/fsdp3/tied-float32-ws2")
    with pytest.raises(GoldenError, match="SHA256SUMS doesn't list its folder"):
        goldens(root)


def test_no_golden_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match="wanted the list of goldens"):
        goldens(tmp_path)
    (tmp_path / "SHA256SUMS").write_text("")
    with pytest.raises(GoldenError, match="lists no golden"):
        goldens(tmp_path)


@pytest.mark.parametrize("name", ["../outside/manifest.json", "/etc/manifest.json", ""])
def test_paths_stay_inside(tmp_path: Path, name: str) -> None:
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    with pytest.raises(GoldenError, match="wanted one inside the folder"):
        goldens(tmp_path)


def test_the_data_lies_beside_the_module() -> None:
    assert Path(module.__file__).parent / "golden" == GOLDEN_ROOT
