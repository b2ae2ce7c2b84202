"""Modalities' two ways of saving: two full files of rank 0, or one folder of all ranks.

Each checkpoint appears whole or not at all, and then `last_checkpoint_info.json` names it.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

from shardproof_reference.checkpointing._app_layout import to_app
from shardproof_reference.checkpointing._collective import agree, on_rank_0
from shardproof_reference.checkpointing._full import save_full
from shardproof_reference.checkpointing._live import Live
from shardproof_reference.checkpointing._publish import delete, publish, replace_json
from shardproof_reference.checkpointing._sharded import save_sharded
from shardproof_reference.checkpointing.app_state import AppState
from shardproof_reference.checkpointing.execution import CheckpointSavingExecutionABC
from shardproof_reference.checkpointing.progress import TrainingProgress
from shardproof_reference.errors import SaveError

INFO = "last_checkpoint_info.json"


class CheckpointingEntityType(Enum):
    """What a file holds."""

    MODEL = "model"
    OPTIMIZER = "optimizer"


class _ExperimentSaving(CheckpointSavingExecutionABC):
    """Saves the checkpoints of one experiment into one folder.

    Args:
        checkpoint_path: The folder, seen by all ranks; made if it isn't there.
        experiment_id: Part of each checkpoint's name.
        global_rank: This process's rank.

    Raises:
        SaveError: The experiment's id would be a path.
    """

    def __init__(self, checkpoint_path: Path, experiment_id: str, global_rank: int) -> None:
        if Path(experiment_id).name != experiment_id:
            raise SaveError(f"experiment_id is part of a file name, got {experiment_id!r}")
        self.checkpoint_path = Path(checkpoint_path)
        self.experiment_id = experiment_id
        self.global_rank = global_rank

    @abstractmethod
    def _paths(self, training_progress: TrainingProgress) -> dict[str, Path]:
        """Return what a checkpoint consists of, by its key in the info file."""

    def _path(self, structure: str, progress: TrainingProgress, entity: str = "") -> Path:
        name = structure.format(
            experiment_id=self.experiment_id,
            entity=entity,
            num_seen_steps=progress.num_seen_steps_total,
            num_seen_tokens=progress.num_seen_tokens_total,
            num_target_steps=progress.num_target_steps,
            num_target_tokens=progress.num_target_tokens,
        )
        return self.checkpoint_path / name

    def _refuse_rank(self) -> None:
        if self.global_rank != dist.get_rank():
            raise SaveError(
                f"global_rank={self.global_rank}, but this is rank {dist.get_rank()} of "
                f"{dist.get_world_size()}"
            )

    def _publish(self, paths: Mapping[str, Path], write: Callable[[list[Path]], None]) -> None:
        """Write a checkpoint, and let the info file name it when it is complete; collective.

        What has the name already is replaced, as a run that was resumed comes by it again; but not
        what the info file names: it would be gone for a moment.
        """
        publish([*paths.values()], write, self._is_named)
        info = {key: str(path.absolute()) for key, path in paths.items()}
        on_rank_0(lambda: replace_json(self.checkpoint_path / INFO, info), SaveError)

    def _is_named(self, path: Path) -> bool:
        info = self.checkpoint_path / INFO
        named = json.loads(info.read_text(encoding="utf-8")).values() if info.exists() else ()
        return str(path.absolute()) in named

    def _delete_checkpoint(self, training_progress: TrainingProgress) -> None:
        """Delete a checkpoint that the info file doesn't name; collective.

        Raises:
            SaveError: On every rank: there is none, or it is the last one.
        """
        paths = [*self._paths(training_progress).values()]
        on_rank_0(lambda: self._delete(paths), SaveError)

    def _delete(self, paths: list[Path]) -> None:
        there = [path for path in paths if path.exists()]
        if not there:
            raise SaveError(f"{paths[0]} can't be deleted: it doesn't exist")
        if any(self._is_named(path) for path in there):
            raise SaveError(f"{there[0]} can't be deleted: {INFO} names it as the last checkpoint")
        for path in reversed(there):
            delete(path)


class FSDP1CheckpointSaving(_ExperimentSaving):
    """Gathers the full state in rank 0's CPU memory, which writes model and optimizer to two files.

    Only for a model that FSDP1 has wrapped. Arguments as those of `DCPCheckpointSaving`.
    """

    CHECKPOINT_STRUCTURE = (
        "eid_{experiment_id}-{entity}-seen_steps_{num_seen_steps}-seen_tokens_{num_seen_tokens}"
        "-target_steps_{num_target_steps}-target_tokens_{num_target_tokens}.bin"
    )

    def _paths(self, training_progress: TrainingProgress) -> dict[str, Path]:
        return {
            f"{entity.value}_checkpoint_path": self._path(
                self.CHECKPOINT_STRUCTURE, training_progress, entity.value
            )
            for entity in CheckpointingEntityType
        }

    def _save_checkpoint(self, app_state: AppState, training_progress: TrainingProgress) -> None:
        """Save; collective. A scheduler's state isn't stored, as Modalities doesn't.

        Raises:
            SaveError: On every rank; nothing is left behind.
        """
        model = agree(lambda: self._model_of(app_state), SaveError)
        paths = self._paths(training_progress)

        def write(building: list[Path]) -> None:
            to = dict(zip(CheckpointingEntityType, building, strict=True))
            parts = {
                CheckpointingEntityType.MODEL: Live((model,)),
                CheckpointingEntityType.OPTIMIZER: Live(
                    (model,), app_state.optimizer, with_model=False
                ),
            }
            for entity, live in parts.items():  # one after the other, as each fills rank 0's memory
                save_full({entity.value: to[entity]}, agree(live.entries, SaveError))

        self._publish(paths, write)

    def _model_of(self, app_state: AppState) -> FullyShardedDataParallel:
        self._refuse_rank()
        model, *more = app_state.model_parts
        if more or not isinstance(model, FullyShardedDataParallel):
            found = f"{1 + len(more)} parts" if more else f"a {type(model).__name__}"
            raise SaveError(
                "FSDP1CheckpointSaving saves one model that FSDP1 has wrapped, got "
                f"{found}; use DCPCheckpointSaving"
            )
        return model


class DCPCheckpointSaving(_ExperimentSaving):
    """Lets each rank write its own part of model, optimizer and scheduler into one DCP folder.

    Nothing is gathered. For FSDP1 and `fully_shard`.
    """

    CHECKPOINT_FOLDER_STRUCTURE = (
        "eid_{experiment_id}-seen_steps_{num_seen_steps}-seen_tokens_{num_seen_tokens}"
        "-target_steps_{num_target_steps}-target_tokens_{num_target_tokens}"
    )

    def _paths(self, training_progress: TrainingProgress) -> dict[str, Path]:
        folder = self._path(self.CHECKPOINT_FOLDER_STRUCTURE, training_progress)
        return {"checkpoint_folder_path": folder}

    def _save_checkpoint(self, app_state: AppState, training_progress: TrainingProgress) -> None:
        """Save; collective.

        Raises:
            SaveError: On every rank; nothing is left behind.
        """
        agree(self._refuse_rank, SaveError)
        live, paths = app_state.live(), self._paths(training_progress)

        def write(building: list[Path]) -> None:
            entries = agree(lambda: to_app(live.entries(), live.groups()), SaveError)
            save_sharded(building[0], entries)

        self._publish(paths, write)
