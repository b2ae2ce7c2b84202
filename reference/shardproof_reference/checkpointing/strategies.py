"""When to save a checkpoint, and which ones to keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from shardproof_reference.checkpointing.progress import CheckpointingInstruction, TrainingProgress
from shardproof_reference.errors import SaveError


class CheckpointSavingStrategyIF(ABC):
    """Decides at each point of a training."""

    @abstractmethod
    def get_checkpoint_instruction(
        self,
        training_progress: TrainingProgress,
        evaluation_result: Mapping[str, object] | None = None,
        early_stopping_criterion_fulfilled: bool = False,
    ) -> CheckpointingInstruction:
        """Say what to do now; the same on every rank.

        Args:
            training_progress: How far the training has come.
            evaluation_result: The latest results, by data set.
            early_stopping_criterion_fulfilled: Whether the training ends here.
        """


class SaveKMostRecentCheckpointsStrategy(CheckpointSavingStrategyIF):
    """Saves each time, and keeps the last ones.

    Args:
        k: How many to keep; -1 for all, 0 to save none.

    Raises:
        SaveError: `k` is below -1.
    """

    def __init__(self, k: int = -1) -> None:
        if k < -1:
            raise SaveError(f"k is -1 (keep all), 0 (save none) or more, got {k}")
        self.k = k
        self.saved_step_checkpoints: list[TrainingProgress] = []  # the latest first

    def get_checkpoint_instruction(
        self,
        training_progress: TrainingProgress,
        evaluation_result: Mapping[str, object] | None = None,
        early_stopping_criterion_fulfilled: bool = False,
    ) -> CheckpointingInstruction:
        """Save, and delete what is more than `k`."""
        if self.k == 0:
            return CheckpointingInstruction()
        now = replace(training_progress)  # the trainer goes on with its own
        others = [one for one in self.saved_step_checkpoints if one != now]
        kept = [now, *others]
        gone = kept[self.k :] if self.k > 0 else []
        self.saved_step_checkpoints = kept[: self.k] if self.k > 0 else kept
        return CheckpointingInstruction(save_current=True, checkpoints_to_delete=gone)


class SaveEveryKStepsCheckpointingStrategy(CheckpointSavingStrategyIF):
    """Saves at each multiple of some number of steps, and keeps all.

    Args:
        k: That number.

    Raises:
        SaveError: `k` is below 1.
    """

    def __init__(self, k: int) -> None:
        if k < 1:
            raise SaveError(f"k is a number of steps from 1, got {k}")
        self.k = k

    def get_checkpoint_instruction(
        self,
        training_progress: TrainingProgress,
        evaluation_result: Mapping[str, object] | None = None,
        early_stopping_criterion_fulfilled: bool = False,
    ) -> CheckpointingInstruction:
        """Save if the steps of all runs are a multiple."""
        due = training_progress.num_seen_steps_total % self.k == 0
        return CheckpointingInstruction(save_current=due)
