"""Tensors are placed, synchronized and kept tied by the plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from shardproof import World
from torch import nn

from ._plugin_models import (
    VERSIONS,
    WIDTH,
    Model,
    blocks,
    everything,
    loss,
    seeded,
    units,
    wrap,
)


@pytest.mark.ranks(3)
@VERSIONS
@pytest.mark.parametrize("ignored", [None, r"blocks\.0"])
@pytest.mark.parametrize("meta", [False, True])
def test_synchronized_ranks_hold_what_rank_0_had(
    world: World, version: int, ignored: str | None, meta: bool
) -> None:
    with torch.device("meta" if meta and world.rank else "cpu"):
        model = seeded(world.rank)
    wrapped = wrap(
        model,
        fsdp_version=version,
        ignored_modules=ignored,
        sync_module_states=True,
        cpu_ram_efficient_loading=meta,
        use_orig_params=True,
    )
    expected = [
        tensor.reshape(-1).float() for tensor in (*seeded(0).parameters(), *seeded(0).buffers())
    ]
    found = everything(wrapped, version)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(loss(wrapped), loss(seeded(0)))


@pytest.mark.ranks(2)
@VERSIONS
def test_without_synchronization_ranks_keep_their_own(world: World, version: int) -> None:
    wrapped = wrap(seeded(world.rank), fsdp_version=version)
    scales = world.gather(next(blocks(wrapped)).scale.tolist())
    assert scales[0] != scales[1]


@pytest.mark.ranks(2)
@VERSIONS
def test_param_init_fn_makes_what_is_on_the_meta_device(version: int) -> None:
    made = []

    def make(module: nn.Module) -> None:
        made.append(type(module).__name__)
        module.to_empty(device="cpu", recurse=False)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            nn.init.constant_(tensor, 1)

    with torch.device("meta"):
        model = Model()
    model.head.weight = nn.Parameter(torch.ones(7, WIDTH))  # a tie is the function's own affair
    wrapped = wrap(model, fsdp_version=version, param_init_fn=make)
    assert sorted(made) == ["Block", "Block", "Embedding", "Linear", "Linear"]
    assert all(bool((tensor == 1).all()) for tensor in everything(wrapped, version))


def peak() -> int:
    """Return the process's peak of resident memory since it was last reset, in bytes."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


UNIT_COUNT, UNIT = 12, 40  # MiB


class Wide(nn.Module):
    """Units of 40 MiB each, which the allocator gives back to the system when they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4096, 2560, bias=False) for _ in range(UNIT_COUNT))


@pytest.mark.ranks(2, isolate=True)
@VERSIONS
def test_other_ranks_never_hold_the_whole_model(world: World, version: int) -> None:
    wrap(fsdp_version=version, sync_module_states=True)  # imports what it needs
    with torch.device("meta" if world.rank else "cpu"):
        model = Wide()
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    settings = {"transformer_cls_names_to_wrap": "Linear", "cpu_ram_efficient_loading": True}
    wrapped = wrap(model, fsdp_version=version, sync_module_states=True, **settings)
    grown = (peak() - before) >> 20
    whole = sum(unit["elements"] for unit in units(wrapped).values()) * 4 >> 20
    assert whole == UNIT_COUNT * UNIT
    if world.rank:  # its shards, and a unit with the copies that torch makes while it shards it
        assert whole // 2 <= grown <= whole // 2 + 4 * UNIT < whole, f"MiB: {grown}"


def empty(module: nn.Module) -> None:
    """Do what Accelerate's default does."""
    module.to_empty(device="cpu", recurse=False)


