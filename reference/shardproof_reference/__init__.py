"""A small, strict implementation of sharded checkpoints to compare others with.

It refuses whatever it doesn't promise. Names are imported on first use, so importing the package
doesn't load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardproof_reference.checkpointing.loading import load_checkpoint
    from shardproof_reference.checkpointing.saving import save_checkpoint
    from shardproof_reference.errors import (
        CheckpointError,
        LoadError,
        PluginError,
        SaveError,
        WrapError,
    )
    from shardproof_reference.fsdp.plugin import FullyShardedDataParallelPlugin

__all__ = [
    "CheckpointError",
    "FullyShardedDataParallelPlugin",
    "LoadError",
    "PluginError",
    "SaveError",
    "WrapError",
    "load_checkpoint",
    "save_checkpoint",
]

_HOME = {
    "CheckpointError": "errors",
    "FullyShardedDataParallelPlugin": "fsdp.plugin",
    "LoadError": "errors",
    "PluginError": "errors",
    "SaveError": "errors",
    "WrapError": "errors",
    "load_checkpoint": "checkpointing.loading",
    "save_checkpoint": "checkpointing.saving",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
