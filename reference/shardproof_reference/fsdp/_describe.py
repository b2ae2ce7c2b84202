"""What a model's units really are, read from the live model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import FlatParameter, FSDPModule, FullyShardedDataParallel

from shardproof_reference.errors import WrapError

if TYPE_CHECKING:
    from rich.table import Table

_ALWAYS = ("name", "kind", "elements", "local_elements")
_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of a sharded model, as this rank has it.

    Attributes:
        name: Its module's name; the root's is empty.
        kind: Its module's class.
        elements: How many elements its parameters have.
        local_elements: How many of them this rank holds, padding included.
        shards: Over how many ranks they are cut.
        dtype: What the shards are.
        compute_dtype: What forward and backward compute in.
        reduce_dtype: What gradients are reduced in.
        device: Where the shards are.
        checkpointed: Whether its activations are computed again.
    """

    name: str
    kind: str
    elements: int
    local_elements: int
    shards: int
    dtype: str
    compute_dtype: str
    reduce_dtype: str
    device: str
    checkpointed: bool


@dataclass(frozen=True, slots=True)
class Description:
    """The units of a model, the root first, and the parameters that are in none.

    `rich.print` shows it as a table.
    """

    units: tuple[Unit, ...]
    whole: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, which JSON can hold."""
        return {"units": [asdict(unit) for unit in self.units], "whole": list(self.whole)}

    def __rich__(self) -> Table:
        """Return a table of what differs between units; what is the same in all stands below."""
        from rich.table import Table

        rows = self.as_dict()["units"]
        same = {
            name: rows[0][name]
            for name in (rows[0] if len(rows) > 1 else ())
            if name not in _ALWAYS and all(row[name] == rows[0][name] for row in rows)
        }
        said = [f"{_header(name)} {value}" for name, value in same.items()]
        said += [f"whole on every rank: {', '.join(self.whole)}"] if self.whole else []
        table = Table(caption="; ".join(said), caption_justify="left")
        for name in rows[0] if rows else ():
            if name not in same:
                table.add_column(_header(name), overflow="fold")
        for row in rows:
            row["name"] = row["name"] or "(root)"
            table.add_row(*(str(value) for name, value in row.items() if name not in same))
        return table


def describe(model: nn.Module) -> Description:
    """Describe a sharded model; see `FullyShardedDataParallelPlugin.describe`."""
    if not any(isinstance(one, FullyShardedDataParallel | FSDPModule) for one in model.modules()):
        raise WrapError(f"the {type(model).__name__} is not sharded; describe what wrap returns")
    units = tuple(_units(model))
    return Description(units, tuple(_whole(model)))


def _units(model: nn.Module) -> Iterator[Unit]:
    for name, module in model.named_modules():
        inside: nn.Module = module
        facts: dict[str, Any] | None = None
        if isinstance(module, FullyShardedDataParallel):
            inside = module._fsdp_wrapped_module
            facts = _of_flat(module._handle)
        elif isinstance(module, FSDPModule):
            facts = _of_group(module._get_fsdp_state()._fsdp_param_group)
        if facts is not None:
            kept = getattr(inside, _WRAPPERS[1], None)
            kind = type(inside if kept is None else kept).__name__.removeprefix("FSDP")
            yield Unit(_clean(name), kind, checkpointed=kept is not None, **facts)


def _of_flat(handle: Any) -> dict[str, Any] | None:
    """Return the facts of a unit of FSDP1; one without parameters has no handle."""
    if handle is None:
        return None
    flat = handle.flat_param
    return {
        "elements": sum(
            numel
            for numel, padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True)
            if not padding
        ),
        "local_elements": getattr(flat, "_local_shard", flat).numel(),
        "shards": handle.world_size if handle.uses_sharded_strategy else 1,
        "dtype": _word(handle._orig_param_dtype),
        "compute_dtype": _word(handle._fwd_bwd_param_dtype),
        "reduce_dtype": _word(handle._reduce_dtype),
        "device": str(flat.device),
    }


def _of_group(group: Any) -> dict[str, Any] | None:
    """Return the facts of a unit of FSDP2; one without parameters has no group."""
    if group is None:
        return None
    parameters = [one.sharded_param for one in group.fsdp_params]
    policy = group.mp_policy
    return {
        "elements": sum(one.numel() for one in parameters),
        "local_elements": sum(one._sharded_param_data.numel() for one in group.fsdp_params),
        "shards": group.mesh_info.shard_mesh_size,
        "dtype": _words(one.dtype for one in parameters),
        "compute_dtype": _words(policy.param_dtype or one.dtype for one in parameters),
        "reduce_dtype": _words(
            policy.reduce_dtype or policy.param_dtype or one.dtype for one in parameters
        ),
        "device": str(parameters[0].device),
    }


def _whole(model: nn.Module) -> Iterator[str]:
    """Yield the parameters that are in no unit."""
    in_units = {id(parameter) for module in model.modules() for parameter in _managed(module)}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, FlatParameter) and id(parameter) not in in_units:
            yield _clean(name)


def _managed(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a unit, as the model has them just now."""
    if isinstance(module, FullyShardedDataParallel) and module._handle:
        yield from module._handle.flat_param._params or ()
    if isinstance(module, FSDPModule):
        group = module._get_fsdp_state()._fsdp_param_group
        for one in group.fsdp_params if group else ():
            yield getattr(one._module_info.module, one._module_info.param_name)


def _header(name: str) -> str:
    return name.replace("_", " ")


def _words(dtypes: Any) -> str:
    return ", ".join(dict.fromkeys(_word(one) for one in dtypes))


def _word(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
