"""Saving and deleting as a strategy decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from shardproof_reference.checkpointing.app_state import AppState
from shardproof_reference.checkpointing.progress import CheckpointingInstruction, TrainingProgress
from shardproof_reference.checkpointing.strategies import CheckpointSavingStrategyIF


class CheckpointSavingExecutionABC(ABC):
    """Saves and deletes checkpoints of one layout."""

    @abstractmethod
    def _save_checkpoint(self, app_state: AppState, training_progress: TrainingProgress) -> None:
        """Save; collective."""

    @abstractmethod
    def _delete_checkpoint(self, training_progress: TrainingProgress) -> None:
        """Delete what was saved at a point; collective."""

    def run_checkpoint_instruction(
        self,
        checkpointing_instruction: CheckpointingInstruction,
        training_progress: TrainingProgress,
        app_state: AppState,
    ) -> None:
        """Save if it is due, and delete what is to go once that is complete; collective.

        Args:
            checkpointing_instruction: What to do; the same on every rank.
            training_progress: Names the checkpoint.
            app_state: What is saved; not changed.

        Raises:
            SaveError: On every rank. If saving fails, nothing is deleted.
        """
        if checkpointing_instruction.save_current:
            self._save_checkpoint(app_state, training_progress)
        for one in checkpointing_instruction.checkpoints_to_delete:
            self._delete_checkpoint(one)


class CheckpointSaving:
    """A strategy, and what executes it.

    Args:
        checkpoint_saving_strategy: Decides when to save and what to keep.
        checkpoint_saving_execution: Does it.
    """

    def __init__(
        self,
        checkpoint_saving_strategy: CheckpointSavingStrategyIF,
        checkpoint_saving_execution: CheckpointSavingExecutionABC,
    ) -> None:
        self.checkpoint_saving_strategy = checkpoint_saving_strategy
        self.checkpoint_saving_execution = checkpoint_saving_execution

    def save_checkpoint(
        self,
        training_progress: TrainingProgress,
        evaluation_result: Mapping[str, object] | None,
        app_state: AppState,
        early_stopping_criterion_fulfilled: bool = False,
    ) -> None:
        """Save and delete as the strategy says; collective.

        Raises:
            SaveError: On every rank.
        """
        instruction = self.checkpoint_saving_strategy.get_checkpoint_instruction(
            training_progress, evaluation_result, early_stopping_criterion_fulfilled
        )
        self.checkpoint_saving_execution.run_checkpoint_instruction(
            instruction, training_progress, app_state
        )
