"""Sharding a model as the plugin says: unit by unit, the same way on CPU and GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    StateDictType,
    fully_shard,
)

from shardproof_reference.errors import WrapError
from shardproof_reference.fsdp import _units
from shardproof_reference.fsdp._reading import HYBRID
from shardproof_reference.fsdp._tensors import Placing

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def wrap(plugin: Any, model: nn.Module, device_mesh: DeviceMesh | None) -> nn.Module:
    """Shard a model; see `FullyShardedDataParallelPlugin.wrap`.

    Args:
        plugin: The plugin, whose settings are of wider types than what they hold.
        model: The model.
        device_mesh: The mesh, or None.
    """
    device = _device(device_mesh)
    _refuse(plugin, model, device_mesh, device)
    leave = _units.ignored(model, plugin.ignored_modules)
    decide = _units.policy(
        model,
        plugin.auto_wrap_policy,
        plugin.transformer_cls_names_to_wrap,
        plugin.min_num_params,
    )
    inner = _units.units(model, decide, leave)
    _units.refuse_ties_across(model, inner)
    if plugin.activation_checkpointing:
        if not inner:
            raise WrapError(
                "activation_checkpointing=True would do nothing: auto_wrap_policy finds no unit in "
                "the model"
            )
        inner = _checkpointed(model, inner, bool(plugin.activation_checkpointing_offload))
    placing = Placing(device, device_mesh, bool(plugin.sync_module_states), plugin.param_init_fn)
    placing.refuse_other_models(model)
    if plugin.fsdp_version == 1:
        sharded = _flat(plugin, device, device_mesh, leave)
    else:
        sharded = _fully(plugin, model, device, device_mesh, leave)
    names = {module: name for name, module in model.named_modules()}
    done: set[nn.Module] = set()
    with _without_known_warnings():
        for unit in inner:
            placing.place(names[unit], unit, done)
            done.add(_put_in_place(model, unit, sharded(unit)))
        placing.place("", model, done)
        return sharded(model)


def _device(mesh: DeviceMesh | None) -> torch.device:
    """Return where shards are computed on: this rank's GPU if the group or the mesh is of GPUs."""
    if not dist.is_initialized():
        raise WrapError("wrap needs a process group; call torch.distributed.init_process_group")
    kind = mesh.device_type if mesh is not None else ""
    if kind == "cuda" or (not kind and "nccl" in dist.get_backend_config().lower()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(kind or "cpu")


def _refuse(
    plugin: Any,
    model: nn.Module,
    mesh: DeviceMesh | None,
    device: torch.device,
) -> None:
    """Refuse what only shows with the model, the mesh and the device at hand."""
    wrapped = [m for m in model.modules() if isinstance(m, FullyShardedDataParallel | FSDPModule)]
    if wrapped:
        raise WrapError(f"the model is sharded already: it has a {type(wrapped[0]).__name__}")
    found = "none" if mesh is None else f"{mesh.ndim}-D"
    two = mesh is not None and mesh.ndim == 2
    if plugin.fsdp_version == 1 and (plugin.sharding_strategy in HYBRID) != two:
        wanted = "no 2-D mesh" if two else "a 2-D device mesh (replicate, shard)"
        name = plugin.sharding_strategy.name.lstrip("_")
        raise WrapError(f"sharding_strategy={name} needs {wanted}, found {found}")
    if mesh is not None and mesh.ndim > 2:
        raise WrapError(f"device_mesh is 1-D (shard) or 2-D (replicate, shard), found {found}")
    if mesh is not None and plugin.state_dict_type is StateDictType.LOCAL_STATE_DICT:
        raise WrapError(f"state_dict_type=LOCAL_STATE_DICT needs no device_mesh, found {found}")
    if device.type != "cpu":
        return
    if plugin.fsdp_version == 1 and plugin.cpu_offload.offload_params:
        raise WrapError(
            "cpu_offload=True with fsdp_version=1 pins memory, which the device cpu has not; "
            "leave it out, shards on CPU are in CPU memory already"
        )
    if plugin.activation_checkpointing_offload:
        raise WrapError(
            "activation_checkpointing_offload=True pins memory, which the device cpu has not; "
            "leave it out"
        )


def _checkpointed(model: nn.Module, units: list[nn.Module], offload: bool) -> list[nn.Module]:
    """Put a wrapper around each unit, which computes its activations again; return the wrappers."""
    wrapped = []
    for unit in units:
        module: nn.Module = checkpoint_wrapper(unit)
        if offload:
            module = offload_wrapper(module)
        wrapped.append(_put_in_place(model, unit, module))
    return wrapped


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
    leave: set[nn.Module],
) -> Callable[[nn.Module], nn.Module]:
    """Return what makes a module a unit of FSDP1."""
    settings: dict[str, Any] = {
        "sharding_strategy": plugin.sharding_strategy,
        "backward_prefetch": plugin.backward_prefetch,
        "mixed_precision": plugin.mixed_precision_policy,
        "cpu_offload": plugin.cpu_offload,
        "limit_all_gathers": plugin.limit_all_gathers,
        "use_orig_params": plugin.use_orig_params,
        "forward_prefetch": plugin.forward_prefetch,
        "device_id": device,
        "device_mesh": mesh,
    }

    def shard(module: nn.Module) -> nn.Module:
        inside = [one for one in module.modules() if one in leave]
        return FullyShardedDataParallel(module, ignored_modules=inside or None, **settings)

    return shard


def _fully(
    plugin: Any,
    model: nn.Module,
    device: torch.device,
    mesh: DeviceMesh | None,
    leave: set[nn.Module],
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
        if leave:
            # Only now, as placing puts other parameters in the place of those on the meta device.
            own["ignored_params"] = {parameter for one in leave for parameter in one.parameters()}
        fully_shard(module, **settings, **own)
        return module

    return shard


@contextmanager
def _without_known_warnings() -> Iterator[None]:
    """Wrap without torch's warnings on NO_SHARD: it was asked for, or there is one rank."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*NO_SHARD.*deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "FSDP is switching to use `NO_SHARD`", UserWarning)
        yield
