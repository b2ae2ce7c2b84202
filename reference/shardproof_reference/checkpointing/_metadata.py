"""`.metadata` of a DCP folder, read without running what it says.

It is a pickle, and torch unpickles it as one: a file from elsewhere could do anything. Only the
classes that torch's own writers put there are let in, and what they say of files is checked.
"""

from __future__ import annotations

import pickle
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from shardproof_reference.errors import LoadError

_METADATA = "torch.distributed.checkpoint.metadata"
_DTYPES = {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
_ALLOWED = {
    "collections": {"OrderedDict"},
    "torch": {"Size", *_DTYPES},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    _METADATA: {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}


class SafeReader(FileSystemReader):
    """torch's reader, but for the metadata."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the metadata, and check it against the folder.

        Raises:
            LoadError: There is none, it is damaged, it would run something, or a file is missing or
                too short.
        """
        folder = Path(self.path)
        file = folder / ".metadata"
        if not file.is_file():
            raise LoadError(f"{folder}: no .metadata; not a complete sharded checkpoint")
        metadata = _unpickled(file)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        _check_files(folder, metadata)
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Let in what torch writes.

        Raises:
            LoadError: Naming anything else.
        """
        if module.startswith("pathlib") and name.endswith("Path"):
            return PurePosixPath  # where it was saved, from whatever system
        if name not in _ALLOWED.get(module, ()):
            raise LoadError(
                f"it would call {module}.{name}, which torch doesn't write there; nothing was run"
            )
        return super().find_class(module, name)


def _unpickled(file: Path) -> Metadata:
    try:
        with file.open("rb") as stream:
            found = _Unpickler(stream).load()
    except LoadError as error:
        raise LoadError(f"{file}: {error}") from error
    except Exception as error:
        raise LoadError(f"{file} is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise LoadError(f"{file} holds no metadata of a file system checkpoint")
    return found


def _check_files(folder: Path, metadata: Metadata) -> None:
    """Check that each stored piece lies in a file of the folder."""
    sizes: dict[str, int] = {}
    for index, info in metadata.storage_data.items():
        name = str(info.relative_path)
        if name not in sizes:
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise LoadError(f"{folder}: {name} of {index.fqn} lies outside of the checkpoint")
            if not path.is_file():
                raise LoadError(f"{folder}: {name} is missing, which holds {index.fqn}")
            sizes[name] = path.stat().st_size
        if info.offset < 0 or info.length < 0 or info.offset + info.length > sizes[name]:
            raise LoadError(
                f"{folder}: {name} has {sizes[name]} bytes, but {index.fqn} lies at "
                f"{info.offset} to {info.offset + info.length}; the file is cut off"
            )
