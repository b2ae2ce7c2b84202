"""Tensors of a model that share their memory: what is one stays one, the rest is refused.

Sharding copies a parameter. Another that looks at the same memory, as after
`load_state_dict(assign=True)` or `nn.Parameter(embedding.weight.data)`, would be trained apart from
it from then on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

import torch
from torch import nn

from shardproof_reference.errors import WrapError


class _Range(NamedTuple):
    start: int
    end: int
    name: str
    tensor: torch.Tensor


def memory(tensor: torch.Tensor) -> Hashable:
    """Return what is equal for two tensors if they show the same elements in the same way."""
    if not tensor.numel() or tensor.layout is not torch.strided:
        return id(tensor)
    place = _storage(tensor), tensor.storage_offset(), tensor.dtype
    return (*place, tuple(tensor.shape), tensor.stride())


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's elements lie side by side, in whatever order of its dimensions."""
    start, end, *_ = _range("", tensor)
    return end - start == tensor.numel() * tensor.element_size()


def tie(model: nn.Module) -> None:
    """Make one parameter of those that are one memory, under all of its names."""
    first: dict[Hashable, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = first.setdefault(memory(parameter), parameter)


def refuse_overlaps(model: nn.Module, device: torch.device) -> None:
    """Refuse tensors that share some memory, which wrapping would part.

    Parameters of all the same memory are made one, and buffers can share it where they stay.

    Args:
        model: The model.
        device: Where its tensors go.

    Raises:
        WrapError: Naming both.
    """
    parameters = {memory(tensor): (name, tensor) for name, tensor in model.named_parameters()}
    buffers = [(name, tensor) for name, tensor in model.named_buffers()]
    stored: dict[int, list[_Range]] = {}
    for name, tensor in (*parameters.values(), *buffers):
        if tensor.numel() and tensor.layout is torch.strided:
            stored.setdefault(_storage(tensor), []).append(_range(name, tensor))
    for ranges in stored.values():
        for one, other in _overlapping(sorted(ranges, key=lambda found: found.start)):
            pair = one.tensor, other.tensor
            if any(isinstance(tensor, nn.Parameter) or tensor.device != device for tensor in pair):
                raise WrapError(
                    f"{one.name} and {other.name} share memory, which wrapping would part; make "
                    "them one tensor, or clone one"
                )


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # its address, also of one on the meta device


def _range(name: str, tensor: torch.Tensor) -> _Range:
    size = tensor.element_size()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * size
    return _Range(start, start + (last + 1) * size, name, tensor)


def _overlapping(ranges: list[_Range]) -> Iterator[tuple[_Range, _Range]]:
    """Yield the pairs of one storage that have an element in common, given in order."""
    before: list[_Range] = []
    for found in ranges:
        before = [one for one in before if one.end > found.start]
        yield from ((one, found) for one in before if _meet(one.tensor, found.tensor))
        before.append(found)


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors whose ranges overlap do; columns of one matrix don't."""
    if (one.is_contiguous() and other.is_contiguous()) or one.dtype != other.dtype:
        return True
    seen = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    seen.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(seen.as_strided(other.shape, other.stride(), other.storage_offset()).any())
