"""The variables of Accelerate's launcher, read by ours and by the real plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from shardproof_reference import FullyShardedDataParallelPlugin, PluginError
from torch.distributed.fsdp import ShardingStrategy

from ._peers import IMPLEMENTATIONS, NEEDS_PEERS

_SHARDED, _FULL, _LOCAL = "SHARDED_STATE_DICT", "FULL_STATE_DICT", "LOCAL_STATE_DICT"
_TRUE, _FALSE = ("true", "True", "1"), ("false", "False", "0")
_V2 = {"FSDP_VERSION": "2"}
_TRANSFORMER = {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
_SIZE = {"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"}

# A variable, its spellings, the setting, what that holds, and what goes with it.
READ: list[tuple[str, tuple[str, ...], str, Any, dict[str, str]]] = [
    ("VERSION", ("1",), "fsdp_version", 1, {}),
    ("VERSION", ("2",), "fsdp_version", 2, {}),
    *(
        ("SHARDING_STRATEGY", (name, name.lower(), str(number)), "sharding_strategy", name, {})
        for number, name in enumerate(
            ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"), 1
        )
    ),
    ("RESHARD_AFTER_FORWARD", _TRUE, "reshard_after_forward", True, _V2),
    ("RESHARD_AFTER_FORWARD", _FALSE, "reshard_after_forward", False, _V2),
    ("OFFLOAD_PARAMS", _TRUE, "cpu_offload", True, {}),
    ("OFFLOAD_PARAMS", _FALSE, "cpu_offload", False, {}),
    ("OFFLOAD_PARAMS", _TRUE, "cpu_offload", True, _V2),
    ("MIN_NUM_PARAMS", ("1000",), "min_num_params", 1000, _SIZE),
    ("AUTO_WRAP_POLICY", ("NO_WRAP", "no_wrap"), "auto_wrap_policy", None, {}),
    (
        "AUTO_WRAP_POLICY",
        ("TRANSFORMER_BASED_WRAP", "transformer_based_wrap"),
        "auto_wrap_policy",
        "transformer_based_wrap",
        {},
    ),
    (
        "AUTO_WRAP_POLICY",
        ("SIZE_BASED_WRAP",),
        "auto_wrap_policy",
        "size_based_wrap",
        {"FSDP_MIN_NUM_PARAMS": "1000"},
    ),
    (
        "TRANSFORMER_CLS_TO_WRAP",
        ("Block,Layer",),
        "transformer_cls_names_to_wrap",
        ["Block", "Layer"],
        _TRANSFORMER,
    ),
    ("BACKWARD_PREFETCH", ("NO_PREFETCH", "no_prefetch"), "backward_prefetch", None, {}),
    (
        "BACKWARD_PREFETCH",
        ("BACKWARD_PRE", "backward_pre", "1"),
        "backward_prefetch",
        "BACKWARD_PRE",
        {},
    ),
    ("BACKWARD_PREFETCH", ("BACKWARD_POST", "2"), "backward_prefetch", "BACKWARD_POST", {}),
    *(
        ("STATE_DICT_TYPE", (name, name.lower(), str(number)), "state_dict_type", name, {})
        for number, name in enumerate((_FULL, _LOCAL, _SHARDED), 1)
    ),
    *(
        (name, spellings, name.lower(), value, {})
        for name in ("FORWARD_PREFETCH", "USE_ORIG_PARAMS", "CPU_RAM_EFFICIENT_LOADING")
        for spellings, value in ((_TRUE, True), (_FALSE, False))
        if (name, value) != ("CPU_RAM_EFFICIENT_LOADING", True)
    ),
    ("SYNC_MODULE_STATES", _FALSE, "sync_module_states", False, {}),
    ("ACTIVATION_CHECKPOINTING", _TRUE, "activation_checkpointing", True, _TRANSFORMER),
    ("ACTIVATION_CHECKPOINTING", _FALSE, "activation_checkpointing", False, {}),
    (
        "ACTIVATION_CHECKPOINTING_OFFLOAD",
        _TRUE,
        "activation_checkpointing_offload",
        True,
        {**_V2, **_TRANSFORMER, "FSDP_ACTIVATION_CHECKPOINTING": "true"},
    ),
    ("IGNORED_MODULES", (r".*\.head",), "ignored_modules", r".*\.head", {}),
]
# The real plugin can't be built with these where there is no accelerator.
OURS_ALONE: list[tuple[str, tuple[str, ...], str, Any, dict[str, str]]] = [
    ("SYNC_MODULE_STATES", _TRUE, "sync_module_states", True, {}),
    (
        "CPU_RAM_EFFICIENT_LOADING",
        _TRUE,
        "cpu_ram_efficient_loading",
        True,
        {"FSDP_SYNC_MODULE_STATES": "true"},
    ),
]

# Builds the real plugin in each environment; its values as JSON has them.
REAL = """
import json, os, sys
from accelerate import FullyShardedDataParallelPlugin

for environment, setting in json.load(sys.stdin):
    os.environ.update(environment)
    print(json.dumps(getattr(FullyShardedDataParallelPlugin(), setting), default=repr))
    for name in [name for name in os.environ if name.startswith("FSDP_")]:
        del os.environ[name]
