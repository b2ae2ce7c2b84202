"""Ranks that would not wrap the same are refused, all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shardproof import World
from shardproof_reference import WrapError
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ._plugin_models import (
    VERSIONS,
    WIDTH,
    Block,
    Model,
    loss,
    seeded,
    two_replicas,
    units,
    wrap,
)


@pytest.mark.ranks(2)
@VERSIONS
def test_models_that_differ_are_not_synchronized(world: World, version: int) -> None:
    model = Model()
    if world.rank:
        model.blocks[1].lin = nn.Linear(WIDTH, WIDTH, bias=False)
    words = r"rank 1 doesn.t wrap what rank 0 does: .* in place of parameter blocks\.1\.lin\.bias"
    with pytest.raises(WrapError, match=words):
        wrap(model, fsdp_version=version, sync_module_states=True)


@pytest.mark.ranks(3)
@VERSIONS
def test_what_one_rank_refuses_all_do_and_change_nothing(world: World, version: int) -> None:
    model = Model()
    before = [*model.modules(), *model.parameters(), *model.buffers()]
    names = "Layer" if world.rank == 1 else "Block"
    words = "rank 1: transformer_cls_names_to_wrap has Layer" if world.rank != 1 else "has Layer"
    with pytest.raises(WrapError, match=words):
        wrap(model, fsdp_version=version, transformer_cls_names_to_wrap=names)
    after = [*model.modules(), *model.parameters(), *model.buffers()]
    assert [id(one) for one in after] == [id(one) for one in before]


DISAGREE: list[tuple[dict[str, Any], str]] = [
    ({"mixed_precision_policy": "bf16"}, "it has mixed_precision_policy=MixedPrecision"),
    ({"transformer_cls_names_to_wrap": "Block,Model"}, r".*to_wrap=\('Block', 'Model'"),
    ({"ignored_modules": "head"}, "it has ignored module head in place of parameter embed.weight"),
    ({"auto_wrap_policy": None, "transformer_cls_names_to_wrap": None}, "it has "),
]


@pytest.mark.ranks(2)
@VERSIONS
@pytest.mark.parametrize(("settings", "words"), DISAGREE)
def test_ranks_with_other_settings_are_refused(
    world: World, version: int, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(WrapError, match=f"rank 1 doesn't wrap what rank 0 does: {words}"):
        wrap(Model(), fsdp_version=version, **(settings if world.rank else {}))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("odd", range(4))
def test_all_ranks_of_a_mesh_are_told_of_an_odd_one(world: World, odd: int) -> None:
    model = Model()
    if world.rank == odd:
        model.embed.weight.requires_grad_(False)
    with pytest.raises(WrapError, match=r"doesn't wrap what rank . does: it has parameter embed"):
        wrap(model, two_replicas(), fsdp_version=2)


@pytest.mark.ranks(2)
@VERSIONS
def test_source_on_the_meta_device_is_refused(world: World, version: int) -> None:
    with torch.device("meta"):
        model = Model()
    words = r"embed\.weight is on the meta device; the others are to have it from this rank"
    with pytest.raises(WrapError, match=words if world.rank == 0 else f"rank 0: {words}"):
        wrap(model, fsdp_version=version, sync_module_states=True)


@pytest.mark.ranks(3)
@VERSIONS
def test_mesh_without_this_rank(world: World, version: int) -> None:
    mesh = DeviceMesh("cpu", [0, 2])
    if world.rank == 1:
        with pytest.raises(WrapError, match="rank 1 is not in the device mesh"):
            wrap(mesh=mesh, fsdp_version=version)
    else:
        assert len(units(wrap(mesh=mesh, fsdp_version=version))) == 3


@pytest.mark.ranks(2)
@VERSIONS
@pytest.mark.parametrize("tied", ["parameter", "buffer"])
def test_ties_of_one_rank_only_are_refused(world: World, version: int, tied: str) -> None:
    with torch.device("meta" if world.rank else "cpu"):
        model = Model()
        first, second = model.blocks
        if tied == "parameter":
            model.head.weight = nn.Parameter(torch.empty_like(model.embed.weight))
        if world.rank == 0:
            second.scale = first.scale
            if tied == "parameter":  # as one memory, which `load_state_dict(assign=True)` leaves
                model.head.weight = nn.Parameter(model.embed.weight.data)
    if tied == "parameter":
        second.scale = first.scale
    words = {
        "parameter": r"parameter head\.weight .* in place of parameter head\.weight is embed",
        "buffer": r"buffer blocks\.1\.scale .* in place of buffer blocks\.1\.scale is blocks\.0",
    }
    with pytest.raises(WrapError, match=words[tied]):
        wrap(model, fsdp_version=version, sync_module_states=True)


@pytest.mark.ranks(2)
@VERSIONS
def test_one_memory_here_and_one_parameter_there_are_the_same(world: World, version: int) -> None:
    with torch.device("meta" if world.rank else "cpu"):
        model = seeded(0)
    if world.rank == 0:
        model.load_state_dict(model.state_dict(), assign=True)
        assert model.head.weight is not model.embed.weight
    wrapped = wrap(model, fsdp_version=version, sync_module_states=True)
    assert torch.equal(loss(wrapped), loss(seeded(0)))


@pytest.mark.ranks(2)
@VERSIONS
def test_buffer_that_one_rank_alone_saves_is_refused(world: World, version: int) -> None:
    model = Model()
    if world.rank:
        model.blocks[0].register_buffer("scale", torch.rand(3), persistent=True)
    words = r"it has buffer blocks\.0\.scale \(3,\) torch\.float32 saved in place of .* not saved"
    with pytest.raises(WrapError, match=words):
        wrap(model, fsdp_version=version)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("version", [2])
def test_meshes_that_differ_are_refused(world: World, version: int) -> None:
    mesh = two_replicas()
    if world.rank == 3:
        mesh = DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("replicate", "shard"))
    else:
        DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("replicate", "shard"))
    words = "rank 3 doesn't wrap what rank 0 does: it has device_mesh=cpu .*replicate"
    with pytest.raises(WrapError, match=words):
        wrap(mesh=mesh, fsdp_version=version)


@pytest.mark.ranks(2)
@VERSIONS
@pytest.mark.parametrize("sync", [False, True])
def test_function_that_fails_on_one_rank_fails_on_all(
    world: World, version: int, sync: bool
) -> None:
    with torch.device("meta" if world.rank or not sync else "cpu"):
        model = Model()

    def make(module: nn.Module) -> None:
        if world.rank and isinstance(module, Block):
            raise KeyError("no value")
        module.to_empty(device="cpu", recurse=False)

    function = make if world.rank or not sync else None
    settings = {"sync_module_states": sync, "param_init_fn": function}
    kind: type[Exception] = KeyError if world.rank else WrapError
    with pytest.raises(kind, match="'no value'" if world.rank else "rank 1: KeyError: 'no value'"):
        wrap(model, fsdp_version=version, **settings)
