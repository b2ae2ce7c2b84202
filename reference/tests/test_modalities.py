"""Modalities' classes: names, files, retention, and what they refuse."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from shardproof import World
from shardproof_reference import (
    AppState,
    CheckpointingEntityType,
    CheckpointingInstruction,
    CheckpointSaving,
    DCPCheckpointLoading,
    DCPCheckpointSaving,
    FSDP1CheckpointLoading,
    FSDP1CheckpointSaving,
    LoadError,
    MixedPrecisionSettings,
    SaveError,
    SaveEveryKStepsCheckpointingStrategy,
    SaveKMostRecentCheckpointsStrategy,
    TrainingProgress,
)
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from ._models import KINDS, Model, build, names_in, snapshot, train

PROGRESS = TrainingProgress(3, 96, 10, 320)
FOLDER = "eid_e-seen_steps_3-seen_tokens_96-target_steps_10-target_tokens_320"
FILES = [
    f"eid_e-{kind}-seen_steps_3-seen_tokens_96-target_steps_10-target_tokens_320.bin"
    for kind in ("model", "optimizer")
]
INFO = "last_checkpoint_info.json"
Saving = type[FSDP1CheckpointSaving] | type[DCPCheckpointSaving]
CLASSES = pytest.mark.parametrize("saving", [FSDP1CheckpointSaving, DCPCheckpointSaving])
NOW = CheckpointingInstruction(save_current=True)


def at(steps: int) -> TrainingProgress:
    return replace(PROGRESS, num_seen_steps_current_run=steps)


def save(world: World, saving: Saving, folder: Path, state: AppState, steps: int = 3) -> None:
    saving(folder, "e", world.rank).run_checkpoint_instruction(NOW, at(steps), state)


def state_of(
    kind: str = "original",
    seed: int = 0,
    scheduler: Callable[[Any], LRScheduler] | None = None,
    **settings: Any,
) -> AppState:
    model, optimizer = build(kind, seed=seed, **settings)
    return AppState(model, optimizer, scheduler(optimizer) if scheduler else None)


def held(state: AppState) -> dict[str, Any]:
    found = snapshot(state.model_parts[0], state.optimizer)
    return found | ({"scheduler": state.lr_scheduler.state_dict()} if state.lr_scheduler else {})


def stepped(state: AppState) -> AppState:
    train(state.model_parts[0], state.optimizer)
    if state.lr_scheduler is not None:
        state.lr_scheduler.step()
        state.lr_scheduler.step()
    return state


def test_progress_counts_the_runs_before() -> None:
    progress = TrainingProgress(1, 2, 3, 4, 10, 20)
    assert (progress.num_seen_steps_total, progress.num_seen_tokens_total) == (11, 22)
    progress = TrainingProgress(1, 2, 3, 4, None, None)
    assert (progress.num_seen_steps_total, progress.num_seen_tokens_total) == (1, 2)


def test_names_are_those_of_modalities() -> None:
    assert [entity.value for entity in CheckpointingEntityType] == ["model", "optimizer"]
    assert FSDP1CheckpointSaving.CHECKPOINT_STRUCTURE == (
        "eid_{experiment_id}-{entity}-seen_steps_{num_seen_steps}-seen_tokens_{num_seen_tokens}"
        "-target_steps_{num_target_steps}-target_tokens_{num_target_tokens}.bin"
    )
    assert DCPCheckpointSaving.CHECKPOINT_FOLDER_STRUCTURE == (
        "eid_{experiment_id}-seen_steps_{num_seen_steps}-seen_tokens_{num_seen_tokens}"
        "-target_steps_{num_target_steps}-target_tokens_{num_target_tokens}"
    )
    assert MixedPrecisionSettings("BF_16") is MixedPrecisionSettings.BF_16
    assert MixedPrecisionSettings["NO_MIXED_PRECISION"].value is None


@pytest.mark.ranks(2)
@CLASSES
def test_files_and_the_info_that_names_them(
    world: World, saving: Saving, shared_tmp_path: Path
) -> None:
    save(world, saving, shared_tmp_path / "runs", stepped(state_of()))
    runs = shared_tmp_path / "runs"
    info = json.loads((runs / INFO).read_text())
    if saving is FSDP1CheckpointSaving:
        assert names_in(runs) == [*FILES, INFO]
        names = ("model_checkpoint_path", "optimizer_checkpoint_path")
        assert info == {name: str(runs / file) for name, file in zip(names, FILES, strict=True)}
    else:
        assert names_in(runs) == [FOLDER, INFO]
        assert info == {"checkpoint_folder_path": str(runs / FOLDER)}


SCHEDULERS: dict[str, Callable[[Any], LRScheduler] | None] = {
    "none": None,
    "step": lambda optimizer: StepLR(optimizer, 1, 0.5),
    "multi-step": lambda optimizer: MultiStepLR(optimizer, [1, 3]),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "one-cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=10),
    "cosine": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 5),
    "chained": lambda optimizer: ChainedScheduler(
        [StepLR(optimizer, 1), ExponentialLR(optimizer, 0.9)], optimizer=optimizer
    ),
    "sequential": lambda optimizer: SequentialLR(
        optimizer, [StepLR(optimizer, 1, 0.5), StepLR(optimizer, 2, 0.1)], [1]
    ),
}


@pytest.mark.ranks(3)
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_folder_comes_back(
    world: World, kind: str, scheduler: Callable[[Any], LRScheduler] | None, shared_tmp_path: Path
) -> None:
    state = stepped(state_of(kind, scheduler=scheduler))
    before = held(state)
    save(world, DCPCheckpointSaving, shared_tmp_path, state)
    assert held(state) == before
    fresh = state_of(kind, seed=1, scheduler=scheduler)
    loading = DCPCheckpointLoading(world.rank)
    assert loading.load_checkpoint_(fresh, shared_tmp_path / FOLDER) is fresh
    assert held(fresh) == before
    assert fresh.is_loaded
    with pytest.raises(LoadError, match="loaded into this AppState already; make a new one"):
        loading.load_checkpoint_(fresh, shared_tmp_path / FOLDER)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_folder_of_one_kind_goes_into_another(
    world: World, first: str, second: str, shared_tmp_path: Path
) -> None:
    state = stepped(state_of(first))
    save(world, DCPCheckpointSaving, shared_tmp_path / "one", state)
    other = state_of(second, seed=1)
    loading = DCPCheckpointLoading(world.rank)
    loading.load_checkpoint_(other, shared_tmp_path / "one" / FOLDER)
    save(world, DCPCheckpointSaving, shared_tmp_path / "two", other)
    back = state_of(first, seed=2)
    loading.load_checkpoint_(back, shared_tmp_path / "two" / FOLDER)
    assert held(back) == held(state)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_parameter_groups_come_back(
    world: World, kind: Callable[[float], Any], shared_tmp_path: Path
) -> None:
    def grouped(seed: int, lr: float) -> AppState:
        model, _ = build("fully-shard", seed=seed)
        first, *others = model.parameters()
        groups = [{"params": [first], "lr": kind(lr)}, {"params": others, "weight_decay": lr}]
        return AppState(model, torch.optim.AdamW(groups, lr=kind(2 * lr)))

    state = stepped(grouped(0, 0.5))
    save(world, DCPCheckpointSaving, shared_tmp_path, state)
    fresh = grouped(1, 0.25)
    DCPCheckpointLoading(world.rank).load_checkpoint_(fresh, shared_tmp_path / FOLDER)
    assert held(fresh) == held(state)
    model, _ = build("fully-shard", seed=1)
    one_group = AppState(model, torch.optim.AdamW(model.parameters(), lr=kind(1.0)))
    with pytest.raises(LoadError, match="which is in the same parameter group here, has"):
        DCPCheckpointLoading(world.rank).load_checkpoint_(one_group, shared_tmp_path / FOLDER)


def whole(state: AppState) -> dict[str, Any]:
    """Return a model of parts, whole."""
    model = nn.ModuleList(state.model_parts)
    return snapshot(model, state.optimizer)


@pytest.mark.ranks(2)
def test_parts_of_a_model_come_back(world: World, shared_tmp_path: Path) -> None:
    def parts(seed: int) -> AppState:
        torch.manual_seed(seed)
        both = [nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Tanh(), nn.Linear(3, 3))]
        for part in both:
            torch.distributed.fsdp.fully_shard(part)
        optimizer = torch.optim.AdamW([p for part in both for p in part.parameters()])
        return AppState(both, optimizer)

    state = parts(0)
    x = torch.ones(1, 3)
    for part in state.model_parts:
        x = part(x)
    x.sum().backward()
    state.optimizer.step()
    save(world, DCPCheckpointSaving, shared_tmp_path, state)
    fresh = parts(1)
    DCPCheckpointLoading(world.rank).load_checkpoint_(fresh, shared_tmp_path / FOLDER)
    assert whole(fresh) == whole(state)
    with pytest.raises(SaveError, match="DCPCheckpointSaving"):
        save(world, FSDP1CheckpointSaving, shared_tmp_path, state)


def loading(world: World, **settings: Any) -> FSDP1CheckpointLoading:
    default = {
        "block_names": ["Block"],
        "mixed_precision_settings": MixedPrecisionSettings.NO_MIXED_PRECISION,
        "sharding_strategy": ShardingStrategy.FULL_SHARD,
    }
    return FSDP1CheckpointLoading(world.rank, **{**default, **settings})


@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("ignore:When using ``NO_SHARD``")
@pytest.mark.parametrize("kind", ["flat", "original"])
@pytest.mark.parametrize("strategy", list(ShardingStrategy))
@pytest.mark.parametrize("meta", [False, True])
def test_files_come_back(
    world: World, kind: str, strategy: ShardingStrategy, meta: bool, shared_tmp_path: Path
) -> None:
    state = stepped(state_of(kind))
    save(world, FSDP1CheckpointSaving, shared_tmp_path, state)
    with torch.device("meta" if meta and world.rank else "cpu"):
        unwrapped = Model()
    loads = loading(world, sharding_strategy=strategy)
    model = loads.load_model_checkpoint(unwrapped, shared_tmp_path / FILES[0])
    assert isinstance(model, FullyShardedDataParallel)
    optimizer = torch.optim.AdamW(model.parameters())
    loads.load_optimizer_checkpoint_(optimizer, model, shared_tmp_path / FILES[1])
    with (
        FullyShardedDataParallel.summon_full_params(model),
        FullyShardedDataParallel.summon_full_params(state.model_parts[0]),
    ):
        mine, theirs = model.state_dict(), state.model_parts[0].state_dict()
        assert list(mine) == list(theirs)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    if kind == "original" and strategy is ShardingStrategy.FULL_SHARD:
        assert snapshot(model, optimizer) == held(state)


@pytest.mark.ranks(2)
def test_what_loading_from_files_refuses(world: World, shared_tmp_path: Path) -> None:
    state = stepped(state_of())
    save(world, FSDP1CheckpointSaving, shared_tmp_path, state)
    model_file, optimizer_file = (shared_tmp_path / file for file in FILES)
    loads = loading(world)
    other = Model(width=4)
    before = [parameter.clone() for parameter in other.parameters()]
    with pytest.raises(LoadError, match=r"embed.weight is torch.float32 \[7, 5\] in the"):
        loads.load_model_checkpoint(other, model_file)
    assert not isinstance(other.block, FullyShardedDataParallel)
    assert all(torch.equal(*pair) for pair in zip(other.parameters(), before, strict=True))
    with pytest.raises(LoadError, match="the Model isn't wrapped; give the model that FSDP"):
        loads.load_optimizer_checkpoint_(state.optimizer, Model(), optimizer_file)
    with pytest.raises(LoadError, match="holds the state of a model, but that of a optim"):
        loads.load_optimizer_checkpoint_(state.optimizer, state.model_parts[0], model_file)
    with pytest.raises(LoadError, match=r"no nothing\.bin"):
        loads.load_model_checkpoint(Model(), shared_tmp_path / "nothing.bin")


@pytest.mark.ranks(2)
def test_what_saving_refuses(world: World, shared_tmp_path: Path) -> None:
    state = state_of("fully-shard")
    with pytest.raises(SaveError, match="one model that FSDP1 has wrapped, got a FSDPModel"):
        save(world, FSDP1CheckpointSaving, shared_tmp_path, state)
    with pytest.raises(SaveError, match="experiment_id is part of a file name, got 'a/b'"):
        DCPCheckpointSaving(shared_tmp_path, "a/b", world.rank)
    wrong = DCPCheckpointSaving(shared_tmp_path, "e", 0)
    with pytest.raises(SaveError, match="rank 1: global_rank=0, but this is rank 1 of 2"):
        wrong.run_checkpoint_instruction(NOW, PROGRESS, state)
    bare = AppState(Model(), torch.optim.SGD(Model().parameters()))
    with pytest.raises(SaveError, match="the Model isn't wrapped; give the model that FSDP has"):
        save(world, DCPCheckpointSaving, shared_tmp_path, bare)
    with pytest.raises(SaveError, match=r"rank 1: this rank is to save .*steps_1-.*, but rank 0"):
        save(world, DCPCheckpointSaving, shared_tmp_path, state, world.rank)
    assert names_in(shared_tmp_path) == []


@pytest.mark.ranks(2)
@CLASSES
def test_a_target_that_cannot_be_written_is_told_on_every_rank(
    world: World, saving: Saving, shared_tmp_path: Path
) -> None:
    state = stepped(state_of())
    before = held(state)
    if world.rank == 0:
        (shared_tmp_path / "file").touch()
    with pytest.raises(SaveError, match=r"rank 0: (FileExists|NotADirectory)Error"):
        save(world, saving, shared_tmp_path / "file", state)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as a full disk: each write fails
    try:
        with pytest.raises(SaveError, match="File too large"):
            save(world, saving, shared_tmp_path / "full", state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names_in(shared_tmp_path / "full") == []
    assert held(state) == before
    save(world, saving, shared_tmp_path / "full", state)


@pytest.mark.ranks(2)
def test_a_folder_that_ranks_do_not_share_is_refused(world: World, shared_tmp_path: Path) -> None:
    own = shared_tmp_path / f"host-{world.rank}"
    own.mkdir()
    words = r"rank 1: .* isn't the folder that rank 0 writes to"
    with pytest.raises(SaveError, match=words), chdir(own):
        save(world, DCPCheckpointSaving, Path("runs"), state_of())
    assert world.gather(names_in(own)) == [["runs"], []]


@pytest.mark.ranks(2)
@CLASSES
def test_a_resumed_run_comes_by_the_same_step_again(
    world: World, saving: Saving, shared_tmp_path: Path
) -> None:
    for seed, steps in enumerate((3, 4)):
        save(world, saving, shared_tmp_path, stepped(state_of(seed=seed)), steps)
    with pytest.raises(SaveError, match="exists; choose another name or delete it first"):
        save(world, saving, shared_tmp_path, stepped(state_of(seed=2)), 4)
    again = stepped(state_of(seed=2))
    save(world, saving, shared_tmp_path, again, 3)
    assert all("seen_steps_3-" in path for path in _named(shared_tmp_path))
    if saving is DCPCheckpointSaving:
        fresh = state_of(seed=1)
        DCPCheckpointLoading(world.rank).load_checkpoint_(fresh, shared_tmp_path / FOLDER)
        assert held(fresh) == held(again)


@pytest.mark.ranks(2)
@CLASSES
def test_the_most_recent_are_kept(world: World, saving: Saving, shared_tmp_path: Path) -> None:
    (shared_tmp_path / "eid_other-foreign.bin").touch()
    execution = saving(shared_tmp_path, "e", world.rank)
    checkpoints = CheckpointSaving(SaveKMostRecentCheckpointsStrategy(2), execution)
    state = state_of()
    for steps in range(8, 12):
        checkpoints.save_checkpoint(at(steps), None, state)
    per = 2 if saving is FSDP1CheckpointSaving else 1
    found = [name for name in names_in(shared_tmp_path) if name.startswith("eid_e")]
    assert len(found) == 2 * per
    assert all("seen_steps_10-" in name or "seen_steps_11-" in name for name in found)
    assert (shared_tmp_path / "eid_other-foreign.bin").exists()
    assert all("seen_steps_11-" in path for path in _named(shared_tmp_path))


@contextmanager
def chdir(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _named(folder: Path) -> list[str]:
    return [*json.loads((folder / INFO).read_text()).values()]


@pytest.mark.ranks(2)
@CLASSES
def test_the_last_one_is_not_deleted(world: World, saving: Saving, shared_tmp_path: Path) -> None:
    save(world, saving, shared_tmp_path, state_of())
    execution = saving(shared_tmp_path, "e", world.rank)
    delete = CheckpointingInstruction(checkpoints_to_delete=[PROGRESS])
    before = names_in(shared_tmp_path)
    with pytest.raises(SaveError, match=f"{INFO} names it as the last checkpoint"):
        execution.run_checkpoint_instruction(delete, PROGRESS, state_of())
    gone = CheckpointingInstruction(checkpoints_to_delete=[at(1)])
    with pytest.raises(SaveError, match=r"seen_steps_1-.* can't be deleted: it doesn't exist"):
        execution.run_checkpoint_instruction(gone, PROGRESS, state_of())
    assert names_in(shared_tmp_path) == before


def test_strategies() -> None:
    every = SaveEveryKStepsCheckpointingStrategy(4)
    due = [every.get_checkpoint_instruction(at(steps)).save_current for steps in range(1, 9)]
    assert due == [False, False, False, True] * 2
    none = SaveKMostRecentCheckpointsStrategy(0)
    assert none.get_checkpoint_instruction(PROGRESS) == CheckpointingInstruction()
    everything = SaveKMostRecentCheckpointsStrategy(-1)
    instructions = [everything.get_checkpoint_instruction(at(steps)) for steps in range(20)]
    assert instructions == [NOW] * 20
    for wrong in (
        lambda: SaveKMostRecentCheckpointsStrategy(-2),
        lambda: SaveEveryKStepsCheckpointingStrategy(0),
    ):
        with pytest.raises(SaveError, match=r"^k is "):
            wrong()
    last = SaveKMostRecentCheckpointsStrategy(1)
    last.get_checkpoint_instruction(at(1))
    assert last.get_checkpoint_instruction(at(1)).checkpoints_to_delete == []  # saved once more
    assert last.get_checkpoint_instruction(at(2)).checkpoints_to_delete == [at(1)]
