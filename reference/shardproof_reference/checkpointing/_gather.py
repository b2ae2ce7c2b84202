"""Whole tensors on rank 0 out of every rank's boxes, and back; one message for each rank.

torch's own gathering isn't used: on a CPU it hands out views of one buffer for the optimizer
states of FSDP1, or of freed memory. A rank needs memory for its boxes twice while it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

import torch
import torch.distributed as dist

from shardproof_reference.checkpointing._collective import group, wire_device
from shardproof_reference.checkpointing._entries import Entries, Path, TensorSpec, key_of
from shardproof_reference.checkpointing._pieces import Part, Shape, bytes_of
from shardproof_reference.errors import SaveError

Box: TypeAlias = tuple[Shape, Shape]
Tensors: TypeAlias = dict[Path, torch.Tensor]
Layout: TypeAlias = dict[Path, tuple[TensorSpec, list[Box]]]


def gather(entries: Entries) -> Tensors:
    """Put whole tensors together in rank 0's CPU memory; collective.

    Returns:
        On rank 0 every tensor, elsewhere nothing.

    Raises:
        SaveError: The ranks' boxes leave a gap or overlap; on every rank.
    """
    layouts = _share(entries)
    owned = _owned(layouts)
    boxes, rank = _boxes(entries), dist.get_rank()
    if rank != 0:
        _send([boxes[path, box].tensor for path, box in owned[rank]], 0)
        return {}
    whole = {
        path: torch.empty(specification.shape, dtype=specification.dtype)
        for layout in layouts
        for path, (specification, _) in layout.items()
    }
    for path, box in owned[0]:
        _narrow(whole[path], box).copy_(boxes[path, box].tensor)
    for other in range(1, len(layouts)):
        _receive([_narrow(whole[path], box) for path, box in owned[other]], other)
    return whole


def scatter(whole: Tensors, entries: Entries) -> None:
    """Copy each rank's boxes out of rank 0's whole tensors; collective.

    Args:
        whole: On rank 0 every tensor that any rank has boxes of.
        entries: This rank's boxes, which are overwritten.
    """
    layouts = _share(entries)
    if dist.get_rank() != 0:
        _receive([part.tensor for part in _boxes(entries).values()], 0)
        return
    for (path, box), part in _boxes(entries).items():
        part.tensor.copy_(_narrow(whole[path], box))
    for other in range(1, len(layouts)):
        wanted = [(path, box) for path, (_, boxes) in layouts[other].items() for box in boxes]
        _send([_narrow(whole[path], box) for path, box in wanted], other)


def _share(entries: Entries) -> list[Layout]:
    """Tell every rank what every rank holds."""
    mine: Layout = {
        path: (TensorSpec(piece.shape, piece.dtype), []) for path, piece in entries.pieces.items()
    }
    for path, box in _boxes(entries):
        mine[path][1].append(box)
    layouts: list[Layout] = [{}] * dist.get_world_size()
    dist.all_gather_object(layouts, mine, group=group())
    return layouts


def _owned(layouts: list[Layout]) -> list[list[tuple[Path, Box]]]:
    """Choose for each box the rank that gives it: of replicas, the lowest."""
    owner: dict[tuple[Path, Box], int] = {}
    missing: dict[Path, int] = {}
    for rank, layout in enumerate(layouts):
        for path, (specification, boxes) in layout.items():
            missing.setdefault(path, math.prod(specification.shape))
            for box in boxes:
                if owner.setdefault((path, box), rank) == rank:
                    missing[path] -= math.prod(box[1])
    wrong = [key_of(path) for path, count in missing.items() if count]
    if wrong:
        raise SaveError(f"the ranks don't hold each element exactly once: {', '.join(wrong)}")
    owned: list[list[tuple[Path, Box]]] = [[] for _ in layouts]
    for one, rank in owner.items():
        owned[rank].append(one)
    return owned


def _boxes(entries: Entries) -> dict[tuple[Path, Box], Part]:
    """List this rank's boxes that have elements, in the order in which they are sent."""
    return {
        (path, part.box): part
        for path, piece in entries.pieces.items()
        for part in piece.parts
        if part.tensor.numel()
    }


def _send(tensors: Iterable[torch.Tensor], rank: int) -> None:
    parts = [bytes_of(tensor).to(wire_device()) for tensor in tensors]
    if parts:
        dist.send(torch.cat(parts), dst=rank, group=group())


def _receive(targets: list[torch.Tensor], rank: int) -> None:
    sizes = [target.numel() * target.element_size() for target in targets]
    if not sizes:
        return
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=wire_device())
    dist.recv(buffer, src=rank, group=group())
    for target, part in zip(targets, torch.split(buffer, sizes), strict=True):
        # A part may start anywhere; only a copy is aligned for its dtype.
        target.copy_(part.clone().view(target.dtype).view(target.shape))


def _narrow(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    for dimension, (start, length) in enumerate(zip(*box, strict=True)):
        tensor = tensor.narrow(dimension, start, length)
    return tensor
