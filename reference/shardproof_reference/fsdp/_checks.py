"""What only shows with the model, the mesh and the device; refused before any is changed."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, StateDictType
from torch.nn.parameter import is_lazy

from shardproof_reference.errors import WrapError
from shardproof_reference.fsdp._reading import HYBRID
from shardproof_reference.fsdp._ties import is_dense, memory
from shardproof_reference.fsdp._units import Placed, placed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def refuse_mesh(plugin: Any, mesh: DeviceMesh | None) -> None:
    """Refuse a mesh that the settings can't work with.

    Raises:
        WrapError: Naming the setting, what was found and what is wanted.
    """
    found = "none" if mesh is None else f"{mesh.ndim}-D"
    two = mesh is not None and mesh.ndim == 2
    if plugin.fsdp_version == 1 and (plugin.sharding_strategy in HYBRID) != two:
        wanted = "no 2-D mesh" if two else "a 2-D device mesh (replicate, shard)"
        name = plugin.sharding_strategy.name.lstrip("_")
        raise WrapError(f"sharding_strategy={name} needs {wanted}, found {found}")
    if mesh is not None and mesh.ndim > 2:
        raise WrapError(f"device_mesh is 1-D (shard) or 2-D (replicate, shard), found {found}")
    if mesh is not None and two and plugin.fsdp_version == 2 and not mesh.mesh_dim_names:
        raise WrapError("a 2-D device_mesh needs mesh_dim_names with fsdp_version=2")
    if mesh is not None and mesh.mesh_dim_names == ("shard", "replicate"):
        raise WrapError(
            "device_mesh has the dimensions (shard, replicate); the first one replicates, so it is "
            "(replicate, shard)"
        )
    ranks = dist.get_world_size() if mesh is None else mesh.size(-1)
    if ranks % (plugin.reshard_after_forward or 1):  # True is 1
        raise WrapError(
            f"reshard_after_forward={plugin.reshard_after_forward} doesn't divide the {ranks} "
            "ranks that a parameter is sharded over"
        )
    if mesh is not None and plugin.state_dict_type is StateDictType.LOCAL_STATE_DICT:
        raise WrapError(f"state_dict_type=LOCAL_STATE_DICT needs no device_mesh, found {found}")


def refuse_device(plugin: Any, device: torch.device) -> None:
    """Refuse a device that the settings can't work with.

    Raises:
        WrapError: Naming the setting and the device.
    """
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


def refuse_model(model: nn.Module, sync: bool) -> None:
    """Refuse a model that is no plain one.

    Args:
        model: The model.
        sync: Whether its tensors are to be broadcast.

    Raises:
        WrapError: It is no module of Python, is sharded already, has no shapes yet, or tensors that
            can't be broadcast.
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise WrapError(f"the model is a {type(model).__name__}; wrap takes a torch.nn.Module")
    wrapped = [m for m in model.modules() if isinstance(m, FullyShardedDataParallel | FSDPModule)]
    if wrapped:
        raise WrapError(f"the model is sharded already: it has a {type(wrapped[0]).__name__}")
    tensors = (*model.named_parameters(), *model.named_buffers())
    if lazy := next((name for name, tensor in tensors if is_lazy(tensor)), None):
        raise WrapError(f"{lazy} has no shape yet; run the model once, or give the shape")
    sparse = (name for name, tensor in tensors if tensor.layout is not torch.strided)
    if sync and (name := next(sparse, None)):
        raise WrapError(f"{name} is sparse, which can't be synchronized; make it dense")


def refuse_meta(plugin: Any, model: nn.Module, fills: bool) -> None:
    """Refuse tensors on the meta device that nothing gives a value.

    Args:
        plugin: The plugin.
        model: The model.
        fills: Whether this rank gets the values of another.

    Raises:
        WrapError: Naming the first of them.
    """
    if plugin.param_init_fn is not None:
        return
    tensors = [*model.named_parameters(), *model.named_buffers()]
    if not fills and (name := next((name for name, tensor in tensors if tensor.is_meta), None)):
        do = (
            "the others are to have it from this rank; load it here"
            if plugin.sync_module_states
            else "give param_init_fn to make it, or sync_module_states to have it from rank 0"
        )
        raise WrapError(f"{name} is on the meta device; {do}")
    for place, module in model.named_modules():
        buffers = set(module.buffers(recurse=False))
        for own, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_meta and value not in buffers:
                raise WrapError(
                    f"{f'{place}.{own}'.lstrip('.')} is a tensor on the meta device, but no "
                    "parameter and no buffer, so that nothing gives it a value; register it as a "
                    "buffer"
                )


