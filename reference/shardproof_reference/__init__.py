"""A small, strict implementation of sharded checkpoints to compare others with.

It refuses whatever it doesn't promise. Names are imported on first use, so importing the package
doesn't load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardproof_reference.checkpointing.app_state import AppState
    from shardproof_reference.checkpointing.execution import (
        CheckpointSaving,
        CheckpointSavingExecutionABC,
    )
    from shardproof_reference.checkpointing.fsdp.fsdp_checkpoint_loading import (
        DCPCheckpointLoading,
        FSDP1CheckpointLoading,
    )
    from shardproof_reference.checkpointing.fsdp.fsdp_checkpoint_saving import (
        CheckpointingEntityType,
        DCPCheckpointSaving,
        FSDP1CheckpointSaving,
    )
    from shardproof_reference.checkpointing.fsdp.mixed_precision import MixedPrecisionSettings
    from shardproof_reference.checkpointing.fsdp_utils import (
        load_fsdp_model,
        load_fsdp_optimizer,
        save_fsdp_model,
        save_fsdp_optimizer,
    )
    from shardproof_reference.checkpointing.interfaces import (
        DistributedCheckpointLoadingIF,
        FSDP1CheckpointLoadingIF,
    )
    from shardproof_reference.checkpointing.loading import Misfits, load_checkpoint
    from shardproof_reference.checkpointing.pending import Pending
    from shardproof_reference.checkpointing.progress import (
        CheckpointingInstruction,
        TrainingProgress,
    )
    from shardproof_reference.checkpointing.saving import save_checkpoint
    from shardproof_reference.checkpointing.strategies import (
        CheckpointSavingStrategyIF,
        SaveEveryKStepsCheckpointingStrategy,
        SaveKMostRecentCheckpointsStrategy,
    )
    from shardproof_reference.errors import (
        CheckpointError,
        LoadError,
        PluginError,
        SaveError,
        WrapError,
    )
    from shardproof_reference.fsdp.plugin import FullyShardedDataParallelPlugin

__all__ = [
    "AppState",
    "CheckpointError",
    "CheckpointSaving",
    "CheckpointSavingExecutionABC",
    "CheckpointSavingStrategyIF",
    "CheckpointingEntityType",
    "CheckpointingInstruction",
    "DCPCheckpointLoading",
    "DCPCheckpointSaving",
    "DistributedCheckpointLoadingIF",
    "FSDP1CheckpointLoading",
    "FSDP1CheckpointLoadingIF",
    "FSDP1CheckpointSaving",
    "FullyShardedDataParallelPlugin",
    "LoadError",
    "Misfits",
    "MixedPrecisionSettings",
    "Pending",
    "PluginError",
    "SaveError",
    "SaveEveryKStepsCheckpointingStrategy",
    "SaveKMostRecentCheckpointsStrategy",
    "TrainingProgress",
    "WrapError",
    "load_checkpoint",
    "load_fsdp_model",
    "load_fsdp_optimizer",
    "save_checkpoint",
    "save_fsdp_model",
    "save_fsdp_optimizer",
]

_HOME = {
    "AppState": "checkpointing.app_state",
    "CheckpointError": "errors",
    "CheckpointSaving": "checkpointing.execution",
    "CheckpointSavingExecutionABC": "checkpointing.execution",
    "CheckpointSavingStrategyIF": "checkpointing.strategies",
    "CheckpointingEntityType": "checkpointing.fsdp.fsdp_checkpoint_saving",
    "CheckpointingInstruction": "checkpointing.progress",
    "DCPCheckpointLoading": "checkpointing.fsdp.fsdp_checkpoint_loading",
    "DCPCheckpointSaving": "checkpointing.fsdp.fsdp_checkpoint_saving",
    "DistributedCheckpointLoadingIF": "checkpointing.interfaces",
    "FSDP1CheckpointLoading": "checkpointing.fsdp.fsdp_checkpoint_loading",
    "FSDP1CheckpointLoadingIF": "checkpointing.interfaces",
    "FSDP1CheckpointSaving": "checkpointing.fsdp.fsdp_checkpoint_saving",
    "FullyShardedDataParallelPlugin": "fsdp.plugin",
    "LoadError": "errors",
    "Misfits": "checkpointing.loading",
    "MixedPrecisionSettings": "checkpointing.fsdp.mixed_precision",
    "Pending": "checkpointing.pending",
    "PluginError": "errors",
    "SaveError": "errors",
    "SaveEveryKStepsCheckpointingStrategy": "checkpointing.strategies",
    "SaveKMostRecentCheckpointsStrategy": "checkpointing.strategies",
    "TrainingProgress": "checkpointing.progress",
    "WrapError": "errors",
    "load_checkpoint": "checkpointing.loading",
    "load_fsdp_model": "checkpointing.fsdp_utils",
    "load_fsdp_optimizer": "checkpointing.fsdp_utils",
    "save_fsdp_model": "checkpointing.fsdp_utils",
    "save_fsdp_optimizer": "checkpointing.fsdp_utils",
    "save_checkpoint": "checkpointing.saving",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
