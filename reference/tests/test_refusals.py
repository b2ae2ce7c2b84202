"""What saving and loading refuse: on every rank, with the names, and with nothing changed."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shardproof import Launch
from shardproof_reference import LoadError, SaveError, load_checkpoint, save_checkpoint
from torch.distributed.fsdp import StateDictType

from ._models import FULL, KINDS, SHARDED, TYPES, build, names_in, snapshot, train

Settings = dict[str, Any]


def _save(folder: Path, kind: str, state_dict_type: StateDictType, settings: Settings) -> None:
    model, optimizer = build(kind, **settings)
    train(model, optimizer)
    save_checkpoint(folder, model, optimizer, state_dict_type)


def _refusal(
    folder: Path, kind: str, state_dict_type: StateDictType, stepped: bool, settings: Settings
) -> str:
    """Load what must be refused; give the message."""
    model, optimizer = build(kind, seed=1, **settings)
    if stepped:
        train(model, optimizer)
    before = snapshot(model, optimizer)
    with pytest.raises(LoadError) as caught:
        load_checkpoint(folder, model, optimizer, state_dict_type)
    assert snapshot(model, optimizer) == before
    return str(caught.value)


def tensor_lr(parameters: Any) -> torch.optim.Optimizer:
    """Make an AdamW whose lr is a tensor."""
    return torch.optim.AdamW(parameters, lr=torch.tensor(0.01))


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state_dict_type", TYPES)
@pytest.mark.parametrize(
    ("saved", "loading", "problems"),
    [
        (
            {"extra": True},
            {},
            ["model: model.extra is in the checkpoint only"],
        ),
        ({}, {"extra": True}, ["model: model.extra is missing in the checkpoint"]),
        (
            {"width": 4},
            {},
            ["model.embed.weight is torch.float32 [7, 4] in the checkpoint"],
        ),
        (
            {"dtype": torch.bfloat16},
            {},
            ["model.embed.weight is torch.bfloat16 [7, 5] in the checkpoint"],
        ),
        (
            {"make": torch.optim.Adagrad},
            {},
            ["parameter group 0: betas is missing in the checkpoint", "lr_decay"],
        ),
        (
            {"make": tensor_lr},
            {},
            ["lr of parameter group 0 is a tensor in the checkpoint and none in the optimizer"],
        ),
    ],
    ids=["unexpected", "missing", "shape", "dtype", "optimizer", "tensor-lr"],
)
def test_a_checkpoint_that_doesnt_fit_is_refused_before_anything_is_changed(
    saved: Settings,
    loading: Settings,
    problems: list[str],
    state_dict_type: StateDictType,
    kind: str,
    stepped: bool,
    launch: Launch,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "checkpoint"
    launch(_save, folder, kind, state_dict_type, saved, world_size=2)
    messages = launch(_refusal, folder, kind, state_dict_type, stepped, loading, world_size=2)
    assert [problem for problem in problems if problem not in messages[0]] == []
    assert messages[0] == messages[1]
    assert messages[0].startswith("rank 0: the checkpoint doesn't fit:")


def _save_groups(folder: Path, kind: str) -> None:
    model, _ = build(kind)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": parameters[:1]}, {"params": parameters[1:]}])
    train(model, optimizer)
    save_checkpoint(folder, model, optimizer, SHARDED)


@pytest.mark.parametrize("kind", KINDS)
def test_other_parameter_groups_are_refused(kind: str, launch: Launch, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    launch(_save_groups, folder, kind, world_size=2)
    messages = launch(_refusal, folder, kind, SHARDED, False, {}, world_size=2)
    assert "2 parameter groups in the checkpoint, 1 in the optimizer" in messages[0]


def _save_twice(folder: Path) -> str:
    model, optimizer = build("original")
    save_checkpoint(folder, model, optimizer, SHARDED)
    with pytest.raises(SaveError) as caught:
        save_checkpoint(folder, model, optimizer, SHARDED)
    return str(caught.value)


def test_a_folder_that_exists_is_left_alone(launch: Launch, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    messages = launch(_save_twice, folder, world_size=2)
    wanted = f"rank 0: {folder} exists; choose another name or delete it first"
    assert messages == [wanted] * 2
    assert names_in(tmp_path) == ["checkpoint"]


def _save_odd_state(folder: Path, state_dict_type: StateDictType, value: Any) -> str:
    """Save with something on the last rank that can't be stored."""
    model, optimizer = build("fully-shard")
    train(model, optimizer)
    if torch.distributed.get_rank() == 1:
        next(iter(optimizer.state.values()))["odd"] = value
    with pytest.raises(SaveError) as caught:
        save_checkpoint(folder, model, optimizer, state_dict_type)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (torch.zeros(2), "has shape [2]; only 0-dim state and state of its parameter's shape"),
        ({1: 2}, "is a dict, which can't be stored"),
        (np.float64(1), "is a float64, which can't be stored"),
        ((0.9, np.float64(1)), "is a tuple, which can't be stored"),
    ],
    ids=["shape", "type", "numpy", "numpy-in-tuple"],
)
@pytest.mark.parametrize("state_dict_type", TYPES)
def test_an_error_on_one_rank_reaches_all_and_leaves_nothing_behind(
    value: Any, problem: str, state_dict_type: StateDictType, launch: Launch, tmp_path: Path
) -> None:
    messages = launch(_save_odd_state, tmp_path / "new", state_dict_type, value, world_size=2)
    assert messages[0] == messages[1]
    assert messages[0].startswith("rank 1: optimizer.state.")
    assert problem in messages[0]
    assert names_in(tmp_path) == []


