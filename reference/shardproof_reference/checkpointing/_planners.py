"""DCP's planners for boxes: which ones a rank writes, and where a read one goes."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from shardproof_reference.checkpointing._entries import Entries, Path, key_of
from shardproof_reference.checkpointing._pieces import Part, Piece


class EntriesSavePlanner(DefaultSavePlanner):
    """Plans a rank's own boxes; how replicas are shared out stays torch's."""

    def __init__(self, entries: Entries) -> None:
        super().__init__()
        self._entries = entries
        self._parts = _parts(entries)

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """Take the entries in place of the state dict, which is empty."""
        paths = (*self._entries.pieces, *self._entries.objects)
        self.mappings = {key_of(path): path for path in paths}
        self._objects = {key_of(path): value for path, value in self._entries.objects.items()}

    def create_local_plan(self) -> SavePlan:
        """Write each box and each object that this rank has."""
        items = [
            _write_part(path, piece, part)
            for path, piece in self._entries.pieces.items()
            for part in piece.parts
        ]
        items += [WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO) for key in self._objects]
        self.plan = SavePlan(items, planner_data=self.mappings)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Find a box, or an object."""
        if index.offset is None:
            return self._objects[index.fqn]
        return self._parts[index.fqn, tuple(index.offset)]


class EntriesLoadPlanner(LoadPlanner):
    """Reads planned items into boxes, and objects into a mapping.

    Attributes:
        objects: What was read of objects, by key.
    """

    def __init__(self, entries: Entries) -> None:
        self._parts = _parts(entries)
        self.objects: dict[str, object] = {}

    def set_up_planner(
        self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False
    ) -> None:
        """Nothing: what is to be read is known."""

    def create_local_plan(self) -> LoadPlan:
        """Nothing: the plan is made by the source."""
        return LoadPlan([])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing: each rank reads for itself."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Nothing: each rank reads for itself."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        """Read an object without running code."""
        self.objects[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Give the memory that an item is read into."""
        index = read_item.dest_index
        assert index.offset is not None
        tensor = self._parts[index.fqn, tuple(index.offset)]
        for dimension, start in enumerate(read_item.dest_offsets):
            tensor = tensor.narrow(dimension, start, read_item.lengths[dimension])
        return tensor

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing: the memory is the model's own."""


def _parts(entries: Entries) -> dict[tuple[str, tuple[int, ...]], torch.Tensor]:
    return {
        (key_of(path), part.offsets): part.tensor
        for path, piece in entries.pieces.items()
        for part in piece.parts
    }


def chunk_of(part: Part) -> ChunkStorageMetadata:
    """Write a box as DCP does."""
    return ChunkStorageMetadata(torch.Size(part.offsets), part.tensor.size())


def _write_part(path: Path, piece: Piece, part: Part) -> WriteItem:
    return WriteItem(
        MetadataIndex(key_of(path), torch.Size(part.offsets)),
        WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=chunk_of(part),
            properties=TensorProperties.create_from_tensor(part.tensor),
            size=torch.Size(piece.shape),
        ),
    )
