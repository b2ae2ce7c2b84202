"""How each setting of the plugin is read: what it may be given as, and what it holds then."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    OffloadPolicy,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from shardproof_reference.errors import PluginError
from shardproof_reference.fsdp import _precision, _state_dict
from shardproof_reference.fsdp._values import count, flag, function, member, names, refuse

TRANSFORMER, SIZE, NO_WRAP = "transformer_based_wrap", "size_based_wrap", "no_wrap"
HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)

Reader = Callable[[Any, int], Any]

_STRATEGIES = {one.name.lstrip("_"): one for one in ShardingStrategy}
_PREFETCHES = {one.name: one for one in BackwardPrefetch}
# torch's functions need a class or a size, which the settings beside them give.
_POLICIES = {TRANSFORMER: transformer_auto_wrap_policy, SIZE: size_based_auto_wrap_policy}


def version(value: object) -> int:
    """Read `fsdp_version`, on which the reading of the others depends."""
    if value is None:
        return 1
    found = count("fsdp_version", value, 1)
    if found > 2:
        raise refuse("fsdp_version", value, "1 or 2")
    return found


def _strategy(value: Any, version: int) -> ShardingStrategy | None:
    if value is None:
        return ShardingStrategy.FULL_SHARD if version == 1 else None
    return member("sharding_strategy", value, ShardingStrategy, _STRATEGIES)


def strategy_of_either(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of version 1 in which `reshard_after_forward` is no sharding strategy.

    Accelerate asks for it under this name, but then takes the other's default.

    Raises:
        PluginError: Both are given and don't say the same.
    """
    given, strategy = settings["reshard_after_forward"], settings["sharding_strategy"]
    found = _reshard(given, 1)
    if found is None:
        return dict(settings)
    if strategy is not None and _strategy(strategy, 1) is not found:
        raise PluginError(
            f"reshard_after_forward={given} and sharding_strategy={strategy} can't work together: "
            "in version 1 both are the sharding strategy; give one"
        )
    return {**settings, "reshard_after_forward": None, "sharding_strategy": found}


def _reshard(value: Any, version: int) -> ShardingStrategy | bool | int | None:
    if value is None:
        return None if version == 1 else True
    if version == 1:
        field = "reshard_after_forward with fsdp_version 1"
        return member(field, value, ShardingStrategy, _STRATEGIES)
    if isinstance(value, int | str) and str(value).strip().isdecimal() and int(value) > 1:
        return int(value)
    try:
        return flag("reshard_after_forward", value)
    except PluginError as error:
        allowed = "True, False, or to how many ranks, from 2"
        raise refuse("reshard_after_forward", value, allowed) from error


def _prefetch(value: Any, _: int) -> BackwardPrefetch | None:
    if value is None or (isinstance(value, str) and value.strip().upper() == "NO_PREFETCH"):
        return None
    return member("backward_prefetch", value, BackwardPrefetch, _PREFETCHES)


def _policy(value: Any, _: int) -> str | Callable[..., Any] | None:
    if isinstance(value, str):
        word = value.strip().lower()
        if word not in (TRANSFORMER, SIZE, NO_WRAP):
            allowed = f"one of {TRANSFORMER}, {SIZE}, {NO_WRAP}, or a function"
            raise refuse("auto_wrap_policy", value, allowed)
        return None if word == NO_WRAP else word
    for word, theirs in _POLICIES.items():
        if value is theirs:
            return word
    return None if value is None else _deciding(value)


def _deciding(value: object) -> Callable[..., Any]:
    """Read a policy that is a function; as it is called tells before the first model does."""
    found = function("auto_wrap_policy", value)
    try:
        signature = inspect.signature(found)
    except ValueError:  # one written in C has none
        return found
    try:
        signature.bind(module=None, recurse=True, nonwrapped_numel=0)
    except TypeError as error:
        allowed = f"a function of module, recurse and nonwrapped_numel ({error})"
        raise refuse("auto_wrap_policy", value, allowed) from error
    return found


def _offload(value: Any, version: int) -> CPUOffload | OffloadPolicy:
    kind = CPUOffload if version == 1 else OffloadPolicy
    value = False if value is None else value
    if isinstance(value, kind):
        held = {name: flag(f"cpu_offload.{name}", one) for name, one in vars(value).items()}
        return value if held == vars(value) else type(value)(**held)
    if isinstance(value, CPUOffload | OffloadPolicy):
        allowed = f"True, False or {kind.__name__}(...) with fsdp_version {version}"
        raise refuse("cpu_offload", value, allowed)
    wanted = flag("cpu_offload", value)
    if version == 1:
        return CPUOffload(offload_params=wanted)
    return CPUOffloadPolicy() if wanted else OffloadPolicy()


def _ignored(value: Any, _: int) -> str | tuple[nn.Module, ...] | None:
    allowed = "modules, or a regular expression that matches their names in full"
    if value is None:
        return None
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise refuse("ignored_modules", value, f"{allowed} ({error})") from error
        return value
    found = tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(module, nn.Module) for module in found):
        raise refuse("ignored_modules", value, allowed)
    return found


def _flag(field: str, default: bool | None = None) -> Reader:
    return lambda value, _: default if value is None else flag(field, value)


def _optional(read: Callable[[str, Any], Any], field: str) -> Reader:
    return lambda value, _: None if value is None else read(field, value)


READERS: dict[str, Reader] = {
    "fsdp_version": lambda value, _: version(value),
    "sharding_strategy": _strategy,
    "reshard_after_forward": _reshard,
    "backward_prefetch": _prefetch,
    "mixed_precision_policy": _precision.read,
    "auto_wrap_policy": _policy,
    "cpu_offload": _offload,
    "ignored_modules": _ignored,
    "state_dict_type": _state_dict.read,
    # These two are read together with their type.
    "state_dict_config": lambda value, _: value,
    "optim_state_dict_config": lambda value, _: value,
    "limit_all_gathers": _flag("limit_all_gathers", True),
    "use_orig_params": lambda value, version: (
        version == 2 if value is None else flag("use_orig_params", value)
    ),
    "param_init_fn": _optional(function, "param_init_fn"),
    "sync_module_states": _flag("sync_module_states", False),
    "forward_prefetch": _flag("forward_prefetch", False),
    "activation_checkpointing": _flag("activation_checkpointing", False),
    "activation_checkpointing_offload": _flag("activation_checkpointing_offload", False),
    "cpu_ram_efficient_loading": _flag("cpu_ram_efficient_loading"),
    "transformer_cls_names_to_wrap": _optional(names, "transformer_cls_names_to_wrap"),
    "min_num_params": _optional(lambda field, value: count(field, value, 1), "min_num_params"),
}