def _save_local(folder: Path) -> str:
    model, optimizer = build("flat")
    with pytest.raises(SaveError) as caught:
        save_checkpoint(folder, model, optimizer, StateDictType.LOCAL_STATE_DICT)
    return str(caught.value)


def test_local_is_refused(launch: Launch, tmp_path: Path) -> None:
    (message,) = set(launch(_save_local, tmp_path / "new", world_size=2))
    assert "LOCAL_STATE_DICT is not supported; use SHARDED or FULL" in message
    assert names_in(tmp_path) == []


class Payload:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("code of the checkpoint was run",))


def _remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _spoil_full(folder: Path) -> None:
    torch.save({"embed.weight": Payload()}, folder / "pytorch_model_fsdp.bin")


def _untie_full(folder: Path) -> None:
    file = folder / "pytorch_model_fsdp.bin"
    content = torch.load(file, weights_only=True)
    content["head.weight"] = content["head.weight"] + 1
    torch.save(content, file)


def _lose_state(folder: Path) -> None:
    content = torch.load(folder / "optimizer.bin", weights_only=True)
    del content["state"]["block.lin.bias"]["exp_avg"]
    torch.save(content, folder / "optimizer.bin")


def _drop_chunk(folder: Path) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.state_dict_metadata["model.embed.weight"].chunks.pop()
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def _change(folder: Path, change: Callable[[Any], object]) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def _spoil_metadata(folder: Path) -> None:
    _change(folder, lambda metadata: setattr(metadata, "planner_data", Payload()))


def _spoil_object(folder: Path) -> None:
    """Put the payload in the place of an option, which DCP stores as a file of torch.save."""
    stream = io.BytesIO()
    torch.save(Payload(), stream)
    (folder / "more.distcp").write_bytes(stream.getvalue())

    def change(metadata: Any) -> None:
        index = next(one for one in metadata.storage_data if one.fqn.endswith(".lr"))
        info = metadata.storage_data[index]
        info.relative_path, info.offset, info.length = "more.distcp", 0, stream.tell()

    _change(folder, change)


def _lead_outside(folder: Path) -> None:
    def change(metadata: Any) -> None:
        index = next(iter(metadata.storage_data))
        metadata.storage_data[index].relative_path = "../other.distcp"

    (folder.parent / "other.distcp").write_bytes(bytes(10**6))
    _change(folder, change)


def _cut(name: str, by: int = 100) -> Callable[[Path], object]:
    def cut(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-by])

    return cut


@pytest.mark.parametrize(
    ("state_dict_type", "damage", "message"),
    [
        (SHARDED, _spoil_metadata, "would call _pytest.outcomes._Fail, which torch doesn't write"),
        (SHARDED, _spoil_object, "UnpicklingError"),
        (SHARDED, _cut(".metadata"), ".metadata is damaged"),
        (SHARDED, _cut("__1_0.distcp"), "the file is cut off"),
        (SHARDED, _lead_outside, "../other.distcp of"),
        (FULL, _cut("pytorch_model_fsdp.bin"), "pytorch_model_fsdp.bin"),
        (SHARDED, _remove(".metadata"), "no .metadata; not a complete sharded checkpoint"),
        (SHARDED, _remove("__1_0.distcp"), "__1_0.distcp is missing, which holds"),
        (SHARDED, _drop_chunk, "model.embed.weight: the checkpoint's chunks have gaps"),
        (FULL, _remove("optimizer.bin"), "no optimizer.bin; not a complete full checkpoint"),
        (FULL, _spoil_full, "UnpicklingError"),
        (FULL, _lose_state, "state of block.lin.bias: exp_avg is missing in the checkpoint"),
        (FULL, _untie_full, "model.head.weight and model.embed.weight are one tensor"),
    ],
    ids=[
        "code-in-metadata",
        "code-in-object",
        "short-metadata",
        "short-file",
        "outside",
        "short-full",
        "metadata",
        "file",
        "chunk",
        "optimizer",
        "code",
        "state",
        "untied",
    ],
)
def test_a_damaged_checkpoint_is_refused_on_every_rank(
    state_dict_type: StateDictType,
    damage: Callable[[Path], object],
    message: str,
    launch: Launch,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "checkpoint"
    launch(_save, folder, "original", state_dict_type, {}, world_size=2)
    damage(folder)
    for found in launch(_load_damaged, folder, state_dict_type, world_size=2):
        assert message in found


def _load_damaged(folder: Path, state_dict_type: StateDictType) -> str:
    model, optimizer = build("original", seed=1)
    before = snapshot(model, optimizer)
    with pytest.raises(LoadError) as caught:
        load_checkpoint(folder, model, optimizer, state_dict_type)
    found = str(caught.value)
    assert snapshot(model, optimizer) == before or "are one tensor" in found
    return found
