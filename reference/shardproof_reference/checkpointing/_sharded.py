"""SHARDED: one DCP folder, to which each rank writes its own boxes and from which it reads them.

The planners give DCP the boxes that a rank holds, so FSDP1 needs no ShardedTensor: DCP takes a
rank without a shard of some tensor for an old checkpoint and refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_saver import save

from shardproof_reference.checkpointing._collective import agree, group, on_rank_0
from shardproof_reference.checkpointing._entries import Entries, Path, TensorSpec, key_of
from shardproof_reference.checkpointing._full import flatten
from shardproof_reference.checkpointing._metadata import SafeReader
from shardproof_reference.checkpointing._optimizer import GROUPS
from shardproof_reference.checkpointing._pieces import replicated
from shardproof_reference.checkpointing._planners import (
    EntriesLoadPlanner,
    EntriesSavePlanner,
    chunk_of,
)
from shardproof_reference.errors import LoadError, SaveError


def save_sharded(folder: FilePath, entries: Entries) -> None:
    """Write this rank's boxes; collective. Of replicas, DCP lets one rank write each box.

    Raises:
        SaveError: On every rank: one doesn't see what rank 0 has made.
    """
    on_rank_0(lambda: folder.mkdir(), SaveError)
    agree(lambda: _refuse_unseen(folder), SaveError)
    writer = FileSystemWriter(folder)
    planner = EntriesSavePlanner(entries)
    save({}, storage_writer=writer, planner=planner, process_group=group())


def _refuse_unseen(folder: FilePath) -> None:
    if not folder.is_dir():
        raise SaveError(
            f"{folder.parent} isn't the folder that rank 0 writes to; give one that all ranks share"
        )


class ShardedSource:
    """A DCP folder to read from; nothing here is collective.

    Attributes:
        stored: Specification of each tensor, and each object.

    Raises:
        LoadError: The folder has no metadata, or metadata without torch's nesting.
    """

    def __init__(self, folder: FilePath) -> None:
        self._reader = SafeReader(folder)
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=False)
        if self._metadata.planner_data is None:
            raise LoadError(f"{folder}: .metadata doesn't say how its keys are nested")
        self._paths: dict[str, Path] = self._metadata.planner_data
        self._places: Mapping[Path, Path] = {}
        objects = self._read_objects()
        self.stored: dict[Path, object] = {
            self._paths[key]: (
                TensorSpec(tuple(found.size), found.properties.dtype)
                if isinstance(found, TensorStorageMetadata)
                else objects[key]
            )
            for key, found in self._metadata.state_dict_metadata.items()
        }
        if GROUPS in self.stored:  # one object until torch 2.3
            self.stored |= flatten(self.stored.pop(GROUPS), GROUPS)

    def rename(self, stored: dict[Path, object], places: Mapping[Path, Path]) -> None:
        """Go by other names from now on.

        Args:
            stored: What there is, under the new names.
            places: Where each tensor is stored, under the old ones.
        """
        self.stored, self._places = stored, places

    def value(self, path: Path) -> object:
        """Read one small entry: an object, or a tensor as a number or nested lists."""
        found = self.stored[path]
        if not isinstance(found, TensorSpec):
            return found
        tensor = torch.empty(found.shape, dtype=found.dtype)
        self.plan(Entries({path: replicated(tensor)}))()
        return tensor.tolist()

    def plan(self, entries: Entries) -> Callable[[], None]:
        """Return what reads this rank's boxes, straight into their memory.

        Raises:
            LoadError: The stored chunks don't hold each wanted element exactly once.
        """
        found = self._metadata.state_dict_metadata
        items: list[ReadItem] = []
        pieces = {self._places.get(path, path): piece for path, piece in entries.pieces.items()}
        for path, piece in pieces.items():
            specification = found[key_of(path)]
            assert isinstance(specification, TensorStorageMetadata)
            chunks = [chunk_of(part) for part in piece.parts]
            reads = create_read_items_for_chunk_list(key_of(path), specification, chunks)
            wanted = sum(part.tensor.numel() for part in piece.parts)
            if sum(math.prod(read.lengths) for read in reads) != wanted:
                raise LoadError(f"{key_of(path)}: the checkpoint's chunks have gaps or overlap")
            items += reads
        return lambda: self._read(items, EntriesLoadPlanner(Entries(pieces)))

    def _read_objects(self) -> dict[str, object]:
        planner = EntriesLoadPlanner(Entries())
        keys = [
            key
            for key, found in self._metadata.state_dict_metadata.items()
            if isinstance(found, BytesStorageMetadata)
        ]
        self._read([_read_object(key) for key in keys], planner)
        return planner.objects

    def _read(self, items: list[ReadItem], planner: EntriesLoadPlanner) -> None:
        plan = self._reader.prepare_local_plan(LoadPlan(items))
        self._reader.read_data(plan, planner).wait()


def _read_object(key: str) -> ReadItem:
    nowhere = torch.Size((0,))
    index = MetadataIndex(key)
    return ReadItem(LoadItemType.BYTE_IO, index, nowhere, index, nowhere, nowhere)
