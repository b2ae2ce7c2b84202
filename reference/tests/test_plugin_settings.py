"""The plugin's settings: how each may be given, what it holds then, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from functools import partial
from typing import Any

import pytest
import torch
from shardproof_reference import FullyShardedDataParallelPlugin, PluginError
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

DEFAULTS = {
    "fsdp_version": 1,
    "sharding_strategy": ShardingStrategy.FULL_SHARD,
    "reshard_after_forward": None,
    "backward_prefetch": None,
    "mixed_precision_policy": None,
    "auto_wrap_policy": None,
    "cpu_offload": CPUOffload(offload_params=False),
    "ignored_modules": None,
    "state_dict_type": StateDictType.FULL_STATE_DICT,
    "state_dict_config": FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
    "optim_state_dict_config": FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True),
    "limit_all_gathers": True,
    "use_orig_params": False,
    "param_init_fn": None,
    "sync_module_states": False,
    "forward_prefetch": False,
    "activation_checkpointing": False,
    "activation_checkpointing_offload": False,
    "cpu_ram_efficient_loading": None,
    "transformer_cls_names_to_wrap": None,
    "min_num_params": None,
}
BF16 = torch.bfloat16
MODULE = nn.Linear(1, 1)
HYBRID_ZERO2 = ShardingStrategy._HYBRID_SHARD_ZERO2
TRANSFORMER = {"auto_wrap_policy": "transformer_based_wrap"}
SIZE = {"auto_wrap_policy": "size_based_wrap"}

# A setting, the ways to give it, what it holds then, and what has to go with it.
GIVEN: list[tuple[str, list[Any], Any, dict[str, Any]]] = [
    ("fsdp_version", [1, "1"], 1, {}),
    ("fsdp_version", [2, "2", " 2 "], 2, {}),
    *(
        ("sharding_strategy", [name, name.lower(), str(number), number, member], member, {})
        for number, (name, member) in enumerate(
            [
                ("FULL_SHARD", ShardingStrategy.FULL_SHARD),
                ("SHARD_GRAD_OP", ShardingStrategy.SHARD_GRAD_OP),
                ("NO_SHARD", ShardingStrategy.NO_SHARD),
                ("HYBRID_SHARD", ShardingStrategy.HYBRID_SHARD),
                ("HYBRID_SHARD_ZERO2", HYBRID_ZERO2),
            ],
            start=1,
        )
    ),
    ("cpu_offload", [None, CPUOffload("no"), False, "false"], CPUOffload(offload_params=False), {}),
    ("state_dict_type", [None], StateDictType.SHARDED_STATE_DICT, {"fsdp_version": 2}),
    ("backward_prefetch", ["NO_PREFETCH", "no_prefetch", None], None, {}),
    (
        "backward_prefetch",
        ["BACKWARD_PRE", "backward_pre", "1", 1, BackwardPrefetch.BACKWARD_PRE],
        BackwardPrefetch.BACKWARD_PRE,
        {},
    ),
    ("backward_prefetch", ["backward_post", "2"], BackwardPrefetch.BACKWARD_POST, {}),
    ("mixed_precision_policy", ["fp32", torch.float32], MixedPrecision(*[torch.float32] * 3), {}),
    ("mixed_precision_policy", ["FP16", "float16"], MixedPrecision(*[torch.float16] * 3), {}),
    ("mixed_precision_policy", ["bf16", "torch.bfloat16"], MixedPrecision(BF16, BF16, BF16), {}),
    (
        "mixed_precision_policy",
        [
            {"param_dtype": "bf16", "reduce_dtype": torch.float32},
            MixedPrecision(BF16, torch.float32),
        ],
        MixedPrecision(BF16, torch.float32),
        {},
    ),
    (
        "mixed_precision_policy",
        ["bf16", {"param_dtype": BF16, "reduce_dtype": BF16, "output_dtype": "bf16"}],
        MixedPrecisionPolicy(BF16, BF16, BF16),
        {"fsdp_version": 2},
    ),
    ("auto_wrap_policy", ["no_wrap", "NO_WRAP", None], None, {}),
    (
        "auto_wrap_policy",
        ["transformer_based_wrap", "TRANSFORMER_BASED_WRAP", transformer_auto_wrap_policy],
        "transformer_based_wrap",
        {},
    ),
    (
        "auto_wrap_policy",
        ["SIZE_BASED_WRAP", size_based_auto_wrap_policy],
        "size_based_wrap",
        {"min_num_params": 1},
    ),
    ("cpu_offload", [True, "true", "1", CPUOffload(True)], CPUOffload(offload_params=True), {}),
    ("cpu_offload", [False, "False", "0"], CPUOffload(offload_params=False), {}),
    ("cpu_offload", [True, "True"], CPUOffloadPolicy(), {"fsdp_version": 2}),
    ("cpu_offload", [False, OffloadPolicy()], OffloadPolicy(), {"fsdp_version": 2}),
    ("ignored_modules", [r".*\.head"], r".*\.head", {}),
    ("ignored_modules", [[MODULE], (MODULE,), {MODULE}, iter([MODULE])], (MODULE,), {}),
    ("reshard_after_forward", [True, "true", "True", None], True, {"fsdp_version": 2}),
    ("reshard_after_forward", [False, "false"], False, {"fsdp_version": 2}),
    ("reshard_after_forward", [2, "2"], 2, {"fsdp_version": 2}),
    ("use_orig_params", [None, True, "true"], True, {"fsdp_version": 2}),
    ("cpu_ram_efficient_loading", [True, "1"], True, {"sync_module_states": True}),
    ("cpu_ram_efficient_loading", [False, "no"], False, {}),
    *(
        (name, [True, "true", "True", "1", 1, "yes"], True, {})
        for name in ("limit_all_gathers", "use_orig_params", "sync_module_states")
    ),
    *(
        (name, [False, "false", "False", "0", 0, "no"], False, {})
        for name in ("limit_all_gathers", "forward_prefetch", "activation_checkpointing")
    ),
    ("activation_checkpointing", ["true"], True, TRANSFORMER),
    (
        "activation_checkpointing_offload",
        ["true"],
        True,
        {"fsdp_version": 2, "activation_checkpointing": True, **TRANSFORMER},
    ),
    (
        "transformer_cls_names_to_wrap",
        ["Block,Layer", "Block, Layer", ["Block", "Layer"]],
        ("Block", "Layer"),
        TRANSFORMER,
    ),
    ("min_num_params", [1000, "1000"], 1000, SIZE),
]


def test_defaults() -> None:
    plugin = FullyShardedDataParallelPlugin()
    assert {name: getattr(plugin, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("name", "given", "held", "beside"),
    [
        pytest.param(name, one, held, beside, id=f"{name}-{number}-{place}")
        for number, (name, several, held, beside) in enumerate(GIVEN)
        for place, one in enumerate(several)
    ],
)
def test_what_a_setting_may_be_given_as(
    name: str, given: Any, held: Any, beside: dict[str, Any]
) -> None:
    plugin = FullyShardedDataParallelPlugin(**{name: given}, **beside)
    assert getattr(plugin, name) == held
    assert type(getattr(plugin, name)) is type(held)


def test_functions_are_kept() -> None:
    decide = partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    for policy in (decide, ModuleWrapPolicy({nn.Linear}), lambda **asked: asked["recurse"]):
        plugin = FullyShardedDataParallelPlugin(
            auto_wrap_policy=policy, param_init_fn=nn.Module.cpu
        )
        assert plugin.auto_wrap_policy is policy
        assert plugin.param_init_fn is nn.Module.cpu


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"fsdp_version": 3}, "fsdp_version is 1 or 2, got 3"),
    ({"fsdp_version": "two"}, "fsdp_version is a whole number from 1, got 'two'"),
    (
        {"sharding_strategy": "FULL"},
        "sharding_strategy is one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
        "HYBRID_SHARD_ZERO2 (or its number), got 'FULL'",
    ),
    ({"sharding_strategy": 6}, "sharding_strategy is one of *, got 6"),
    ({"sharding_strategy": True}, "sharding_strategy is one of *, got True"),
    (
        {"backward_prefetch": "3"},
        "backward_prefetch is one of BACKWARD_PRE, BACKWARD_POST *, got '3'",
    ),
    ({"state_dict_type": "full"}, "state_dict_type is one of FULL_STATE_DICT, *, got 'full'"),
    (
        {"auto_wrap_policy": "wrap"},
        "auto_wrap_policy is one of transformer_based_wrap, *, got 'wrap'",
    ),
    ({"auto_wrap_policy": 3}, "auto_wrap_policy is a function, got 3"),
    (
        {"auto_wrap_policy": lambda module: True},
        "auto_wrap_policy is a function of module, recurse and nonwrapped_numel (got an unexpected "
        "keyword argument 'recurse'), got <function *",
    ),
    (
        {"auto_wrap_policy": lambda_auto_wrap_policy},
        "auto_wrap_policy is a function of module, * (missing a required argument: 'lambda_fn'), *",
    ),
    ({"mixed_precision_policy": MixedPrecision(torch.int8)}, "mixed_precision_policy[*] is a fl*"),
    ({"mixed_precision_policy": "float8_e4m3fn"}, "mixed_precision_policy is a floating*16 bit*"),
    (
        {"mixed_precision_policy": {"_module_classes_to_ignore": "BatchNorm"}},
        "mixed_precision_policy[*] is a list of classes of modules, got 'BatchNorm'",
    ),
    (
        {"cpu_offload": CPUOffload("some")},
        "cpu_offload.offload_params is True or False, got 'some'",
    ),
    ({"cpu_offload": "maybe"}, "cpu_offload is True or False, got 'maybe'"),
    (
        {"cpu_offload": CPUOffloadPolicy()},
        "cpu_offload is *CPUOffload(...) with *1, got *",
    ),
    (
        {"cpu_offload": CPUOffload(True), "fsdp_version": 2},
        "cpu_offload is *OffloadPolicy(...) with fsdp_version 2, got *",
    ),
    ({"use_orig_params": 2}, "use_orig_params is True or False, got 2"),
    ({"ignored_modules": "("}, "ignored_modules is modules, or a regular expression *, got '('"),
    ({"ignored_modules": ["head"]}, "ignored_modules is modules, *, got ['head']"),
    ({"min_num_params": 0, **SIZE}, "min_num_params is a whole number from 1, got 0"),
    ({"min_num_params": "1e8", **SIZE}, "min_num_params is a whole number *, got '1e8'"),
    ({"transformer_cls_names_to_wrap": [], **TRANSFORMER}, "transformer_cls_names_to_wrap is *"),
    (
        {"mixed_precision_policy": "fp8"},
        "mixed_precision_policy is a floating-point dtype *, *'fp8'",
    ),
    ({"mixed_precision_policy": torch.int64}, "mixed_precision_policy is *, got torch.int64"),
    (
        {"mixed_precision_policy": {"param_dtype": "int8"}},
        "mixed_precision_policy['param_dtype'] is a floating-point dtype *, got 'int8'",
    ),
    (
        {"mixed_precision_policy": {"params": BF16}},
        "mixed_precision_policy is a dict with keys of param_dtype, *, got 'params'",
    ),
    (
        {"mixed_precision_policy": {"buffer_dtype": BF16}, "fsdp_version": 2},
        "mixed_precision_policy is a dict with keys of param_dtype, reduce_dtype, output_dtype, *",
    ),
    (
        {"mixed_precision_policy": MixedPrecision(), "fsdp_version": 2},
        "mixed_precision_policy is a MixedPrecisionPolicy with fsdp_version 2, got *",
    ),
    ({"param_init_fn": 1}, "param_init_fn is a function, got 1"),
    (
        {"reshard_after_forward": -2, "fsdp_version": 2},
        "reshard_after_forward is True, False, or to how many ranks, from 2, got -2",
    ),
    (
        {"state_dict_config": ShardedStateDictConfig()},
        "state_dict_config is a FullStateDictConfig with FULL_STATE_DICT, got *",
    ),
    (
        {"optim_state_dict_config": FullOptimStateDictConfig(), "state_dict_type": 3},
        "optim_state_dict_config is a ShardedOptimStateDictConfig with SHARDED_STATE_DICT, got *",
    ),
    (
        {"shard_strategy": 1},
        "there is no setting 'shard_strategy'; did you mean sharding_strategy?",
    ),
    ({"zzz": 1}, "there is no setting 'zzz'; there are fsdp_version, sharding_strategy, *"),
]

PAIRS: list[tuple[dict[str, Any], str, str]] = [
    ({"fsdp_version": 2, "sharding_strategy": 1}, "fsdp_version=2", "sharding_strategy=FULL_SHARD"),
    (
        {"reshard_after_forward": "NO_SHARD", "sharding_strategy": 1},
        "reshard_after_forward=NO_SHARD",
        "sharding_strategy=1",
    ),
    (
        {"fsdp_version": 2, "backward_prefetch": 1},
        "fsdp_version=2",
        "backward_prefetch=BACKWARD_PRE",
    ),
    ({"fsdp_version": 2, "forward_prefetch": True}, "fsdp_version=2", "forward_prefetch=True"),
    ({"fsdp_version": 2, "limit_all_gathers": False}, "fsdp_version=2", "limit_all_gathers=False"),
    ({"fsdp_version": 2, "use_orig_params": False}, "fsdp_version=2", "use_orig_params=False"),
    (
        {"activation_checkpointing_offload": True},
        "fsdp_version=1",
        "activation_checkpointing_offload=True",
    ),
    (
        {"fsdp_version": 2, "activation_checkpointing_offload": True},
        "activation_checkpointing=False",
        "activation_checkpointing_offload=True",
    ),
    ({"activation_checkpointing": True}, "activation_checkpointing=True", "auto_wrap_policy=None"),
    (
        {"transformer_cls_names_to_wrap": "Block"},
        "auto_wrap_policy=None",
        "transformer_cls_names_to_wrap=('Block',)",
    ),
    ({"min_num_params": 5, **TRANSFORMER}, "auto_wrap_policy='transformer_b", "min_num_params=5"),
    (SIZE, "auto_wrap_policy='size_based_wrap'", "min_num_params=None"),
    (
        {"fsdp_version": 2, "state_dict_type": "LOCAL_STATE_DICT"},
        "fsdp_version=2",
        "state_dict_type=LOCAL_STATE_DICT",
    ),
    (
        {"sharding_strategy": "HYBRID_SHARD", "state_dict_type": "LOCAL_STATE_DICT"},
        "sharding_strategy=HYBRID_SHARD",
        "state_dict_type=LOCAL_STATE_DICT",
    ),
    (
        {"sharding_strategy": "NO_SHARD", "state_dict_type": "LOCAL_STATE_DICT"},
        "sharding_strategy=NO_SHARD",
        "state_dict_type=LOCAL_STATE_DICT",
    ),
    (
        {"use_orig_params": True, "state_dict_type": "LOCAL_STATE_DICT"},
        "use_orig_params=True",
        "state_dict_type=LOCAL_STATE_DICT",
    ),
]


def _says(error: Exception, pattern: str) -> None:
    words = ".*".join(re.escape(part) for part in pattern.split("*"))
    assert re.fullmatch(words, str(error), re.DOTALL), str(error)


@pytest.mark.parametrize(("settings", "says"), REFUSED)
def test_a_value_that_cannot_be_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(PluginError) as raised:
        FullyShardedDataParallelPlugin(**settings)
    _says(raised.value, says)


@pytest.mark.parametrize(("settings", "first", "second"), PAIRS)
def test_a_pair_that_cannot_work_is_refused(
    settings: dict[str, Any], first: str, second: str
) -> None:
    with pytest.raises(PluginError) as raised:
        FullyShardedDataParallelPlugin(**settings)
    _says(raised.value, f"{first}* and {second} can't work together: *")


CONFIGS = [
    ("FULL_STATE_DICT", FullStateDictConfig, FullOptimStateDictConfig),
    ("sharded_state_dict", ShardedStateDictConfig, ShardedOptimStateDictConfig),
    ("LOCAL_STATE_DICT", LocalStateDictConfig, LocalOptimStateDictConfig),
]


@pytest.mark.parametrize(("before", "_model", "_optimizer"), CONFIGS)
@pytest.mark.parametrize(("after", "model", "optimizer"), CONFIGS)
def test_type_and_configs_belong_together(
    before: str, _model: type, _optimizer: type, after: str, model: type, optimizer: type
) -> None:
    set_by_method = FullyShardedDataParallelPlugin(state_dict_type=before)
    assert type(set_by_method.state_dict_config) is _model
    set_by_method.set_state_dict_type(after)
    assigned = FullyShardedDataParallelPlugin(state_dict_type=before)
    assigned.state_dict_type = after
    for plugin in (set_by_method, assigned):
        assert plugin.state_dict_type is StateDictType[after.upper()]
        assert type(plugin.state_dict_config) is model
        assert type(plugin.optim_state_dict_config) is optimizer


def test_a_config_of_its_own_is_kept_until_the_type_changes() -> None:
    config = FullStateDictConfig(rank0_only=False)
    plugin = FullyShardedDataParallelPlugin(state_dict_config=config)
    assert plugin.state_dict_config is config
    plugin.set_state_dict_type("FULL_STATE_DICT")
    assert plugin.state_dict_config is config
    plugin.set_state_dict_type("SHARDED_STATE_DICT")
    plugin.set_state_dict_type("FULL_STATE_DICT")
    assert plugin.state_dict_config == DEFAULTS["state_dict_config"]


@pytest.mark.parametrize("given", ["shard_grad_op", 2, "2", ShardingStrategy.SHARD_GRAD_OP])
@pytest.mark.parametrize("beside", [{}, {"sharding_strategy": "SHARD_GRAD_OP"}])
def test_strategy_under_the_name_that_accelerate_asks_for(
    given: Any, beside: dict[str, str]
) -> None:
    plugin = FullyShardedDataParallelPlugin(reshard_after_forward=given, **beside)
    assert plugin.sharding_strategy is ShardingStrategy.SHARD_GRAD_OP
    assert plugin.reshard_after_forward is None
    plugin.sharding_strategy = "NO_SHARD"
    assert plugin.sharding_strategy is ShardingStrategy.NO_SHARD


def test_a_subclass_has_settings_of_its_own() -> None:
    class Named(FullyShardedDataParallelPlugin):
        def __init__(self, name: str, **settings: Any) -> None:
            super().__init__(**settings)
            self.name = name

    plugin = Named("mine", sharding_strategy="NO_SHARD")
    plugin.sharding_strategy = "1"
    plugin.name += "s"
    assert (plugin.name, plugin.sharding_strategy) == ("mines", ShardingStrategy.FULL_SHARD)


def test_an_assigned_version_reads_all_settings_again() -> None:
    plugin = FullyShardedDataParallelPlugin(cpu_offload=True, mixed_precision_policy="bf16")
    plugin.fsdp_version = 2
    assert isinstance(plugin.cpu_offload, CPUOffloadPolicy)
    assert isinstance(plugin.mixed_precision_policy, MixedPrecisionPolicy)
    assert plugin.state_dict_type is StateDictType.SHARDED_STATE_DICT
    assert plugin.use_orig_params is True


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, dataclasses.replace])
def test_copies_are_apart_from_each_other(copied: Any) -> None:
    plugin = FullyShardedDataParallelPlugin(sharding_strategy="NO_SHARD")
    other = copied(plugin)
    other.sharding_strategy = "FULL_SHARD"
    assert other.sharding_strategy is ShardingStrategy.FULL_SHARD
    assert plugin.sharding_strategy is ShardingStrategy.NO_SHARD
    plugin.use_orig_params = True
    assert plugin.sharding_strategy is ShardingStrategy.NO_SHARD
    assert other.use_orig_params is False


def test_an_assignment_is_checked_and_changes_nothing_if_refused() -> None:
    plugin = FullyShardedDataParallelPlugin(state_dict_type="LOCAL_STATE_DICT")
    plugin.sharding_strategy = "2"
    assert plugin.sharding_strategy is ShardingStrategy.SHARD_GRAD_OP
    for name, value in (("use_orig_params", True), ("fsdp_version", 2), ("unknown", 1)):
        with pytest.raises(PluginError, match=name):
            setattr(plugin, name, value)
    assert plugin.use_orig_params is False
    with pytest.raises(PluginError, match="HYBRID_SHARD"):
        plugin.sharding_strategy = "HYBRID_SHARD"
    assert plugin.sharding_strategy is ShardingStrategy.SHARD_GRAD_OP


@pytest.mark.parametrize("sync", [None, False])
def test_efficient_loading_forces_synchronization(sync: bool | None) -> None:
    with pytest.warns(UserWarning, match="sync_module_states is switched on") as warned:
        plugin = FullyShardedDataParallelPlugin(
            cpu_ram_efficient_loading=True, sync_module_states=sync
        )
    assert plugin.sync_module_states is True
    assert warned[0].filename == __file__


def test_building_changes_nothing_outside() -> None:
    before = dict(os.environ), torch.get_default_dtype(), torch.get_rng_state().tolist()
    os.environ["FSDP_SHARDING_STRATEGY"] = "NO_SHARD"  # is not looked at
    try:
        plugin = FullyShardedDataParallelPlugin(
            cpu_ram_efficient_loading=True, sync_module_states=True
        )
        assert plugin.sharding_strategy is ShardingStrategy.FULL_SHARD
    finally:
        del os.environ["FSDP_SHARDING_STRATEGY"]
    assert before == (dict(os.environ), torch.get_default_dtype(), torch.get_rng_state().tolist())
    assert not torch.distributed.is_initialized()


def test_settings_that_work_together_only_are_replaced_together() -> None:
    plugin = FullyShardedDataParallelPlugin(transformer_cls_names_to_wrap="Block", **TRANSFORMER)
    changed = dataclasses.replace(
        plugin, auto_wrap_policy=None, transformer_cls_names_to_wrap=None, fsdp_version="1"
    )
    assert changed.auto_wrap_policy is None
    assert plugin.auto_wrap_policy == "transformer_based_wrap"
    sized = dataclasses.replace(changed, auto_wrap_policy="size_based_wrap", min_num_params="100")
    assert (sized.auto_wrap_policy, sized.min_num_params) == ("size_based_wrap", 100)
