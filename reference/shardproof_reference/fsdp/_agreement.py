"""Ranks that don't wrap the same are refused by all of them, before one waits for another."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from shardproof_reference.errors import CheckpointError, WrapError
from shardproof_reference.fsdp._reading import READERS
from shardproof_reference.fsdp._ties import memory

# Functions and modules; what they do shows in the units and in what is ignored.
_NOT_COMPARED = ("auto_wrap_policy", "param_init_fn", "ignored_modules")


def agree(
    groups: Iterable[dist.ProcessGroup | None], facts: Sequence[str], refusal: Exception | None
) -> None:
    """Refuse on every rank what one of them refuses, or what they don't have in common; collective.

    Only digests are exchanged as long as they are equal.

    Args:
        groups: Groups of ranks that together connect all that share the model, as the dimensions
            of a mesh do; what is found in one is told in the next.
        facts: What this rank is about to wrap, and how.
        refusal: Why this rank can't.

    Raises:
        WrapError: Naming the rank, and the first fact in which it differs.
    """
    told = None
    if refusal is not None:
        kind = "" if isinstance(refusal, CheckpointError) else f"{type(refusal).__name__}: "
        told = f"rank {dist.get_rank()}: {kind}{refusal}"
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    for group in groups:
        every = _gather((told, digest), group)
        told = next((theirs for theirs, _ in every if theirs), None)
        if told is None and any(theirs != digest for _, theirs in every):
            told = _difference(_gather(facts, group), group)
    if refusal is not None:
        raise refusal
    if told is not None:
        raise WrapError(told)


def any_rank(groups: Iterable[dist.ProcessGroup | None], mine: bool) -> bool:
    """Tell whether something is so on any rank; collective, in groups as `agree` has them."""
    for group in groups:
        mine = any(_gather(mine, group))
    return mine


def facts(
    plugin: Any,
    model: nn.Module,
    mesh: DeviceMesh | None,
    units: Iterable[nn.Module],
    ignored: Iterable[nn.Module],
) -> Iterator[str]:
    """Yield what ranks have to have in common; not the values of tensors, nor where they are.

    That includes which tensors are one: each is broadcast once.
    """
    for name in READERS:
        if name not in _NOT_COMPARED:
            yield f"{name}={getattr(plugin, name)!r}"
    if mesh is None:
        yield "device_mesh=None"
    else:
        yield f"device_mesh={mesh.device_type} {mesh.mesh_dim_names} {mesh.mesh.tolist()}"
    names = {module: name for name, module in model.named_modules()}
    yield from (f"unit {names[module]}" for module in units)
    yield from sorted(f"ignored module {names[module]}" for module in ignored)
    first: dict[Hashable, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        how = "trainable" if parameter.requires_grad else "frozen"
        what = f"{tuple(parameter.shape)} {parameter.dtype} {how}"
        yield f"parameter {name} {_said_once(first, memory(parameter), name, what)}"
    for place, module in model.named_modules(remove_duplicate=False):
        for own, buffer in module._buffers.items():
            if buffer is not None:
                how = "not saved" if own in module._non_persistent_buffers_set else "saved"
                what = f"{tuple(buffer.shape)} {buffer.dtype} {how}"
                name = f"{place}.{own}".lstrip(".")
                yield f"buffer {name} {_said_once(first, id(buffer), name, what)}"


def _said_once(first: dict[Hashable, str], tensor: Hashable, name: str, what: str) -> str:
    """Return what a tensor is, or the name under which that was said."""
    one = first.setdefault(tensor, name)
    return what if one == name else f"is {one}"


def _gather(mine: Any, group: dist.ProcessGroup | None) -> list[Any]:
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    return every


def _difference(every: Sequence[Sequence[str]], group: dist.ProcessGroup | None) -> str:
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    for rank, theirs in zip(ranks, every, strict=True):
        for first, other in zip_longest(every[0], theirs, fillvalue="nothing more"):
            if first != other:
                return (
                    f"rank {rank} doesn't wrap what rank {ranks[0]} does: it has {other} "
                    f"in place of {first}"
                )
    raise AssertionError("only called where ranks differ")
