"""State-dict types and the two configs that belong to each."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictType,
)

from shardproof_reference.fsdp._values import member, refuse

_FULL: dict[str, Any] = {"offload_to_cpu": True, "rank0_only": True}
_SHARDED: dict[str, Any] = {"offload_to_cpu": True}
_KINDS: dict[
    StateDictType, tuple[type[StateDictConfig], type[OptimStateDictConfig], dict[str, Any]]
]
_KINDS = {
    StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig, _FULL),
    StateDictType.SHARDED_STATE_DICT: (
        ShardedStateDictConfig,
        ShardedOptimStateDictConfig,
        _SHARDED,
    ),
    StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig, {}),
}
_NAMES = {kind.name: kind for kind in StateDictType}
_DEFAULT = {1: StateDictType.FULL_STATE_DICT, 2: StateDictType.SHARDED_STATE_DICT}


def read(value: object, version: int) -> StateDictType:
    """Read a state-dict type; None is the version's default."""
    if value is None:
        return _DEFAULT[version]
    return member("state_dict_type", value, StateDictType, _NAMES)


def configs(
    kind: StateDictType, model: object, optimizer: object
) -> tuple[StateDictConfig, OptimStateDictConfig]:
    """Return the configs of a type: the given ones, which have to be of it, else what it needs.

    Full state is gathered into rank 0's CPU memory, and shards go to each rank's.
    """
    of_model, of_optimizer, arguments = _KINDS[kind]
    if model is not None and not isinstance(model, of_model):
        raise refuse("state_dict_config", model, f"a {of_model.__name__} with {kind.name}")
    if optimizer is not None and not isinstance(optimizer, of_optimizer):
        wanted = f"a {of_optimizer.__name__} with {kind.name}"
        raise refuse("optim_state_dict_config", optimizer, wanted)
    return (
        of_model(**arguments) if model is None else model,
        of_optimizer(**arguments) if optimizer is None else optimizer,
    )
