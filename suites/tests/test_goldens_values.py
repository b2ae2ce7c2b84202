"""What real releases wrote is what recipe 1 says, so the oracle reads old files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from shardproof_suites.goldens import Golden, goldens, verify
from shardproof_suites.oracle import (
    Entry,
    LocalShard,
    Oracle,
    OriginKind,
    Recipe,
    check,
    step_value,
)

ALL = goldens()
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "uneven": {
        "proj.weight": (5, 7)[::-1],
        "proj.bias": (7,),
        **{f"blocks.{block}.lin.weight": (7, 7) for block in (0, 1)},
        **{f"blocks.{block}.lin.bias": (7,) for block in (0, 1)},
        **{f"blocks.{block}.norm.weight": (7,) for block in (0, 1)},
        **{f"blocks.{block}.norm.bias": (7,) for block in (0, 1)},
        **{f"blocks.{block}.scale": (3,) for block in (0, 1)},
        "head.weight": (3, 7),
        "head.bias": (3,),
    },
    "tied": {
        "embed.weight": (11, 6),
        "blocks.0.lin.weight": (6, 6),
        "blocks.0.lin.bias": (6,),
        "blocks.0.norm.weight": (6,),
        "blocks.0.norm.bias": (6,),
        "lm_head.weight": (11, 6),
    },
}


def with_file(pattern: str) -> list[Any]:
    """List every golden file of a kind, ready to be read."""
    return [
        pytest.param(golden, golden.path / file.path, id=f"{golden.id}/{file.path}")
        for golden in ALL
        for file in golden.files
        if Path(file.path).match(pattern) and "_rank" not in file.path
    ]


def oracle_of(golden: Golden) -> Oracle:
    return Oracle(seed=golden.seed, recipe=Recipe.ONE)


def shard_of(
    golden: Golden, name: str, role: str, tensor: torch.Tensor, offset: tuple[int, ...] | None
) -> LocalShard:
    """Describe one tensor of a file; a whole one where there is no offset."""
    shape = SHAPES[golden.model][name]
    fqn = "embed.weight" if name == "lm_head.weight" else name
    dtype = golden.buffer_dtype if role == "buffer" else golden.dtype
    assert dtype is not None
    return LocalShard(
        fqn,
        role,
        tensor,
        shape,
        tuple(0 for _ in shape) if offset is None else offset,
        dtype=getattr(torch, dtype),
        size=shape if offset is None else None,
    )


def role_of(name: str) -> str:
    return "buffer" if name.endswith(".scale") else "param"


def differences(golden: Golden, tensors: dict[str, torch.Tensor]) -> Iterator[str]:
    for name, tensor in tensors.items():
        found = check(shard_of(golden, name, role_of(name), tensor, None), oracle_of(golden))
        if found is not None:
            yield str(found)


MODELS = [*with_file("*_fsdp.bin"), *with_file("pytorch_model.bin"), *with_file("*-model-*.bin")]
OPTIMIZERS = [*with_file("optimizer.bin"), *with_file("*-optimizer-*.bin")]


@pytest.mark.parametrize(("golden", "path"), MODELS)
def test_model_files(golden: Golden, path: Path) -> None:
    verify(golden)
    model = torch.load(path, weights_only=True)
    assert model.keys() == SHAPES[golden.model].keys()
    assert list(differences(golden, model)) == []


def catalogue(golden: Golden) -> tuple[Entry, ...]:
    dtype = getattr(torch, golden.dtype)
    return tuple(
        Entry(name, role, shape, dtype)
        for name, shape in SHAPES[golden.model].items()
        for role in ("param", "exp_avg", "exp_avg_sq")
        if name != "lm_head.weight"
    )


@pytest.mark.parametrize(("golden", "path"), OPTIMIZERS)
def test_optimizer_files(golden: Golden, path: Path) -> None:
    verify(golden)
    # The known problem of these files; found from the values alone.
    overwritten = "file" in {problem.where for problem in golden.known_problems}
    for name, state in torch.load(path, weights_only=True)["state"].items():
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert state["step"].item() == step_value(name, oracle_of(golden))
        for role in ("exp_avg", "exp_avg_sq"):
            shard = shard_of(golden, name, role, state[role], None)
            found = check(shard, oracle_of(golden), catalogue=catalogue(golden))
            if not overwritten or role == "exp_avg_sq":
                assert found is None, str(found)
                continue
            assert found is not None
            assert found.origin is not None
            assert found.origin.kind is OriginKind.OTHER_TENSOR
            start = ",".join("0" for _ in shard.global_shape)
            assert found.origin.text == f"holds exp_avg_sq of {name}[{start}]"


MERGED = [*with_file("model.safetensors"), *with_file("model-00001-of-00001.safetensors")]


@pytest.mark.parametrize(("golden", "path"), MERGED)
def test_merged_safetensors(golden: Golden, path: Path) -> None:
    verify(golden)
    model = load_file(path)
    # The merge keeps one name of a tied tensor.
    assert SHAPES[golden.model].keys() - model.keys() <= {"lm_head.weight", "embed.weight"}
    assert list(differences(golden, model)) == []


def pieces(path: Path) -> Iterator[tuple[str, tuple[int, ...], torch.Tensor]]:
    """Read a sharded safetensors file: name, offset, piece."""
    with safe_open(path, "pt") as file:
        places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, tuple(places[name]["saved_offsets"]), file.get_tensor(name)


@pytest.mark.parametrize(
    "golden",
    [golden for golden in ALL if golden.layout in ("hf-sharded-fsdp2", "hf-rank0-fsdp2")],
    ids=lambda golden: golden.id,
)
def test_sharded_safetensors(golden: Golden) -> None:
    verify(golden)
    counts = dict.fromkeys(SHAPES[golden.model], 0)
    for file in golden.files:
        if not file.path.endswith(".safetensors"):
            continue
        for name, offset, tensor in pieces(golden.path / file.path):
            shard = shard_of(golden, name, role_of(name), tensor, offset)
            found = check(shard, oracle_of(golden))
            assert found is None, str(found)
            counts[name] += tensor.numel()
    wanted = {name: torch.Size(shape).numel() for name, shape in SHAPES[golden.model].items()}
    assert counts == wanted


def test_there_is_something_to_read() -> None:
    dtypes = {parameter.values[0].dtype for parameter in (*MODELS, *OPTIMIZERS)}
    assert dtypes == {"float32", "bfloat16"}
    assert (len(MODELS), len(OPTIMIZERS), len(MERGED)) == (46, 39, 8)
