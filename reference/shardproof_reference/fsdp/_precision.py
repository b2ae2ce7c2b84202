"""`mixed_precision_policy`: read as the policy of the FSDP version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy
from torch.utils._pytree import tree_leaves, tree_map

from shardproof_reference.fsdp._values import dtype, flag, refuse

Policy = MixedPrecision | MixedPrecisionPolicy

_FIELD = "mixed_precision_policy"
_KIND: dict[int, type[Policy]] = {1: MixedPrecision, 2: MixedPrecisionPolicy}
# What one dtype for all means: FSDP2 has no dtype of buffers, but one of what forward returns.
_ALL = {
    1: ("param_dtype", "reduce_dtype", "buffer_dtype"),
    2: ("param_dtype", "reduce_dtype", "output_dtype"),
}


def read(value: object, version: int) -> Policy | None:
    """Read a policy: None, one dtype for all, a dict, or the version's own object."""
    if value is None:
        return None
    if isinstance(value, MixedPrecision | MixedPrecisionPolicy):
        if isinstance(value, _KIND[version]):
            read = _arguments(vars(value), version)
            return value if read == vars(value) else _KIND[version](**read)
        wanted = _KIND[version].__name__
        raise refuse(_FIELD, type(value).__name__, f"a {wanted} with fsdp_version {version}")
    if isinstance(value, Mapping):
        return _KIND[version](**_arguments(value, version))
    chosen = dtype(_FIELD, value)
    return _KIND[version](**dict.fromkeys(_ALL[version], chosen))


def apart(policy: Policy | None, model: nn.Module) -> set[nn.Module]:
    """Return the modules that a policy of FSDP1 leaves alone: batch norms, if it says nothing.

    torch does so only while it looks for the units itself.
    """
    if not isinstance(policy, MixedPrecision):
        return set()
    classes = tuple(policy._module_classes_to_ignore)
    return {module for module in model.modules() if isinstance(module, classes)}


def compute_apart(module: nn.Module, others: torch.dtype | None) -> None:
    """Let a module compute in its own dtype, and return what the others go on with.

    Args:
        module: The module.
        others: What they compute in; a module that is given floating-point tensors returns theirs.
    """
    own = (*module.parameters(), *module.buffers())
    dtype = next((one.dtype for one in own if one.is_floating_point()), torch.float32)
    given: list[torch.dtype] = []

    def enter(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        given[:] = [one.dtype for one in tree_leaves((args, kwargs)) if _is_floating(one)][:1]
        return _cast(args, dtype), _cast(kwargs, dtype)

    def leave(_: nn.Module, __: Any, result: Any) -> Any:
        dtype = given[0] if given else others
        return result if dtype is None else _cast(result, dtype)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda one: one.to(dtype) if _is_floating(one) else one, values)


def _is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _arguments(value: Mapping[str, Any], version: int) -> dict[str, Any]:
    allowed = [field.name for field in fields(_KIND[version])]
    unknown = [name for name in value if name not in allowed]
    if unknown:
        keys = f"a dict with keys of {', '.join(allowed)} with fsdp_version {version}"
        raise refuse(_FIELD, unknown[0], keys)
    return {
        name: dtype(f"{_FIELD}[{name!r}]", entry)
        if name.endswith("_dtype")
        else _other(name, entry)
        for name, entry in value.items()
    }


def _other(name: str, value: object) -> object:
    """Read what is no dtype: flags, and classes of modules that torch leaves alone."""
    if name == "_module_classes_to_ignore":
        classes = tuple(value) if isinstance(value, Iterable) else (None,)
        if not all(isinstance(one, type) for one in classes):
            raise refuse(f"{_FIELD}[{name!r}]", value, "a list of classes of modules")
        return value
    return flag(f"{_FIELD}[{name!r}]", value)
