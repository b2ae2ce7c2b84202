"""Checkpoints that real releases wrote load where they fit, at any world size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from shardproof import World
from shardproof_reference import (
    AppState,
    DCPCheckpointLoading,
    FSDP1CheckpointLoading,
    FullyShardedDataParallelPlugin,
    LoadError,
    MixedPrecisionSettings,
    load_checkpoint,
    load_fsdp_model,
    load_fsdp_optimizer,
)
from shardproof_suites.goldens import GOLDEN_ROOT
from shardproof_suites.live import (
    buffer_shards,
    live_parameters,
    optimizer_numbers,
    optimizer_shards,
    parameter_shards,
)
from shardproof_suites.models import ZOO, unit_classes
from shardproof_suites.oracle import Oracle, Recipe, check
from torch import nn
from torch.distributed.fsdp import ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim.lr_scheduler import StepLR

GOLDENS = sorted(path.parent for path in GOLDEN_ROOT.glob("*/*/*/manifest.json"))
ORACLE = Oracle(recipe=Recipe.ONE)
# Parts of the names of layouts that are refused, and what is said; safetensors have no optimizer.
REFUSED = {"-local-": "LOCAL_STATE_DICT is not supported", "-perrank": r"no \.metadata; not a"}
SAFETENSORS = "hf-"


Found = tuple[nn.Module, torch.optim.Optimizer]


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1.0)


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


def unwrapped(folder: Path) -> nn.Module:
    of = manifest(folder)
    return ZOO[of["model"]].build(getattr(torch, of["dtype"]))


def plugin(folder: Path, version: int) -> FullyShardedDataParallelPlugin:
    kind = "FULL_STATE_DICT" if "-full" in folder.parent.name else "SHARDED_STATE_DICT"
    policy = ModuleWrapPolicy(set(unit_classes(unwrapped(folder))))
    return FullyShardedDataParallelPlugin(
        fsdp_version=version, auto_wrap_policy=policy, state_dict_type=kind
    )


def through_rank_0(folder: Path, rank: int) -> Found:
    """Load two files with Modalities' class, which wraps the model itself."""
    model_file, optimizer_file = (
        next(path for path in folder.rglob("*.bin") if f"-{kind}-" in path.name)
        for kind in ("model", "optimizer")
    )
    bare = unwrapped(folder)
    names = [kind.__name__ for kind in unit_classes(bare)]
    none = MixedPrecisionSettings.NO_MIXED_PRECISION
    loading = FSDP1CheckpointLoading(rank, names, none, ShardingStrategy.FULL_SHARD)
    model = loading.load_model_checkpoint(bare, model_file)
    optimizer = adamw(model.parameters())
    loading.load_optimizer_checkpoint_(optimizer, model, optimizer_file)
    return model, optimizer


def load_golden(folder: Path, version: int, rank: int) -> Found:
    """Load as the layout's name says."""
    layout = folder.parent.name
    if "-bin-" in layout:
        return through_rank_0(folder, rank)
    model = plugin(folder, version).wrap(unwrapped(folder))
    optimizer = adamw(model.parameters())
    if folder.parents[1].name.startswith("torch"):
        load_checkpoint(folder, model, optimizer, StateDictType.SHARDED_STATE_DICT)
    elif layout.startswith("dcp"):
        scheduler = StepLR(optimizer, 10, 0.5)
        (inside,) = (path for path in folder.rglob("*seen_steps*") if path.is_dir())
        state = AppState(model, optimizer, scheduler)
        DCPCheckpointLoading(rank).load_checkpoint_(state, inside)
        wanted = manifest(folder)["scheduler"]["state_dict"]
        assert {name: scheduler.state_dict()[name] for name in wanted} == wanted
    else:
        load_fsdp_model(plugin(folder, version), None, model, folder)
        load_fsdp_optimizer(plugin(folder, version), None, optimizer, model, folder)
    return model, optimizer


def wrong(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Say what isn't of the closed form on this rank."""
    parameters = live_parameters((model,))
    shards = [
        *parameter_shards(parameters),
        *buffer_shards((model,)),
        *optimizer_shards((optimizer,), parameters),
    ]
    assert {shard.role for shard in shards} >= {"param", "exp_avg", "exp_avg_sq"}
    found = [str(one) for shard in shards if (one := check(shard, ORACLE))]
    found += [str(one) for one in optimizer_numbers((optimizer,), parameters) if one.get() != 3]
    group = optimizer.param_groups[0]
    assert (group["lr"], tuple(group["betas"]), group["weight_decay"]) == (1e-3, (0.9, 0.95), 0.1)
    return found


def _cases() -> Iterator[Any]:
    for folder in GOLDENS:
        if any(part in folder.parent.name for part in (*REFUSED, SAFETENSORS)):
            continue
        for version in (1,) if "-bin-" in folder.parent.name else (1, 2):
            name = folder.relative_to(GOLDEN_ROOT)
            yield pytest.param(folder, version, id=f"{name}-fsdp{version}")


def test_there_are_goldens() -> None:
    assert len(GOLDENS) == 68


@pytest.mark.parametrize(
    "world_size", [pytest.param(size, marks=pytest.mark.ranks(size)) for size in (1, 2, 3, 4)]
)
@pytest.mark.parametrize(("folder", "version"), [*_cases()])
def test_a_golden_holds_the_closed_form(
    folder: Path, version: int, world_size: int, world: World
) -> None:
    if folder.parent.name.endswith("unpatched"):
        with pytest.raises(LoadError, match=r"exp_avg and exp_avg_sq of .* are the same"):
            load_golden(folder, version, world.rank)
    else:
        assert wrong(*load_golden(folder, version, world.rank)) == []


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("part", "words"), REFUSED.items())
def test_what_cannot_be_loaded_is_refused(part: str, words: str) -> None:
    folders = [folder for folder in GOLDENS if part in folder.parent.name]
    assert len(folders) == {"-local-": 3, "-perrank": 2}[part]
    for folder in folders:
        by = plugin(folder, 1)
        model = by.wrap(unwrapped(folder))
        if part == "-local-":
            by.set_state_dict_type("LOCAL_STATE_DICT")
        with pytest.raises(LoadError, match=words):
            load_fsdp_model(by, None, model, folder)
