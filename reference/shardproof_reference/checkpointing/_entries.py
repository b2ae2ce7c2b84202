"""What a checkpoint holds of a model: named pieces and plain objects, as torch nests them.

A path is what torch's nested state dict has, `("model", fqn)` for example; joined by dots it is
the key in a DCP folder, so other DCP readers find what they look for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch

from shardproof_reference.checkpointing._parameters import Parameter, clean_name
from shardproof_reference.checkpointing._pieces import Part, Piece, Shape, bytes_of, replicated
from shardproof_reference.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from torch import nn

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a stored tensor before it is read."""

    shape: Shape
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(slots=True)
class Entries:
    """Everything under one name of the checkpoint, on this rank.

    Attributes:
        pieces: Tensors. Ranks without an element of a tensor have a piece without parts, or none.
        objects: Numbers, strings and containers of them.
        same: Paths that stand for memory which another path has already: tied parameters.
    """

    pieces: dict[Path, Piece] = field(default_factory=dict)
    objects: dict[Path, object] = field(default_factory=dict)
    same: dict[Path, Path] = field(default_factory=dict)

    def add(self, other: Entries) -> None:
        """Take in everything of another."""
        self.pieces |= other.pieces
        self.objects |= other.objects
        self.same |= other.same

    def snapshot(self) -> Entries:
        """Return a copy in CPU memory, which what is live leaves alone."""
        copies: dict[int, Piece] = {}
        for piece in self.pieces.values():
            if id(piece) not in copies:
                parts = (Part(part.offsets, part.tensor.cpu().clone()) for part in piece.parts)
                copies[id(piece)] = Piece(piece.shape, piece.dtype, tuple(parts))
        pieces = {path: copies[id(piece)] for path, piece in self.pieces.items()}
        return Entries(pieces, dict(self.objects), dict(self.same))

    def without(self, paths: Collection[Path]) -> Entries:
        """Return a copy that lacks some tensors."""
        return Entries(
            {path: piece for path, piece in self.pieces.items() if path not in paths},
            self.objects,
            {path: one for path, one in self.same.items() if not {path, one} & set(paths)},
        )


def is_plain(value: object) -> bool:
    """Say whether a value comes back without running code; a numpy number, say, doesn't."""
    if type(value) in (list, tuple):
        return all(map(is_plain, value))  # type: ignore[call-overload]
    return type(value) in (bool, int, float, str, type(None))


def key_of(path: Path) -> str:
    """Join a path to the key that DCP gives it."""
    return ".".join(map(str, path))


def model_entries(model: nn.Module, parameters: Iterable[Parameter]) -> Entries:
    """List parameters, under all of their names, and persistent buffers."""
    entries = Entries()
    for parameter in parameters:
        piece = parameter.piece()
        first: Path = ("model", parameter.fqn)
        entries.pieces[first] = piece
        for alias in parameter.aliases:
            entries.pieces["model", alias] = piece
            entries.same["model", alias] = first
    first_of: dict[int, Path] = {}
    for name, buffer in persistent_buffers(model):
        path: Path = ("model", name)
        entries.pieces[path] = replicated(buffer.detach())
        first = first_of.setdefault(id(buffer), path)
        if first != path:
            entries.same[path] = first
    return entries


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """List the buffers that a state dict has, under the unwrapped model's names."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield clean_name(f"{prefix}.{name}" if prefix else name), buffer


def with_scratch(entries: Entries) -> Entries:
    """Give each path memory of its own, so that equal paths can be compared after reading."""
    pieces = dict(entries.pieces)
    for path in entries.same:
        piece = pieces[path]
        parts = tuple(Part(part.offsets, torch.empty_like(part.tensor)) for part in piece.parts)
        pieces[path] = Piece(piece.shape, piece.dtype, parts)
    return Entries(pieces, entries.objects, entries.same)


def check_same(entries: Entries) -> None:
    """Refuse a checkpoint that holds different bits for names of one tensor.

    Raises:
        LoadError: Two paths differ on this rank.
    """
    for path, first in entries.same.items():
        ours, theirs = entries.pieces[path].parts, entries.pieces[first].parts
        for one, other in zip(ours, theirs, strict=True):
            if not torch.equal(bytes_of(one.tensor), bytes_of(other.tensor)):
                raise LoadError(
                    f"{key_of(path)} and {key_of(first)} are one tensor in the model, "
                    f"but the checkpoint holds different values for them"
                )
