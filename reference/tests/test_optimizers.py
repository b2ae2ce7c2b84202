"""Optimizers and models come back as they were, in new processes and in torch's own loader."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from shardproof import Launch
from shardproof_reference import load_checkpoint, save_checkpoint
from shardproof_reference.checkpointing._parameters import parameters
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
)
from torch.distributed.fsdp import StateDictType

from ._models import (
    FULL,
    KINDS,
    SHARDED,
    TYPES,
    Model,
    build,
    names_in,
    snapshot,
    train,
    wrap,
)

OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=1e-2),
    "amsgrad": partial(torch.optim.AdamW, lr=1e-2, amsgrad=True),
    "tensor-lr": lambda parameters, **_: torch.optim.AdamW(parameters, lr=torch.tensor(1e-2)),
    "sgd": partial(torch.optim.SGD, lr=1e-2),
    "momentum": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),
}

Held = dict[str, Any]


def _save(folder: Path, kind: str, optimizer_name: str, kind_of_state: StateDictType) -> Held:
    model, optimizer = build(kind, OPTIMIZERS[optimizer_name])
    train(model, optimizer)
    before = snapshot(model, optimizer)
    save_checkpoint(folder, model, optimizer, kind_of_state)
    assert snapshot(model, optimizer) == before
    return before


def _load(
    folder: Path, kind: str, optimizer_name: str, kind_of_state: StateDictType, steps: int
) -> Held:
    model, optimizer = build(kind, OPTIMIZERS[optimizer_name], seed=1)
    train(model, optimizer, steps)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * 3
    load_checkpoint(folder, model, optimizer, kind_of_state)
    return snapshot(model, optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state_dict_type", TYPES)
def test_every_optimizer_comes_back(
    name: str, kind: str, state_dict_type: StateDictType, launch: Launch, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    saved = launch(_save, folder, kind, name, state_dict_type, world_size=3)
    for steps in (0, 1):
        loaded = launch(_load, folder, kind, name, state_dict_type, steps, world_size=3)
        assert loaded == saved
    assert names_in(tmp_path) == ["checkpoint"]


def _save_untrained(folder: Path) -> Held:
    model, optimizer = build("original")
    save_checkpoint(folder, model, optimizer, SHARDED)
    return snapshot(model, optimizer)


def test_an_optimizer_without_state_is_saved_and_loaded_without(
    launch: Launch, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    saved = launch(_save_untrained, folder, world_size=2)
    assert launch(_load_plain, folder, SHARDED, 0, world_size=2) == saved


def _load_plain(folder: Path, state_dict_type: StateDictType, steps: int) -> Held:
    model, optimizer = build("original", seed=1)
    train(model, optimizer, steps)
    load_checkpoint(folder, model, optimizer, state_dict_type)
    return snapshot(model, optimizer)


def _save_unused(folder: Path) -> Held:
    model, optimizer = build("fully-shard", extra=True)
    train(model, optimizer)
    save_checkpoint(folder, model, optimizer, SHARDED)
    return snapshot(model, optimizer)


def _load_unused(folder: Path) -> Held:
    model, optimizer = build("fully-shard", seed=1, extra=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    load_checkpoint(folder, model, optimizer, SHARDED)
    return snapshot(model, optimizer)


def test_a_parameter_that_was_never_stepped_has_no_state_again(
    launch: Launch, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    saved = launch(_save_unused, folder, world_size=2)
    assert not any(name.startswith("extra.") for name in saved[0])
    assert launch(_load_unused, folder, world_size=2) == saved


def _names(kind: str) -> list[tuple[str, ...]]:
    model = Model()
    model.block.lin = checkpoint_wrapper(model.block.lin)  # type: ignore[assignment]
    return [(one.fqn, *one.aliases) for one in parameters(wrap(model, kind))]


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_the_unwrapped_models(kind: str, launch: Launch) -> None:
    names = [("embed.weight", "head.weight"), ("block.lin.weight",), ("block.lin.bias",)]
    assert launch(_names, kind, world_size=2) == [names] * 2


def _nested(folder: Path, reader: str) -> dict[str, Any]:
    """Read a checkpoint without a process group, as torch's tools do."""
    if reader == "torch.load":
        return {
            "model": torch.load(folder / "pytorch_model_fsdp.bin", weights_only=True),
            "optimizer": torch.load(folder / "optimizer.bin", weights_only=True),
        }
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    content: dict[str, Any] = {}
    storage = dcp.FileSystemReader(folder)
    _load_state_dict(content, storage, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return content


def _whole(folder: Path, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Save both ways, and give the state as torch's own helpers gather it."""
    model, optimizer = build(kind)
    train(model, optimizer)
    save_checkpoint(folder / "sharded", model, optimizer, SHARDED)
    save_checkpoint(folder / "full", model, optimizer, FULL)
    options = StateDictOptions(full_state_dict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (
            get_model_state_dict(model, options=options),
            get_optimizer_state_dict(model, optimizer, options=options),
        )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype is other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("kind", ["flat", "fully-shard"])
def test_torchs_readers_find_what_torchs_helpers_gather(
    kind: str, launch: Launch, tmp_path: Path
) -> None:
    model, optimizer = launch(_whole, tmp_path, kind, world_size=2)[0]
    for folder, reader in (("sharded", "dcp"), ("full", "torch.load")):
        content = _nested(tmp_path / folder, reader)
        assert _same(content["model"], model)
        assert _same(content["optimizer"], optimizer)


def _save_by_torch(folder: Path) -> Held:
    model, optimizer = build("fully-shard")
    train(model, optimizer)
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=folder)
    return snapshot(model, optimizer)


def test_what_torch_saved_is_loaded(launch: Launch, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    saved = launch(_save_by_torch, folder, world_size=2)
    loaded = launch(_load, folder, "fully-shard", "adamw", SHARDED, 0, world_size=2)
    assert [{**one, "0.lr": 0} for one in loaded] == [{**one, "0.lr": 0} for one in saved]
