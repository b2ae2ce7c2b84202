"""Each setting of the plugin shows its effect on the live model."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from shardproof import World
from shardproof_reference import FullyShardedDataParallelPlugin, WrapError
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FlatParameter,
    FSDPModule,
    FullyShardedDataParallel,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from ._plugin_models import (
    BLOCKS,
    TOKENS,
    VERSIONS,
    WIDTH,
    Block,
    Model,
    Named,
    blocks,
    local,
    loss,
    seeded,
    two_replicas,
    units,
    wrap,
)

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
    with pytest.raises(WrapError, match="names no classes that it has in"):
        wrap(transformer_cls_names_to_wrap=None, fsdp_version=version)
    with pytest.raises(WrapError, match=r"has Layer, but the model has no such.* Block, Embedding"):
        wrap(transformer_cls_names_to_wrap="Layer", fsdp_version=version)


@pytest.mark.ranks(1)
@VERSIONS
def test_all_classes_of_a_name_are_wrapped(version: int) -> None:
    model = Model()
    model.blocks.append(type("Block", (Block,), {})())  # as from another module
    assert len(units(wrap(model, fsdp_version=version))) == 4


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


class Normed(nn.Module):
    """A batch norm, which is unstable in low precision."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        self.seen = x.dtype, self.head.weight.dtype
        out: torch.Tensor = self.head(x)
        return out


@pytest.mark.ranks(2)
@pytest.mark.parametrize("classes", [None, [nn.BatchNorm1d, nn.Embedding], []])
def test_mixed_precision_leaves_classes_alone(classes: list[type[nn.Module]] | None) -> None:
    policy: dict[str, Any] = {"param_dtype": "bf16", "buffer_dtype": "bf16"}
    if classes is not None:
        policy["_module_classes_to_ignore"] = classes
    plugin = FullyShardedDataParallelPlugin(mixed_precision_policy=policy)
    model = plugin.wrap(Normed())
    found = units(model)
    alone = {None: ["norm"], 2: ["embed", "norm"], 0: []}[None if classes is None else len(classes)]
    assert sorted(found) == ["", *alone]
    for name, unit in found.items():
        assert unit["compute_dtype"] == ("float32" if name in alone else "bfloat16")
    loss(model).backward()
    norm: Any = next(module for module in model.modules() if isinstance(module, nn.BatchNorm1d))
    assert norm.running_mean.dtype == (torch.float32 if alone else torch.bfloat16)
    inside: Any = model.module
    assert inside.seen == (torch.bfloat16, torch.bfloat16)


# A state-dict type, a name that it has, and what is there.
SAVED = [
    ("FULL_STATE_DICT", "embed.weight", torch.Tensor),
    ("SHARDED_STATE_DICT", "embed.weight", ShardedTensor),
    ("LOCAL_STATE_DICT", "_flat_param", ShardedTensor),
]


@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("kind", "name", "value"), SAVED)
def test_state_dict_type_and_configs_with_torchs_own_functions(
    world: World, kind: str, name: str, value: type
) -> None:
    plugin = FullyShardedDataParallelPlugin(**BLOCKS, state_dict_type=kind)
    for config in (plugin.state_dict_config, plugin.optim_state_dict_config):
        config.offload_to_cpu = False  # type: ignore[union-attr]  # what is on the CPU dies of it
    model = plugin.wrap(Model())
    optimizer = torch.optim.AdamW(model.parameters())
    loss(model).backward()
    optimizer.step()
    held: Any = plugin.state_dict_type, plugin.state_dict_config, plugin.optim_state_dict_config
    with FullyShardedDataParallel.state_dict_type(model, *held):
        found = model.state_dict()
        moments = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    if kind == "FULL_STATE_DICT" and world.rank:
        assert (found, moments) == ({}, {})  # rank0_only
    else:
        assert type(found[name]) is value
        assert type(moments["state"]["embed.weight"]["exp_avg"]) is (
            torch.Tensor if kind == "FULL_STATE_DICT" else ShardedTensor
        )


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
@VERSIONS
def test_wrappers_evaluate_as_the_model_does(version: int) -> None:
    wrapped = wrap(Model().eval(), fsdp_version=version, activation_checkpointing=True)
    assert not any(module.training for module in wrapped.modules())


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
        assert torch.equal(local(mine.grad), local(theirs.grad))


@pytest.mark.ranks(1)
@pytest.mark.parametrize("strategy", list(ShardingStrategy)[:3])
def test_a_world_of_one_rank_is_wrapped_without_a_warning(strategy: ShardingStrategy) -> None:
    assert isinstance(wrap(sharding_strategy=strategy), FullyShardedDataParallel)


@pytest.mark.ranks(2)
@VERSIONS
def test_description_after_a_forward_is_the_same(version: int) -> None:
    how: dict[str, Any] = (
        {"reshard_after_forward": False} if version == 2 else {"sharding_strategy": "SHARD_GRAD_OP"}
    )
    model = wrap(fsdp_version=version, **how)
    before = FullyShardedDataParallelPlugin.describe(model)
    loss(model)
    assert FullyShardedDataParallelPlugin.describe(model) == before


@pytest.mark.ranks(2)
def test_description_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    model = wrap(ignored_modules=r"blocks\.1", activation_checkpointing=True)
    Console(width=80).print(FullyShardedDataParallelPlugin.describe(model))
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    assert ["(root)", "Model", "42", "21", "False"] in rows
    assert ["blocks.0", "Block", "42", "21", "True"] in rows
    below = " ".join(out.split())
    assert "shards 2; dtype float32; compute dtype float32; reduce dtype float32; device" in below
    assert "whole on every rank: blocks.1.lin.weight, blocks.1.lin.bias" in below


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