def refuse_checkpointing(model: nn.Module, units: Collection[nn.Module]) -> None:
    """Refuse activation checkpointing that would do nothing, or the same twice.

    Raises:
        WrapError: Saying which.
    """
    if not units:
        raise WrapError(
            "activation_checkpointing=True would do nothing: auto_wrap_policy finds no unit in "
            "the model"
        )
    for name, module in model.named_modules():
        if isinstance(module, CheckpointWrapper):
            raise WrapError(
                f"activation_checkpointing=True with a model whose {name} is checkpointed already; "
                "leave one of them out"
            )


def refuse_units(
    plugin: Any, model: nn.Module, inner: Collection[nn.Module], ignored: Collection[nn.Module]
) -> None:
    """Refuse units that torch can't shard, or would shard into two copies of one parameter.

    Raises:
        WrapError: Naming the parameters, their units and what to do.
    """
    names = {module: name or "root" for name, module in model.named_modules()}
    first: dict[Hashable, Placed] = {}
    for one in placed(model, set(inner), model):
        other = first.setdefault(memory(one.parameter), one)
        if other.unit is not one.unit and not {other.module, one.module} <= set(ignored):
            raise WrapError(
                f"{other.name} and {one.name} are one parameter, but lie in the units "
                f"{names[other.unit]} and {names[one.unit]}; choose units that have both "
                "(auto_wrap_policy, transformer_cls_names_to_wrap)"
            )
        if other.parameter.requires_grad != one.parameter.requires_grad:
            raise WrapError(
                f"{other.name} and {one.name} share their memory, but only one of them is "
                "trainable; set requires_grad of both, or clone one"
            )
    whole = {parameter for module in ignored for parameter in module.parameters()}
    units: dict[nn.Module, list[Placed]] = {}
    for one in first.values():
        if one.parameter not in whole:
            units.setdefault(one.unit, []).append(one)
    if whole and not units:
        raise WrapError(f"ignored_modules={plugin.ignored_modules!r} leaves nothing to shard")
    for unit in inner:
        if isinstance(unit, nn.ModuleList | nn.ModuleDict):
            raise WrapError(
                f"auto_wrap_policy makes a unit of {names[unit]}, a {type(unit).__name__}, but "
                "that is never called; choose what is in it"
            )
    for unit, members in units.items():
        _refuse_unit(names[unit], members, plugin.fsdp_version, bool(plugin.use_orig_params))


def _refuse_unit(unit: str, members: Iterable[Placed], version: int, original: bool) -> None:
    """Refuse what torch can't shard as one unit; it tells some only at the first forward."""
    for name, parameter, *_ in members:
        if parameter.grad is not None:
            raise WrapError(f"{name} has a gradient, which a shard would lose; zero_grad() first")
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise WrapError(
                f"{name} has hooks, which a shard of it would not call; register them when the "
                "model is wrapped"
            )
        if parameter.ndim == 0:
            raise WrapError(
                f"{name} has no dimension to shard along; give it the shape (1,), or ignore its "
                "module"
            )
        if not parameter.is_contiguous() and (version == 2 or not is_dense(parameter)):
            raise WrapError(f"{name} is not contiguous in memory; make it so with contiguous()")
        if version == 1 and not parameter.is_floating_point():
            raise WrapError(
                f"{name} is of {parameter.dtype}, but FSDP1 shards floating-point parameters only; "
                "ignore its module, or use fsdp_version=2"
            )
    if version == 1 and not any(one.parameter.numel() for one in members):
        raise WrapError(
            f"the unit {unit} has parameters without elements only, which FSDP1 can't shard; "
            "wrap it in one unit with others, or ignore its module"
        )
    # What is frozen has no gradient to be reduced with the others'.
    counted = [one for one in members if version == 1 or one.parameter.requires_grad]
    _refuse_mixture(unit, counted, "dtype", "cast one of them")
    if version == 1 and not original:
        _refuse_mixture(unit, counted, "requires_grad", "set use_orig_params=True")


def _refuse_mixture(unit: str, members: Iterable[Placed], what: str, do: str) -> None:
    first: dict[object, str] = {}
    for name, parameter, *_ in members:
        first.setdefault(getattr(parameter, what), name)
    if len(first) > 1:
        (one, name), (other, other_name), *_ = first.items()
        raise WrapError(
            f"{name} has {what} {one} and {other_name} {other}, but both lie in the unit {unit}, "
            f"which can have one only; {do}, or make them two units"
        )
