"""Accelerate's four functions: its files, ours and its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from shardproof import Launch
from shardproof_reference import (
    FullyShardedDataParallelPlugin,
    LoadError,
    Pending,
    SaveError,
    load_fsdp_model,
    load_fsdp_optimizer,
    save_fsdp_model,
    save_fsdp_optimizer,
)
from torch import nn

from ._models import build, names_in, snapshot, train
from ._peers import NEEDS_PEERS, differing, import_peers

KINDS = ["flat", "original", "fully-shard"]
FILES = {
    "FULL_STATE_DICT": ["optimizer.bin", "pytorch_model_fsdp.bin"],
    "SHARDED_STATE_DICT": ["optimizer_0", "pytorch_model_fsdp_0"],
}
TYPES = pytest.mark.parametrize("state_dict_type", [*FILES])


def plugin(kind: str, state_dict_type: str) -> FullyShardedDataParallelPlugin:
    version = 2 if kind == "fully-shard" else 1
    return FullyShardedDataParallelPlugin(fsdp_version=version, state_dict_type=state_dict_type)


def trained(kind: str, seed: int = 0, **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = build(kind, seed=seed, **settings)
    train(model, optimizer)
    return model, optimizer


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", KINDS)
@TYPES
@pytest.mark.parametrize("within", [False, True])
def test_model_and_optimizer_come_back(
    kind: str, state_dict_type: str, within: bool, shared_tmp_path: Path
) -> None:
    by = plugin(kind, state_dict_type)
    before = repr(by)
    model, optimizer = trained(kind)
    held = snapshot(model, optimizer)
    save_fsdp_model(by, None, model, str(shared_tmp_path / "step"))
    save_fsdp_optimizer(by, None, optimizer, model, shared_tmp_path / "step")
    assert snapshot(model, optimizer) == held
    assert names_in(shared_tmp_path / "step") == FILES[state_dict_type]
    fresh, stepless = build(kind, seed=1)
    folder = shared_tmp_path / "step"
    inside = within and state_dict_type == "SHARDED_STATE_DICT"
    found = load_fsdp_model(
        by, None, fresh, folder / FILES[state_dict_type][1] if inside else folder
    )
    assert found == ([], [])
    load_fsdp_optimizer(
        by, None, stepless, fresh, folder / FILES[state_dict_type][0] if inside else folder
    )
    assert snapshot(fresh, stepless) == held
    assert repr(by) == before


@pytest.mark.ranks(2)
@TYPES
def test_several_have_a_number(state_dict_type: str, shared_tmp_path: Path) -> None:
    by = plugin("original", state_dict_type)
    for index in (0, 1):
        model, optimizer = trained("original", seed=index)
        save_fsdp_model(by, None, model, shared_tmp_path, index)
        save_fsdp_optimizer(by, None, optimizer, model, shared_tmp_path, index)
    fresh, stepless = build("original", seed=5)
    load_fsdp_model(by, None, fresh, shared_tmp_path, 1)
    load_fsdp_optimizer(by, None, stepless, fresh, shared_tmp_path, 1)
    assert snapshot(fresh, stepless) == snapshot(model, optimizer)
    with pytest.raises(SaveError, match="exists; choose another name or delete it first"):
        save_fsdp_model(by, None, model, shared_tmp_path, 1)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", KINDS)
@TYPES
def test_partial_load_only_on_request(
    kind: str, state_dict_type: str, shared_tmp_path: Path
) -> None:
    by = plugin(kind, state_dict_type)
    model, _ = trained(kind, extra=True)
    save_fsdp_model(by, None, model, shared_tmp_path)
    other, optimizer = build(kind, seed=1, tied=False)
    before = snapshot(other, optimizer)
    with pytest.raises(LoadError, match=r"model\.extra is in the checkpoint only"):
        load_fsdp_model(by, None, other, shared_tmp_path)
    assert snapshot(other, optimizer) == before
    assert load_fsdp_model(by, None, other, shared_tmp_path, strict=False) == ([], ["extra"])
    assert _parameters(other)["block.lin.weight"] == _parameters(model)["block.lin.weight"]
    small, _ = trained(kind)
    save_fsdp_model(by, None, small, shared_tmp_path, 1)
    more, _ = build(kind, seed=2, extra=True)
    extra = _parameters(more)["extra"]
    assert load_fsdp_model(by, None, more, shared_tmp_path, 1, strict=False) == (["extra"], [])
    assert _parameters(more)["extra"] == extra
    assert _parameters(more)["block.lin.weight"] == _parameters(small)["block.lin.weight"]


def _parameters(model: nn.Module) -> dict[str, Any]:
    from shardproof_reference.checkpointing._parameters import parameters

    return {
        one.fqn: [(part.offsets, part.tensor.tolist()) for part in one.piece().parts]
        for one in parameters(model)
    }


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", KINDS)
@TYPES
def test_an_asynchronous_save_is_a_snapshot(
    kind: str, state_dict_type: str, shared_tmp_path: Path
) -> None:
    by = plugin(kind, state_dict_type)
    model, optimizer = trained(kind)
    held = snapshot(model, optimizer)
    first = save_fsdp_model(by, None, model, shared_tmp_path, asynchronous=True)
    second = save_fsdp_optimizer(by, None, optimizer, model, shared_tmp_path, asynchronous=True)
    again = save_fsdp_model(by, None, model, shared_tmp_path, 1, asynchronous=True)
    train(model, optimizer)  # beside it, with collectives of its own
    assert isinstance(first, Pending)
    assert isinstance(second, Pending)
    assert isinstance(again, Pending)
    for pending in (first, second, again):
        pending.wait()
        pending.wait()
        assert pending.done
    assert snapshot(model, optimizer) != held
    fresh, stepless = build(kind, seed=1)
    load_fsdp_model(by, None, fresh, shared_tmp_path)
    load_fsdp_optimizer(by, None, stepless, fresh, shared_tmp_path)
    assert snapshot(fresh, stepless) == held
    twice = save_fsdp_model(by, None, model, shared_tmp_path, asynchronous=True)
    assert isinstance(twice, Pending)
    with pytest.raises(SaveError, match="exists; choose another name or delete it first"):
        twice.wait()


@pytest.mark.ranks(2)
def test_local_is_refused(shared_tmp_path: Path) -> None:
    model, optimizer = trained("flat")
    by = plugin("flat", "LOCAL_STATE_DICT")
    for call in (
        lambda: save_fsdp_model(by, None, model, shared_tmp_path),
        lambda: load_fsdp_optimizer(by, None, optimizer, model, shared_tmp_path),
    ):
        with pytest.raises((SaveError, LoadError), match="LOCAL_STATE_DICT is not supported"):
            call()


def _accelerate() -> Any:
    """Import Accelerate, and let it see the process group."""
    import_peers()
    from accelerate import PartialState
    from accelerate.utils import fsdp_utils

    PartialState(cpu=True)
    return fsdp_utils


def _peers(version: int, state_dict_type: str) -> tuple[Any, Any, Any]:
    theirs = _accelerate()
    from accelerate import FullyShardedDataParallelPlugin as Theirs

    by = Theirs(fsdp_version=version, state_dict_type=state_dict_type)
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    accelerator = SimpleNamespace(
        num_processes=size,
        process_index=rank,
        is_main_process=rank == 0,
        is_fsdp2=version == 2,
        wait_for_everyone=torch.distributed.barrier,
        device=torch.device("cpu"),
    )
    return theirs, by, accelerator


def _ours_to_theirs(folder: Path, kind: str, state_dict_type: str) -> list[str]:
    model, optimizer = trained(kind)
    by = plugin(kind, state_dict_type)
    save_fsdp_model(by, None, model, folder)
    save_fsdp_optimizer(by, None, optimizer, model, folder)
    theirs, their_plugin, accelerator = _peers(by.fsdp_version, state_dict_type)
    other, stepped = trained(kind, seed=1)  # it loses the state of a fresh optimizer
    theirs.load_fsdp_model(their_plugin, accelerator, other, folder)
    theirs.load_fsdp_optimizer(their_plugin, accelerator, stepped, other, folder)
    return differing(snapshot(other, stepped), snapshot(model, optimizer))


def _theirs_to_ours(folder: Path, kind: str, state_dict_type: str) -> list[str]:
    model, optimizer = trained(kind)
    by = plugin(kind, state_dict_type)
    theirs, their_plugin, accelerator = _peers(by.fsdp_version, state_dict_type)
    theirs.save_fsdp_model(their_plugin, accelerator, model, folder)
    theirs.save_fsdp_optimizer(their_plugin, accelerator, optimizer, model, folder)
    other, stepless = build(kind, seed=1)
    load_fsdp_model(by, None, other, folder)
    load_fsdp_optimizer(by, None, stepless, other, folder)
    return differing(snapshot(other, stepless), snapshot(model, optimizer))


@NEEDS_PEERS
@pytest.mark.parametrize("direction", [_ours_to_theirs, _theirs_to_ours])
@pytest.mark.parametrize(
    ("kind", "state_dict_type"),
    [
        ("flat", "SHARDED_STATE_DICT"),
        ("original", "SHARDED_STATE_DICT"),
        ("fully-shard", "SHARDED_STATE_DICT"),
        ("fully-shard", "FULL_STATE_DICT"),  # of FSDP1 it dies on a CPU
    ],
)
def test_files_are_accelerates(
    direction: Callable[..., list[str]],
    kind: str,
    state_dict_type: str,
    launch: Launch,
    tmp_path: Path,
) -> None:
    found = launch(direction, tmp_path / "step", kind, state_dict_type, world_size=2)
    assert found == [[], []]
