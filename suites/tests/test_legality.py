"""`legal` agrees with what torch does, cell by cell."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from shardproof import World
from shardproof_suites.cell import Cell, Dtype, StateDictType, Strategy
from shardproof_suites.legality import legal
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp import StateDictType as TorchType

WORLD_SIZE = 4
MESHES: tuple[tuple[int, ...] | None, ...] = (None, (4,), (2, 2))
FLAT = [strategy for strategy in Strategy if strategy.fsdp_version == 1]
CELLS = [
    Cell(strategy, Dtype.FLOAT32, kind, WORLD_SIZE, use_orig_params=original, mesh=mesh)
    for strategy, kind, original, mesh in itertools.product(
        FLAT, StateDictType, (False, True), MESHES
    )
] + [
    Cell(strategy, Dtype.FLOAT32, kind, WORLD_SIZE, mesh=mesh)
    for strategy, mesh in ((Strategy.FULLY_SHARD, (4,)), (Strategy.FULLY_SHARD_2D, (2, 2)))
    for kind in (StateDictType.FULL, StateDictType.SHARDED)
]


class Model(nn.Module):
    """A unit within the root."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 8)


@pytest.mark.ranks(WORLD_SIZE)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.name}-{cell.mesh}")
def test_legal_is_what_torch_does(world: World, cell: Cell) -> None:
    failures = world.gather(_what_torch_does(cell))
    if legal(cell) is None:
        assert failures == [""] * WORLD_SIZE
    else:
        assert "" not in failures, "torch does it"


def _what_torch_does(cell: Cell) -> str:
    """Shard a model, take its state and load it again; return what is wrong, or nothing."""
    torch.manual_seed(0)
    names = ("replicate", "shard")[-len(cell.mesh or ()) :]
    mesh = cell.mesh and init_device_mesh("cpu", cell.mesh, mesh_dim_names=names)
    try:
        flat = cell.strategy.fsdp_version == 1
        return _flat(cell, mesh or None) if flat else _fully(cell, mesh)
    except (RuntimeError, ValueError, AssertionError, NotImplementedError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def _flat(cell: Cell, mesh: DeviceMesh | None) -> str:
    name = cell.strategy.name
    model = FullyShardedDataParallel(
        Model(),
        sharding_strategy=ShardingStrategy[f"_{name}" if name.endswith("ZERO2") else name],
        device_id=torch.device("cpu"),
        device_mesh=mesh,
        use_orig_params=bool(cell.use_orig_params),
    )
    handle: Any = model._handle
    group = handle.process_group.size(), handle.flat_param.numel()
    shards = cell.shard_group_size if name.startswith("HYBRID") else WORLD_SIZE
    wanted = shards, 144 if name == "NO_SHARD" else 144 // shards
    if group != wanted:
        return f"it has a group and elements of {group}, and not {wanted}"
    before = _values(model)
    kind = TorchType[f"{cell.state_dict_type.name}_STATE_DICT"]
    with FullyShardedDataParallel.state_dict_type(model, kind):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            state = {key: _copied(value) for key, value in model.state_dict().items()}
        if kind is TorchType.LOCAL_STATE_DICT and any("full_state_dict" in str(w) for w in said):
            return "it stores the full state in place of the local one"
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        model.load_state_dict(state)
    return "" if torch.equal(before, _values(model)) else "other values come back"


def _values(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def _copied(value: Any) -> Any:
    for shard in value.local_shards() if hasattr(value, "local_shards") else ():
        shard.tensor = shard.tensor.clone()
    return value.clone() if type(value) is torch.Tensor else value


def _fully(cell: Cell, mesh: Any) -> str:
    model = Model()
    fully_shard(model.inner, mesh=mesh)
    fully_shard(model, mesh=mesh)
    options = StateDictOptions(full_state_dict=cell.state_dict_type is StateDictType.FULL)
    state = {k: v.clone() for k, v in get_model_state_dict(model, options=options).items()}
    before = [parameter.to_local().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    set_model_state_dict(model, state, options=options)
    after = [parameter.to_local() for parameter in model.parameters()]  # type: ignore[attr-defined]
    same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return "" if same else "other values come back"
