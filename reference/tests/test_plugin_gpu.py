"""What the plugin does on GPUs alone; each test is skipped with the reason where there are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shardproof import World
from shardproof_reference import FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, FullyShardedDataParallel

from ._plugin_models import BLOCKS, TOKENS, Model, everything, seeded, units

pytestmark = pytest.mark.ranks(2, backend="nccl")
VERSIONS = pytest.mark.parametrize("version", [1, 2])


def wrap(model: nn.Module, **settings: Any) -> nn.Module:
    return FullyShardedDataParallelPlugin(**BLOCKS, **settings).wrap(model)


def step(model: nn.Module, world: World) -> torch.Tensor:
    result: torch.Tensor = model(TOKENS.to(world.device)).float().sum()
    result.backward()
    return result


@VERSIONS
def test_shards_live_on_the_ranks_own_gpu(world: World, version: int) -> None:
    model = wrap(Model(), fsdp_version=version)
    step(model, world)
    assert {unit["device"] for unit in units(model).values()} == {str(world.device)}
    assert {buffer.device for buffer in model.buffers()} == {world.device}


@VERSIONS
def test_offloaded_shards_live_in_pinned_cpu_memory(world: World, version: int) -> None:
    model = wrap(Model(), fsdp_version=version, cpu_offload=True)
    step(model, world)
    assert {unit["device"] for unit in units(model).values()} == {"cpu"}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            policy = module._get_fsdp_state()._fsdp_param_group.offload_policy  # type: ignore[attr-defined]
            assert isinstance(policy, CPUOffloadPolicy)
            assert policy.pin_memory
        elif isinstance(module, FullyShardedDataParallel):
            assert module.cpu_offload.offload_params


@VERSIONS
@pytest.mark.parametrize("meta", [False, True])
def test_ranks_get_what_rank_0_had_in_cpu_memory(world: World, version: int, meta: bool) -> None:
    with torch.device("meta" if meta and world.rank else "cpu"):
        model = seeded(world.rank)
    wrapped = wrap(
        model, fsdp_version=version, sync_module_states=True, cpu_ram_efficient_loading=meta
    )
    expected = [*seeded(0).parameters(), *seeded(0).buffers()]
    found = everything(wrapped, version)
    assert sum(one.numel() for one in found) >= sum(one.numel() for one in expected)
    buffers = zip(wrapped.buffers(), seeded(0).buffers(), strict=True)
    assert all(torch.equal(mine.cpu(), theirs) for mine, theirs in buffers)
    assert torch.allclose(step(wrapped, world).cpu(), seeded(0)(TOKENS).sum(), rtol=1e-4)


def test_checkpointed_inputs_are_offloaded(world: World) -> None:
    plain = wrap(seeded(0), fsdp_version=2)
    model = wrap(
        seeded(0),
        fsdp_version=2,
        activation_checkpointing=True,
        activation_checkpointing_offload=True,
    )
    assert [type(block).__name__ for block in model.blocks] == ["FSDPOffloadWrapper"] * 2  # type: ignore[union-attr]
    assert torch.equal(step(model, world), step(plain, world))
    assert list(model.state_dict()) == list(plain.state_dict())
