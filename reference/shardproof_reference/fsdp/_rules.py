"""Settings that can't work together. One table: the reasons are read by people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import ShardingStrategy, StateDictType

from shardproof_reference.errors import PluginError
from shardproof_reference.fsdp._reading import HYBRID, SIZE, TRANSFORMER

_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
_LOCAL = StateDictType.LOCAL_STATE_DICT


def check(settings: Mapping[str, Any]) -> None:
    """Refuse settings of which two can't work together.

    Raises:
        PluginError: Naming both, what they hold and what to do.
    """
    for pair, reason, applies in _RULES:
        if applies(SimpleNamespace(**settings)):
            held = " and ".join(f"{name}={_say(settings[name])}" for name in pair)
            raise PluginError(f"{held} can't work together: {reason}")


def _say(value: object) -> str:
    return str(getattr(value, "name", repr(value)))


def _in_version(version: int, field: str, is_set: Callable[[Any], bool], reason: str) -> Any:
    """Return the rule that a setting of one version is not given with the other."""
    return (
        ("fsdp_version", field),
        reason,
        lambda s: s.fsdp_version != version and is_set(getattr(s, field)),
    )


def _given(value: object) -> bool:
    return value is not None


_RULES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    _in_version(
        1,
        "sharding_strategy",
        _given,
        "fully_shard has reshard_after_forward, and a 2-D device mesh in place of HYBRID",
    ),
    _in_version(1, "backward_prefetch", _given, "fully_shard prefetches by itself; leave it out"),
    _in_version(1, "forward_prefetch", bool, "fully_shard has no such switch; leave it out"),
    _in_version(
        1,
        "limit_all_gathers",
        lambda value: not value,
        "fully_shard limits them by itself; leave it out",
    ),
    _in_version(
        1,
        "use_orig_params",
        lambda value: not value,
        "fully_shard always keeps the original parameters; leave it out",
    ),
    _in_version(2, "activation_checkpointing_offload", bool, "only version 2 can do it"),
    (
        ("activation_checkpointing", "activation_checkpointing_offload"),
        "what isn't checkpointed has no input to offload",
        lambda s: s.activation_checkpointing_offload and not s.activation_checkpointing,
    ),
    (
        ("activation_checkpointing", "auto_wrap_policy"),
        "the units of a policy are what is checkpointed; choose one",
        lambda s: s.activation_checkpointing and s.auto_wrap_policy is None,
    ),
    (
        ("auto_wrap_policy", "transformer_cls_names_to_wrap"),
        f"only {TRANSFORMER} reads class names; choose it, or leave them out",
        lambda s: s.transformer_cls_names_to_wrap is not None and s.auto_wrap_policy != TRANSFORMER,
    ),
    (
        ("auto_wrap_policy", "min_num_params"),
        f"only {SIZE} reads a number of parameters; choose it, or leave the number out",
        lambda s: s.min_num_params is not None and s.auto_wrap_policy != SIZE,
    ),
    (
        ("auto_wrap_policy", "min_num_params"),
        f"{SIZE} needs to know from how many parameters on a module is a unit",
        lambda s: s.min_num_params is None and s.auto_wrap_policy == SIZE,
    ),
    (
        ("fsdp_version", "state_dict_type"),
        "fully_shard has no LOCAL state dict; use SHARDED_STATE_DICT",
        lambda s: s.fsdp_version == 2 and s.state_dict_type is _LOCAL,
    ),
    (
        ("sharding_strategy", "state_dict_type"),
        "HYBRID needs a device mesh, with which torch has no LOCAL state dict",
        lambda s: s.sharding_strategy in HYBRID and s.state_dict_type is _LOCAL,
    ),
    (
        ("sharding_strategy", "state_dict_type"),
        "nothing is sharded, so torch stores the full state; ask for FULL_STATE_DICT",
        lambda s: s.sharding_strategy is ShardingStrategy.NO_SHARD and s.state_dict_type is _LOCAL,
    ),
    (
        ("use_orig_params", "state_dict_type"),
        "LOCAL stores flat parameters, which original ones hide",
        lambda s: s.fsdp_version == 1 and s.use_orig_params and s.state_dict_type is _LOCAL,
    ),
    (
        ("fsdp_version", "ignored_modules"),
        "fully_shard can ignore parameters since torch 2.7",
        lambda s: s.fsdp_version == 2 and s.ignored_modules is not None and _TORCH < (2, 7),
    ),
)
