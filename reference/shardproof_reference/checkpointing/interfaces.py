"""What loads a checkpoint, by its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from shardproof_reference.checkpointing.app_state import AppState


class DistributedCheckpointLoadingIF(ABC):
    """Loads a folder into which every rank has written."""

    @abstractmethod
    def load_checkpoint_(self, app_state: AppState, checkpoint_dir_path: Path) -> AppState:
        """Load in place; collective."""


class FSDP1CheckpointLoadingIF(ABC):
    """Loads two files that rank 0 has written."""

    @abstractmethod
    def load_model_checkpoint(self, model: nn.Module, file_path: Path) -> nn.Module:
        """Load into an unwrapped model, and wrap it; collective."""

    @abstractmethod
    def load_optimizer_checkpoint_(
        self, optimizer: Optimizer, model: nn.Module, file_path: Path
    ) -> None:
        """Load in place; collective."""
