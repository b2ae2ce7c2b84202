"""Sharding a model as the plugin says: unit by unit, the same way on CPU and GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)

from shardproof_reference.errors import WrapError
from shardproof_reference.fsdp import _agreement, _checks, _precision, _ties, _units
from shardproof_reference.fsdp._tensors import Placing


def wrap(plugin: Any, model: nn.Module, device_mesh: DeviceMesh | None) -> nn.Module:
    """Shard a model; see `FullyShardedDataParallelPlugin.wrap`.

    Args:
        plugin: The plugin, whose settings are of wider types than what they hold.
        model: The model.
        device_mesh: The mesh, or None.
    """
    device = _device(device_mesh)
    groups = [None] if device_mesh is None else device_mesh.get_all_groups()
    placing = Placing(device, groups, bool(plugin.sync_module_states), plugin.param_init_fn)
    # Of a mesh that ranks don't have in common, each would wait for others in groups of its own.
    if device_mesh is not None and device_mesh.size() == dist.get_world_size():
        groups = [None]
    try:
        plan = _plan(plugin, model, device_mesh, device)
        _checks.refuse_meta(plugin, model, placing.fills)
        facts = list(_agreement.facts(plugin, model, device_mesh, plan.units, plan.ignored))
    except Exception as error:
        _agreement.agree(groups, (), error)
        raise
    _agreement.agree(groups, facts, None)
    placing.agrees = _agreement.any_rank(groups, plugin.param_init_fn is not None)
    units = _prepared(plugin, model, plan)
    if plugin.fsdp_version == 1:
        sharded = _flat(plugin, device, device_mesh, plan)
    else:
        sharded = _fully(plugin, model, device, device_mesh, plan.ignored)
    names = {module: name for name, module in model.named_modules()}
    done: set[nn.Module] = set()
    with _without_known_warnings():
        for unit in units:
            placing.place(names[unit], unit, done)
            done.add(_put_in_place(model, unit, sharded(unit)))
        placing.place("", model, done)
        return sharded(model)


@dataclass(frozen=True)
class _Plan:
    """What is to be done with a model.

    Attributes:
        units: Its units, inner ones first, without the model itself.
        apart: Modules that mixed precision leaves alone.
        ignored: Modules that stay whole.
    """

    units: list[nn.Module]
    apart: set[nn.Module]
    ignored: set[nn.Module]


def _plan(plugin: Any, model: nn.Module, mesh: DeviceMesh | None, device: torch.device) -> _Plan:
    """Decide what is to be done, or refuse; the model is not changed."""
    _checks.refuse_mesh(plugin, mesh)
    _checks.refuse_device(plugin, device)
    _checks.refuse_model(model, bool(plugin.sync_module_states))
    _ties.refuse_overlaps(model, device)
    ignored = _units.ignored(model, plugin.ignored_modules)
    apart = _precision.apart(plugin.mixed_precision_policy, model) - ignored
    decide = _units.policy(
        model,
        plugin.auto_wrap_policy,
        plugin.transformer_cls_names_to_wrap,
        plugin.min_num_params,
    )
    units = _units.units(model, _units.also(apart, decide), ignored)
    _checks.refuse_units(plugin, model, units, ignored)
    if plugin.activation_checkpointing:
        _checks.refuse_checkpointing(model, [one for one in units if one not in apart])
    return _Plan(units, apart, ignored)


def _prepared(plugin: Any, model: nn.Module, plan: _Plan) -> list[nn.Module]:
    """Tie what is one memory, let modules compute apart, and return the units, checkpointed."""
    _ties.tie(model)
    for module in plan.apart:
        _precision.compute_apart(module, plugin.mixed_precision_policy.param_dtype)
    if not plugin.activation_checkpointing:
        return plan.units
    offload = bool(plugin.activation_checkpointing_offload)
    return [one if one in plan.apart else _checkpointed(model, one, offload) for one in plan.units]


def _device(mesh: DeviceMesh | None) -> torch.device:
    """Return where shards are computed on: this rank's GPU if the group or the mesh is of GPUs."""
    if not dist.is_initialized():
        raise WrapError("wrap needs a process group; call torch.distributed.init_process_group")
    if not isinstance(mesh, DeviceMesh | None):
        raise WrapError(f"device_mesh is a DeviceMesh or None, got {mesh!r}")
    if mesh is not None and mesh.get_coordinate() is None:
        raise WrapError(f"rank {dist.get_rank()} is not in the device mesh, and can't wrap with it")
    kind = mesh.device_type if mesh is not None else ""
    if kind == "cuda" or (not kind and "nccl" in dist.get_backend_config().lower()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(kind or "cpu")


def _checkpointed(model: nn.Module, unit: nn.Module, offload: bool) -> nn.Module:
    """Put a wrapper around a unit, which computes its activations again; return it."""
    wrapped: nn.Module = checkpoint_wrapper(unit)
    if offload:
        wrapped = offload_wrapper(wrapped)
    for module in wrapped.modules():
        if module is unit:
            break
        module.training = unit.training
    return _put_in_place(model, unit, wrapped)


def _put_in_place(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Make a module a child wherever another one was; return it."""
    if new is not old:
        for parent in list(model.modules()):
            for name, child in parent._modules.items():
                if child is old and parent is not new:
                    parent._modules[name] = new
    return new


def _flat(
    plugin: Any,
    device: torch.device,
    mesh: DeviceMesh | None,
    plan: _Plan,
) -> Callable[[nn.Module], nn.Module]:
    """Return what makes a module a unit of FSDP1."""
    settings: dict[str, Any] = {
        "sharding_strategy": plugin.sharding_strategy,
        "backward_prefetch": plugin.backward_prefetch,
        "cpu_offload": plugin.cpu_offload,
        "limit_all_gathers": plugin.limit_all_gathers,
        "use_orig_params": plugin.use_orig_params,
        "forward_prefetch": plugin.forward_prefetch,
        "device_id": device,
        "device_mesh": mesh,
    }

    def shard(module: nn.Module) -> nn.Module:
        training = module.training
        inside = [one for one in module.modules() if one in plan.ignored]
        policy = None if module in plan.apart else plugin.mixed_precision_policy
        wrapped = FullyShardedDataParallel(
            module, ignored_modules=inside or None, mixed_precision=policy, **settings
        )
        wrapped.training = training  # torch's wrappers begin as if they were to be trained
        return wrapped

    return shard


def _fully(
    plugin: Any,
    model: nn.Module,
    device: torch.device,
    mesh: DeviceMesh | None,
    ignored: set[nn.Module],
) -> Callable[[nn.Module], nn.Module]:
    """Return what applies `fully_shard` to a module."""
    offload: Any = plugin.cpu_offload
    if device.type == "cpu" and isinstance(offload, CPUOffloadPolicy):
        offload = replace(offload, pin_memory=False)  # there is nothing to copy to from there
    settings: dict[str, Any] = {
        "mesh": mesh or init_device_mesh(device.type, (dist.get_world_size(),)),
        "reshard_after_forward": plugin.reshard_after_forward,
        "offload_policy": offload,
    }
    policy: Any = plugin.mixed_precision_policy or MixedPrecisionPolicy()

    def shard(module: nn.Module) -> nn.Module:
        # What forward returns is the whole model's affair: between two units it would have to fit.
        own = {"mp_policy": policy if module is model else replace(policy, output_dtype=None)}
        if ignored:
            # Only now, as placing puts other parameters in the place of those on the meta device.
            own["ignored_params"] = {parameter for one in ignored for parameter in one.parameters()}
        attributes = {name: vars(parameter) for name, parameter in module.named_parameters()}
        fully_shard(module, **settings, **own)
        for name, parameter in module.named_parameters():
            vars(parameter).update(attributes[name])  # optimizers group by such as `no_decay`
        return module

    return shard


@contextmanager
def _without_known_warnings() -> Iterator[None]:
    """Wrap without torch's warnings on NO_SHARD: it was asked for, or there is one rank."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*NO_SHARD.*deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "FSDP is switching to use `NO_SHARD`", UserWarning)
        yield
