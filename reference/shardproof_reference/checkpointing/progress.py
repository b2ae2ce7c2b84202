"""How far a training has come, and what is to be saved and deleted at that point."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TrainingProgress:
    """Steps and tokens: seen in this run and in those before it, and aimed at.

    Attributes:
        num_seen_steps_current_run: Optimizer steps of this run.
        num_seen_tokens_current_run: Tokens of this run, over all ranks.
        num_target_steps: Steps at which the training ends.
        num_target_tokens: Tokens at which it ends.
        num_seen_steps_previous_run: Steps of the runs that this one resumes.
        num_seen_tokens_previous_run: Their tokens.
    """

    num_seen_steps_current_run: int
    num_seen_tokens_current_run: int
    num_target_steps: int
    num_target_tokens: int
    num_seen_steps_previous_run: int | None = 0
    num_seen_tokens_previous_run: int | None = 0

    @property
    def num_seen_steps_total(self) -> int:
        """Steps of all runs."""
        return self.num_seen_steps_current_run + (self.num_seen_steps_previous_run or 0)

    @property
    def num_seen_tokens_total(self) -> int:
        """Tokens of all runs."""
        return self.num_seen_tokens_current_run + (self.num_seen_tokens_previous_run or 0)


@dataclass
class CheckpointingInstruction:
    """What to do at one point of a training.

    Attributes:
        save_current: Whether to save.
        checkpoints_to_delete: The points whose checkpoints go, once that is done.
    """

    save_current: bool = False
    checkpoints_to_delete: list[TrainingProgress] = field(default_factory=list)