"""


def _cases(table: list[tuple[str, tuple[str, ...], str, Any, dict[str, str]]]) -> list[Any]:
    return [
        pytest.param({"FSDP_" + name: text, **beside}, setting, held, id=f"{name}={text}-{number}")
        for number, (name, spellings, setting, held, beside) in enumerate(table)
        for text in spellings
    ]


def _plain(value: object) -> object:
    """Say what a setting holds as the table does."""
    if isinstance(value, tuple):
        return list(value)
    if hasattr(value, "offload_params"):
        return value.offload_params
    kind = type(value).__name__
    if kind.endswith("OffloadPolicy"):
        return kind == "CPUOffloadPolicy"
    return value.name.lstrip("_") if hasattr(value, "name") else value


@pytest.mark.parametrize(("environment", "setting", "held"), _cases(READ + OURS_ALONE))
def test_ours(environment: dict[str, str], setting: str, held: object) -> None:
    plugin = FullyShardedDataParallelPlugin.from_environment({"PATH": "/bin", **environment})
    assert _plain(getattr(plugin, setting)) == held


@NEEDS_PEERS
def test_the_real_plugin_reads_the_same() -> None:
    cases = [case.values for case in _cases(READ)]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("FSDP_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REAL],
        input=json.dumps([case[:2] for case in cases]),
        env=environ | {"PYTHONPATH": str(IMPLEMENTATIONS), "TQDM_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    real = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(real) == len(cases)
    for (environment, setting, held), theirs in zip(cases, real, strict=True):
        assert _means(theirs) == held, (environment, setting, theirs)


def _means(theirs: object) -> object:
    """Say what the real plugin holds as the table does."""
    text = str(theirs)
    if text.startswith(("<ShardingStrategy.", "<BackwardPrefetch.", "<StateDictType.")):
        return text.partition(".")[2].partition(":")[0].lstrip("_")
    for words, value in (
        ("CPUOffload(offload_params=True)", True),
        ("CPUOffload(offload_params=False)", False),
        ("CPUOffloadPolicy(", True),
        ("<function transformer_auto_wrap_policy", "transformer_based_wrap"),
        ("<function size_based_auto_wrap_policy", "size_based_wrap"),
    ):
        if text.startswith(words):
            return value
    return theirs


# What the launcher writes when nothing is chosen: all of them, whatever the version.
LAUNCHED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_OFFLOAD_PARAMS": "false",
    "FSDP_MIN_NUM_PARAMS": "100000000",
    "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE",
    "FSDP_FORWARD_PREFETCH": "false",
    "FSDP_USE_ORIG_PARAMS": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_SYNC_MODULE_STATES": "true",
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
}


def test_empty_variables_and_torchs_own_are_not_read() -> None:
    environment = {"FSDP_IGNORED_MODULES": "", "FSDP_VERSION": " ", "FSDP_USE_UNSAFE_SETATTR": "1"}
    plugin = FullyShardedDataParallelPlugin.from_environment(environment)
    assert (plugin.fsdp_version, plugin.ignored_modules) == (1, None)


@pytest.mark.parametrize("version", ["1", "2"])
def test_what_the_launcher_writes_by_itself(version: str) -> None:
    plugin = FullyShardedDataParallelPlugin.from_environment({**LAUNCHED, "FSDP_VERSION": version})
    assert plugin.fsdp_version == int(version)
    assert plugin.use_orig_params is True
    assert plugin.min_num_params is None
    assert (plugin.backward_prefetch is None) == (version == "2")


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"FSDP_SHARDING_STRATEGY": "FULL"}, "FSDP_SHARDING_STRATEGY: sharding_strategy is one of"),
        ({"FSDP_USE_ORIG_PARAMS": "maybe"}, "FSDP_USE_ORIG_PARAMS: use_orig_params is True or"),
        ({"FSDP_SHARDING_STRATEGIE": "1"}, "no setting is read from the variable FSDP_SHARDING_ST"),
        ({"FSDP_TRANSFORMER_CLS_TO_WRAP": "Block"}, "auto_wrap_policy=None and transformer_cls"),
        ({"FSDP_VERSION": "3"}, "FSDP_VERSION: fsdp_version is 1 or 2, got '3'"),
        (
            {"FSDP_RESHARD_AFTER_FORWARD": "some"},
            "FSDP_RESHARD_AFTER_FORWARD: reshard_after_forward with fsdp_version 1 is one of FULL",
        ),
    ],
)
def test_what_cannot_be_is_refused(environment: dict[str, str], says: str) -> None:
    with pytest.raises(PluginError) as raised:
        FullyShardedDataParallelPlugin.from_environment(environment)
    assert str(raised.value).startswith(says)


def test_strategy_that_accelerate_config_writes_and_the_launcher_overrules_is_told() -> None:
    written = {**LAUNCHED, "FSDP_RESHARD_AFTER_FORWARD": "shard_grad_op"}
    with pytest.raises(PluginError) as raised:
        FullyShardedDataParallelPlugin.from_environment(written)
    variables = "FSDP_SHARDING_STRATEGY=FULL_SHARD, FSDP_RESHARD_AFTER_FORWARD=shard_grad_op"
    assert str(raised.value).endswith(f"give one (from {variables})")
    del written["FSDP_SHARDING_STRATEGY"]
    plugin = FullyShardedDataParallelPlugin.from_environment(written)
    assert plugin.sharding_strategy is ShardingStrategy.SHARD_GRAD_OP
