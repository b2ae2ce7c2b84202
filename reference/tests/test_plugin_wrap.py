"""Each setting of the plugin shows its effect on the live model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from shardproof import World
from shardproof_reference import FullyShardedDataParallelPlugin, WrapError
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FlatParameter,
    FSDPModule,
    FullyShardedDataParallel,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

WIDTH = 6
BLOCKS: dict[str, Any] = {
    "auto_wrap_policy": "transformer_based_wrap",
    "transformer_cls_names_to_wrap": "Block",
}
VERSIONS = pytest.mark.parametrize("version", [1, 2])
TOKENS = torch.tensor([[1, 2, 3]])


class Block(nn.Module):
    """One unit, with buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.rand(3), persistent=False)
        self.register_buffer("count", torch.tensor(2))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = x.dtype, self.lin.weight.dtype, self.scale.dtype
        return torch.tanh(self.lin(x)) * self.count + self.scale.sum()


class Model(nn.Module):
    """Two blocks between an embedding and a head that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Named(Model):
    """One that names its blocks itself, as models of transformers do."""

    _no_split_modules = ("Block",)


def wrap(
    model: nn.Module | None = None, mesh: DeviceMesh | None = None, **settings: Any
) -> nn.Module:
    plugin = FullyShardedDataParallelPlugin(**{**BLOCKS, **settings})
    return plugin.wrap(Model() if model is None else model, mesh)


def units(model: nn.Module) -> dict[str, dict[str, Any]]:
    described = FullyShardedDataParallelPlugin.describe(model).as_dict()
    return {unit["name"]: unit for unit in described["units"]}


def loss(model: nn.Module) -> torch.Tensor:
    result: torch.Tensor = model(TOKENS).float().sum()
    return result


def two_replicas() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def blocks(model: nn.Module) -> Iterator[Block]:
    return (module for module in model.modules() if isinstance(module, Block))


# Settings, and the units that have parameters of their own.
UNITS: list[tuple[dict[str, Any], list[str]]] = [
    (BLOCKS, ["", "blocks.0", "blocks.1"]),
    (
        {**BLOCKS, "transformer_cls_names_to_wrap": "Linear,Block"},
        ["", "blocks.0.lin", "blocks.1.lin", "head"],
    ),
    ({}, [""]),
    ({"auto_wrap_policy": "no_wrap"}, [""]),
    (
        {"auto_wrap_policy": "size_based_wrap", "min_num_params": WIDTH * WIDTH + WIDTH},
        ["blocks.0.lin", "blocks.1.lin", "embed", "head"],
    ),
    ({"auto_wrap_policy": "size_based_wrap", "min_num_params": 1000}, [""]),
    ({"auto_wrap_policy": ModuleWrapPolicy({Block})}, ["", "blocks.0", "blocks.1"]),
]


@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .FSDPLinear. returned a view")
@VERSIONS
@pytest.mark.parametrize(("settings", "names"), UNITS)
def test_auto_wrap_policy_makes_the_units(
    version: int, settings: dict[str, Any], names: list[str]
) -> None:
    model = Model()
    model.head = nn.Linear(WIDTH, 7, bias=False)  # not tied, as it would be across units
    wrapped = FullyShardedDataParallelPlugin(fsdp_version=version, **settings).wrap(model)
    assert sorted(units(wrapped)) == names
    assert isinstance(wrapped, FullyShardedDataParallel if version == 1 else FSDPModule)
    loss(wrapped).backward()


@pytest.mark.ranks(2)
@VERSIONS
def test_class_names_come_from_the_model_or_are_refused(version: int) -> None:
    assert len(units(wrap(Named(), transformer_cls_names_to_wrap=None, fsdp_version=version))) == 3
    with pytest.raises(WrapError, match="names no classes in _no_split_modules"):
        wrap(transformer_cls_names_to_wrap=None, fsdp_version=version)
    with pytest.raises(WrapError, match=r"has Layer, but the model has no such.* Block, Embedding"):
        wrap(transformer_cls_names_to_wrap="Layer", fsdp_version=version)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("strategy", "shards"),
    [
        ("FULL_SHARD", 4),
        ("SHARD_GRAD_OP", 4),
        ("NO_SHARD", 1),
        ("HYBRID_SHARD", 2),
        ("HYBRID_SHARD_ZERO2", 2),
    ],
)
@pytest.mark.parametrize("original", [False, True])
def test_sharding_strategy_cuts_the_parameters(strategy: str, shards: int, original: bool) -> None:
    mesh = two_replicas() if strategy.startswith("HYBRID") else None
    model = wrap(mesh=mesh, sharding_strategy=strategy, use_orig_params=original)
    loss(model).backward()
    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            name = module.sharding_strategy.name.lstrip("_")  # type: ignore[union-attr]
            assert name == strategy
    for unit in units(model).values():
        assert unit["elements"] == WIDTH * WIDTH + WIDTH == WIDTH * 7
        padded = 44 if original and strategy == "NO_SHARD" else 42  # to a multiple of the world
        assert unit["local_elements"] == -(-padded // shards)
        assert unit["shards"] == shards
    flat = [isinstance(parameter, FlatParameter) for parameter in model.parameters()]
    assert flat == ([False] * 5 if original else [True] * 3)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("reshard", "mesh", "local"),
    [(True, False, 2), (False, False, None), (2, False, 3), (True, True, 3)],
)
def test_reshard_after_forward(reshard: Any, mesh: bool, local: int | None) -> None:
    model = wrap(
        fsdp_version=2, reshard_after_forward=reshard, mesh=two_replicas() if mesh else None
    )
    assert {unit["shards"] for unit in units(model).values()} == {2 if mesh else 4}
    loss(model)
    weight = next(blocks(model)).lin.weight
    if local is None:
        assert not isinstance(weight, DTensor)
        assert weight.shape == (WIDTH, WIDTH)
    else:
        assert isinstance(weight, DTensor)
        rows = weight.to_local().shape[0]
        assert rows in (local, WIDTH % local)  # 6 rows over 4 ranks: 2, 2, 2, 0


@pytest.mark.ranks(2)
@pytest.mark.parametrize("prefetch", [None, "BACKWARD_PRE", "BACKWARD_POST"])
@pytest.mark.parametrize("on", [False, True])
def test_prefetch_and_limiter_are_where_torch_reads_them(prefetch: str | None, on: bool) -> None:
    model = wrap(backward_prefetch=prefetch, forward_prefetch=on, limit_all_gathers=on)
    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            assert getattr(module.backward_prefetch, "name", None) == prefetch
            assert module.forward_prefetch is on
            assert module.limit_all_gathers is on


@pytest.mark.ranks(2)
@VERSIONS
def test_mixed_precision_of_compute_reduce_and_buffers(version: int) -> None:
    policy = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    policy |= {"buffer_dtype": "fp16"} if version == 1 else {"output_dtype": "fp16"}
    model = wrap(fsdp_version=version, mixed_precision_policy=policy)
    out = model(TOKENS)
    out.float().sum().backward()
    block = next(blocks(model))
    buffers = torch.float16 if version == 1 else torch.float32
    assert block.seen[1:] == (torch.bfloat16, buffers)
    assert version == 1 or out.dtype == torch.float16
    for unit in units(model).values():
        found = unit["dtype"], unit["compute_dtype"], unit["reduce_dtype"]
        assert found == ("float32", "bfloat16", "float32")
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


@pytest.mark.ranks(2)
def test_offload_on_cpu(world: World) -> None:
    with pytest.raises(WrapError, match=r"cpu_offload=True with fsdp_version=1 pins.* device cpu"):
        wrap(cpu_offload=True)
    model = wrap(fsdp_version=2, cpu_offload=True)
    loss(model).backward()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            policy = module._get_fsdp_state()._fsdp_param_group.offload_policy  # type: ignore[attr-defined]
            assert isinstance(policy, CPUOffloadPolicy)
            assert not policy.pin_memory
    assert {unit["device"] for unit in units(model).values()} == {"cpu"}


@pytest.mark.ranks(2)
@VERSIONS
@pytest.mark.parametrize("by_name", [False, True])
def test_ignored_modules_stay_whole(version: int, by_name: bool) -> None:
    model = Model()
    ignored = r"blocks\.\d" if by_name else [model.blocks[0], model.blocks[1]]
    wrapped = wrap(model, fsdp_version=version, ignored_modules=ignored)
    assert list(units(wrapped)) == [""]
    described = FullyShardedDataParallelPlugin.describe(wrapped)
    names = [f"blocks.{n}.lin.{kind}" for n in (0, 1) for kind in ("weight", "bias")]
    assert list(described.whole) == names
    assert next(blocks(wrapped)).lin.weight.shape == (WIDTH, WIDTH)
    loss(wrapped).backward()


@pytest.mark.ranks(1)
def test_ignored_modules_that_are_not_there() -> None:
    with pytest.raises(WrapError, match=r"ignored_modules='block' matches no module's name"):
        wrap(ignored_modules="block")
    with pytest.raises(WrapError, match="ignored_modules has a Linear that is no module of the"):
        wrap(ignored_modules=[nn.Linear(1, 1)])


def everything(model: nn.Module, version: int) -> list[torch.Tensor]:
    """Return all parameters, whole, and all buffers."""
    if version == 1:
        with FullyShardedDataParallel.summon_full_params(model):
            found = [p.detach().clone().reshape(-1) for p in model.parameters()]
    else:
        found = [
            (p.full_tensor() if isinstance(p, DTensor) else p).detach().reshape(-1)
            for p in model.parameters()
        ]
    return [*found, *(buffer.reshape(-1).float() for buffer in model.buffers())]


def seeded(seed: int) -> Model:
    torch.manual_seed(seed)
    return Model()


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
def test_models_that_differ_are_not_synchronized(world: World, version: int) -> None:
    model = Model()
    if world.rank:
        model.blocks[1].lin = nn.Linear(WIDTH, WIDTH, bias=False)
    with pytest.raises(WrapError, match=r"rank 1 of the group has another model.*1\.lin\.bias"):
        wrap(model, fsdp_version=version, sync_module_states=True)


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


@pytest.mark.ranks(1)
@VERSIONS
def test_meta_device_without_anything_to_fill_it_is_refused(version: int) -> None:
    with torch.device("meta"):
        model = Model()
    with pytest.raises(WrapError, match=r"blocks\.0\.scale is on the meta device; give"):
        wrap(model, fsdp_version=version)


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


@pytest.mark.ranks(2)
@VERSIONS
def test_activation_checkpointing_wraps_each_unit_once(version: int) -> None:
    plain = wrap(seeded(0), fsdp_version=version)
    model = wrap(seeded(0), fsdp_version=version, activation_checkpointing=True)
    wrappers = [m for m in model.modules() if isinstance(m, CheckpointWrapper)]
    assert [isinstance(m._checkpoint_wrapped_module, Block) for m in wrappers] == [True, True]
    assert [unit["checkpointed"] for unit in units(model).values()] == [False, True, True]
    for one in (plain, model):
        loss(one).backward()
    assert [block.calls for block in blocks(plain)] == [1, 1]
    assert [block.calls for block in blocks(model)] == [2, 2]
    assert list(model.state_dict()) == list(plain.state_dict())
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(_local(mine.grad), _local(theirs.grad))


@pytest.mark.ranks(1)
@VERSIONS
def test_activation_checkpointing_of_nothing_is_refused(version: int) -> None:
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version,
        auto_wrap_policy="size_based_wrap",
        min_num_params=10**6,
        activation_checkpointing=True,
    )
    with pytest.raises(WrapError, match="activation_checkpointing=True would do nothing"):
        plugin.wrap(Model())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.mark.ranks(2)
@VERSIONS
@pytest.mark.parametrize("meta", [False, True])
def test_tied_parameters_stay_one(world: World, version: int, meta: bool) -> None:
    with torch.device("meta" if meta and world.rank else "cpu"):
        model = Model()
    settings: dict[str, Any] = {"use_orig_params": True, "sync_module_states": meta}
    wrapped = wrap(model, fsdp_version=version, **settings)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    loss(wrapped).backward()
    optimizer.step()
    inside: Any = wrapped.module if version == 1 else wrapped
    if version == 1:
        with FullyShardedDataParallel.summon_full_params(wrapped):
            assert inside.head.weight.data_ptr() == inside.embed.weight.data_ptr()
            assert inside.head.weight.numel() == 7 * WIDTH
    else:
        assert inside.head.weight is inside.embed.weight
    assert len(list(wrapped.parameters())) == 5


@pytest.mark.ranks(2)
@VERSIONS
def test_parameter_of_two_units_is_refused_with_both_names(version: int) -> None:
    model = Model()
    model.blocks[1].lin.weight = model.blocks[0].lin.weight
    words = r"blocks\.0\.lin\.weight and blocks\.1\.lin\.weight are one parameter, but lie in the"
    with pytest.raises(WrapError, match=words):
        wrap(model, fsdp_version=version)


@pytest.mark.ranks(2)
def test_meshes_that_do_not_fit_are_refused() -> None:
    one = init_device_mesh("cpu", (2,))
    two = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    for strategy in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
        for mesh, found in ((None, "none"), (one, "1-D")):
            with pytest.raises(WrapError, match=rf"{strategy} needs a 2-D device .* found {found}"):
                wrap(mesh=mesh, sharding_strategy=strategy)
    with pytest.raises(WrapError, match="FULL_SHARD needs no 2-D mesh, found 2-D"):
        wrap(mesh=two)
    with pytest.raises(WrapError, match="LOCAL_STATE_DICT needs no device_mesh, found 1-D"):
        wrap(mesh=one, state_dict_type="LOCAL_STATE_DICT")
    three = init_device_mesh("cpu", (1, 1, 2), mesh_dim_names=("a", "b", "c"))
    with pytest.raises(WrapError, match=r"device_mesh is 1-D .* found 3-D"):
        wrap(mesh=three, fsdp_version=2)


@pytest.mark.ranks(1)
@VERSIONS
def test_sharded_model_is_not_sharded_again(version: int) -> None:
    model = wrap(fsdp_version=version)
    with pytest.raises(WrapError, match="the model is sharded already"):
        wrap(model, fsdp_version=version)


def test_wrapping_needs_a_process_group() -> None:
    with pytest.raises(WrapError, match=r"needs a process group; call .*init_process_group"):
        wrap()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("strategy", list(ShardingStrategy)[:3])
def test_a_world_of_one_rank_is_wrapped_without_a_warning(strategy: ShardingStrategy) -> None:
    assert isinstance(wrap(sharding_strategy=strategy), FullyShardedDataParallel)


@pytest.mark.ranks(2)
def test_description_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    description = FullyShardedDataParallelPlugin.describe(wrap(ignored_modules=r"blocks\.1"))
    Console(width=160).print(description)
    out = capsys.readouterr().out
    for words in (
        "(root)",
        "blocks.0",
        "local elements",
        "whole on every rank: blocks.1.lin.weight",
    ):
        assert words in out


def test_policy_function_is_asked_as_torch_asks_it() -> None:
    asked = []

    def decide(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        asked.append((type(module).__name__, recurse, nonwrapped_numel))
        return recurse or isinstance(module, Block)

    from shardproof_reference.fsdp import _units

    found = _units.units(Model(), partial(decide), set())
    assert [type(unit) for unit in found] == [Block, Block]
    assert asked[0] == ("Model", True, 3 * 42)
    assert asked[-1] == ("Model", False, 42)