@pytest.mark.ranks(2)
@VERSIONS
@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("one", ["parameter", "memory"])
@pytest.mark.parametrize("function", [None, empty])
def test_tied_parameters_stay_one(
    world: World, version: int, meta: bool, one: str, function: Any
) -> None:
    with torch.device("meta" if meta and world.rank else "cpu"):
        model = seeded(0)
    if one == "memory":
        model.load_state_dict(model.state_dict(), assign=True)  # which parts what is tied
        assert model.head.weight is not model.embed.weight
    settings = {"use_orig_params": True, "sync_module_states": meta, "param_init_fn": function}
    wrapped = wrap(model, fsdp_version=version, **settings)
    alone = seeded(0)
    for trained in (wrapped, alone):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        loss(trained).backward()
        optimizer.step()
    assert len(list(wrapped.parameters())) == 5
    for mine, theirs in zip(everything(wrapped, version), everything(alone, 2), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.ranks(2)
@VERSIONS
def test_odd_buffers_are_synchronized(world: World, version: int) -> None:
    buffers = {
        "flag": torch.tensor([True, False]),
        "step": torch.tensor(3),
        "nothing": torch.empty(0, 2),
        "expanded": torch.ones(1, 3).expand(4, 3),
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "wave": torch.tensor([1 + 2j]),
        "turned_back": torch.tensor([1 + 2j]).conj(),
        "low": torch.tensor([1.5], dtype=torch.float16),
    }
    model = Model()
    for name, value in buffers.items():
        mine = torch.zeros_like(value) if world.rank and name != "expanded" else value
        model.blocks[0].register_buffer(name, mine)
    model.blocks[1].register_buffer("same", model.blocks[0].get_buffer("step"))
    wrapped = wrap(model, fsdp_version=version, sync_module_states=True, use_orig_params=True)
    first, second = blocks(wrapped)
    for name, value in buffers.items():
        found = first.get_buffer(name)
        assert found.dtype == value.dtype
        assert torch.equal(found, value)
    assert second.get_buffer("same") is first.get_buffer("step")


@pytest.mark.ranks(2)
@VERSIONS
def test_attributes_of_parameters_are_kept(world: World, version: int) -> None:
    with torch.device("meta" if world.rank else "cpu"):
        model = Model()
    model.embed.weight.no_decay = True
    model.blocks[0].lin.bias.no_decay = True
    wrapped = wrap(model, fsdp_version=version, sync_module_states=True, use_orig_params=True)
    marked = [hasattr(parameter, "no_decay") for parameter in wrapped.parameters()]
    assert marked == [True, False, True, False, False]


@pytest.mark.ranks(2)
@VERSIONS
def test_checkpointed_units_are_made_by_a_function(world: World, version: int) -> None:
    with torch.device("meta" if world.rank else "cpu"):
        model = seeded(0)
    settings = {"activation_checkpointing": True, "param_init_fn": empty, "use_orig_params": True}
    wrapped = wrap(model, fsdp_version=version, sync_module_states=True, **settings)
    assert torch.equal(loss(wrapped), loss(seeded(0)))


@pytest.mark.ranks(2)
@VERSIONS
@pytest.mark.parametrize("function", [None, empty])
def test_other_name_of_a_buffer_shows_the_same_one(
    world: World, version: int, function: Any
) -> None:
    with torch.device("meta" if world.rank else "cpu"):
        model = seeded(0)
    for block in model.blocks:
        block.original_scale = block.scale  # as rotary embeddings do
    model.blocks[1].count = model.blocks[0].count
    settings = {"sync_module_states": True, "param_init_fn": function}
    wrapped = wrap(model, fsdp_version=version, **settings)
    first, second = blocks(wrapped)
    assert first.original_scale is first.scale
    assert second.count is first.count
    assert torch.equal(loss(wrapped), loss(seeded(0)))


@pytest.mark.ranks(2)
@VERSIONS
def test_attributes_survive_a_function(world: World, version: int) -> None:
    with torch.device("meta" if world.rank else "cpu"):
        model = Model()
    model.blocks[0].lin.bias.no_decay = True
    settings = {"sync_module_states": True, "use_orig_params": True, "param_init_fn": empty}
    wrapped = wrap(model, fsdp_version=version, **settings)
    assert sum(hasattr(parameter, "no_decay") for parameter in wrapped.parameters()) == 1
