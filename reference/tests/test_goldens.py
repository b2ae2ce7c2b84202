"""Checkpoints that real releases wrote load where they fit, at any world size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from shardproof import Launch
from shardproof_reference import load_checkpoint
from shardproof_suites import _preload  # noqa: F401
from shardproof_suites.cell import Cell, Dtype, Strategy, default_mesh
from shardproof_suites.cell import StateDictType as Type
from shardproof_suites.goldens import GOLDEN_ROOT
from shardproof_suites.implementations.reference import Reference
from shardproof_suites.live import (
    buffer_shards,
    live_parameters,
    optimizer_numbers,
    optimizer_shards,
    parameter_shards,
)
from shardproof_suites.models import ZOO
from shardproof_suites.oracle import Oracle, Recipe, check
from torch.distributed.fsdp import StateDictType

GOLDENS = [
    "torch-2.13.0+torch2.13.0/dcp-fsdp2/uneven-float32-ws2",
    "torch-2.13.0+torch2.13.0/dcp-fsdp1-orig/tied-float32-ws4",
    "torch-2.9.1+torch2.9.1/dcp-fsdp2/tied-float32-ws4",
    "accelerate-1.15.0+torch2.13.0/fsdp1-full-flat/uneven-float32-ws4",
    "accelerate-1.15.0+torch2.13.0/fsdp1-full-orig/tied-float32-ws2",
    "accelerate-1.15.0+torch2.13.0/fsdp2-full/uneven-float32-ws4",
]
ORACLE = Oracle(recipe=Recipe.ONE)


def _wrong(folder: Path, strategy: Strategy, world_size: int) -> list[str]:
    model_name = folder.name.partition("-")[0]
    original = None if strategy.fsdp_version == 2 else False
    mesh = default_mesh(strategy, world_size)
    cell = Cell(strategy, Dtype.FLOAT32, Type.FULL, world_size, original, mesh)
    state = Reference(cell).prepare(
        ZOO[model_name].build(torch.float32),
        lambda named: torch.optim.AdamW([parameter for _, parameter in named], lr=1.0),
    )
    full = (folder / "optimizer.bin").exists()
    kind = StateDictType.FULL_STATE_DICT if full else StateDictType.SHARDED_STATE_DICT
    load_checkpoint(folder, state.modules[0], state.optimizers[0], kind)
    parameters = live_parameters(state.modules)
    shards = [
        *parameter_shards(parameters),
        *buffer_shards(state.modules),
        *optimizer_shards(state.optimizers, parameters),
    ]
    assert {shard.role for shard in shards} >= {"param", "exp_avg", "exp_avg_sq"}
    wrong = [str(found) for shard in shards if (found := check(shard, ORACLE))]
    wrong += [str(one) for one in optimizer_numbers(state.optimizers, parameters) if one.get() != 3]
    group = state.optimizers[0].param_groups[0]
    assert (group["lr"], tuple(group["betas"]), group["weight_decay"]) == (1e-3, (0.9, 0.95), 0.1)
    return wrong


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("strategy", [Strategy.FULL_SHARD, Strategy.FULLY_SHARD])
@pytest.mark.parametrize("golden", GOLDENS)
def test_a_golden_holds_the_closed_form(
    golden: str, strategy: Strategy, world_size: int, launch: Launch
) -> None:
    folder = GOLDEN_ROOT / golden
    found = launch(_wrong, folder, strategy, world_size, world_size=world_size)
    assert found == [[]] * world_size
