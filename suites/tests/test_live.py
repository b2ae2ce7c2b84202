"""What the suites read of live models, held against torch's own view of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from shardproof import Launch
from shardproof_suites import _preload  # noqa: F401
from shardproof_suites.cases._cells import cells
from shardproof_suites.cell import Cell, Dtype, StateDictType, Strategy, default_mesh
from shardproof_suites.expectation import Expectation
from shardproof_suites.implementations import reference
from shardproof_suites.live import (
    LiveParameter,
    buffer_shards,
    live_parameters,
    optimizer_numbers,
    optimizer_shards,
    sharding_violations,
)
from shardproof_suites.models import ZOO, unit_classes
from shardproof_suites.oracle import LocalShard, clean_name, expected
from shardproof_suites.subject import Setup, Subject
from shardproof_suites.training import SAVED_OPTIONS
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

REFERENCE = f"{reference.__name__}:Reference"
SHARDED = {
    f"{cell.model_name}-w{size}": cell
    for size in (4, 2, 1)
    for cell in cells(size, (Dtype.FLOAT32,), (StateDictType.SHARDED,))
}

Extent = tuple[str, str, list[int]]


def _filled(setup: Setup, model: str) -> Subject:
    subject = Subject(setup, model, SAVED_OPTIONS)
    subject.step()
    subject.fill()
    return subject


def _indices(shard: LocalShard) -> list[int]:
    """Give the flat global index of each element of a piece."""
    return [shard.box().flat(place) for place in range(shard.tensor.numel())]


def _extents(setup: Setup, model: str) -> list[Extent]:
    subject = _filled(setup, model)
    parameters = live_parameters(subject.state.modules)
    shards = [
        *(one.shard for one in parameters),
        *optimizer_shards(subject.state.optimizers, parameters),
        *buffer_shards(subject.state.modules),
    ]
    return [(shard.role, shard.fqn, _indices(shard)) for shard in shards]


@pytest.mark.parametrize("model", ["uneven", "tied"])
@pytest.mark.parametrize("cell", SHARDED.values(), ids=SHARDED)
def test_shards_hold_each_element_of_the_model_once_in_every_replica(
    cell: Cell, model: str, launch: Launch, tmp_path: Path
) -> None:
    ranks = launch(_extents, Setup(REFERENCE, cell, tmp_path), model, world_size=cell.world_size)
    counts: dict[tuple[str, str], Counter[int]] = {}
    for extents in ranks:
        for role, fqn, indices in extents:
            counts.setdefault((role, fqn), Counter()).update(indices)
    entries = _catalogue(model)
    replicas = cell.world_size // cell.shard_group_size
    assert counts.keys() == entries.keys()
    for (role, fqn), found in counts.items():
        times = cell.world_size if role == "buffer" else replicas
        assert found == Counter(dict.fromkeys(range(entries[role, fqn]), times)), (role, fqn)


def _catalogue(model: str) -> dict[tuple[str, str], int]:
    entries = Expectation.of(ZOO[model].build(torch.float32)).catalogue
    return {(one.role, one.fqn): torch.Size(one.shape).numel() for one in entries}


def _whole(module: nn.Module) -> dict[str, torch.Tensor]:
    """Gather parameters the way torch does."""
    if isinstance(module, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(module, writeback=False):
            return {
                clean_name(name): parameter.detach().clone()
                for name, parameter in module.named_parameters()
            }
    return {
        name: parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        for name, parameter in module.named_parameters()
    }


def _misplaced(setup: Setup, model: str) -> list[str]:
    subject = _filled(setup, model)
    wrong = []
    for name, found in _whole(subject.state.modules[0]).items():
        wanted = expected(
            name, "param", found.dtype, start=0, count=found.numel(), oracle=subject.expected.oracle
        ).view(found.shape)
        if not torch.equal(wanted.view(torch.uint8), found.detach().view(torch.uint8)):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("cell", SHARDED.values(), ids=SHARDED)
def test_filled_shards_are_the_closed_form_in_torchs_own_full_parameters(
    cell: Cell, launch: Launch, tmp_path: Path
) -> None:
    setup = Setup(REFERENCE, cell, tmp_path)
    found = launch(_misplaced, setup, "uneven", world_size=cell.world_size)
    assert found == [[]] * cell.world_size


def _unlike_parameters(setup: Setup) -> list[str]:
    """Copy whole local parameters into a state, and look at the pieces of both."""
    subject = _filled(setup, "uneven")
    parameters = live_parameters(subject.state.modules)
    optimizer = subject.state.optimizers[0]
    for parameter, values in optimizer.state.items():
        values["exp_avg"].copy_(parameter.detach())
    pieces = {one.shard.fqn: one.shard.tensor for one in parameters}
    return [
        shard.fqn
        for shard in optimizer_shards([optimizer], parameters)
        if shard.role == "exp_avg"
        and shard.tensor.numpy().tobytes() != pieces[shard.fqn].numpy().tobytes()
    ]


@pytest.mark.parametrize("cell", SHARDED.values(), ids=SHARDED)
def test_optimizer_state_is_cut_as_its_parameter(
    cell: Cell, launch: Launch, tmp_path: Path
) -> None:
    setup = Setup(REFERENCE, cell, tmp_path)
    found = launch(_unlike_parameters, setup, world_size=cell.world_size)
    assert found == [[]] * cell.world_size


def _counters(setup: Setup) -> list[tuple[str, ...]]:
    subject = _filled(setup, "uneven")
    parameters = live_parameters(subject.state.modules)
    return [one.fqns for one in optimizer_numbers(subject.state.optimizers, parameters)]


@pytest.mark.parametrize(("original", "counters"), [(False, 3), (True, 12)])
def test_a_flat_parameter_has_one_counter(
    original: bool, counters: int, launch: Launch, tmp_path: Path
) -> None:
    cell = Cell(Strategy.NO_SHARD, Dtype.FLOAT32, StateDictType.FULL, 2, original)
    for found in launch(_counters, Setup(REFERENCE, cell, tmp_path), world_size=2):
        assert len(found) == counters
        assert sum(map(len, found)) == 12


Codes = list[tuple[str, str]]


def _judged(setup: Setup, units: int, cell: Cell) -> Codes:
    subject = Subject(setup, "uneven", SAVED_OPTIONS)
    found = sharding_violations(subject.state.modules, cell, units)
    return [(one.code.value, one.item) for one in found]


def _cell(strategy: Strategy, world_size: int = 4) -> Cell:
    original = None if strategy.fsdp_version == 2 else True
    mesh = default_mesh(strategy, world_size)
    return Cell(strategy, Dtype.FLOAT32, StateDictType.FULL, world_size, original, mesh)


@pytest.mark.parametrize(
    ("is_", "asked", "codes"),
    [
        ("FULL_SHARD", "FULL_SHARD", set()),
        ("HYBRID_SHARD_ZERO2", "HYBRID_SHARD_ZERO2", set()),
        ("FULLY_SHARD_2D", "FULLY_SHARD_2D", set()),
        ("SHARD_GRAD_OP", "FULL_SHARD", {"wrong-strategy"}),
        ("NO_SHARD", "FULL_SHARD", {"wrong-strategy", "wrong-local-size"}),
        ("FULL_SHARD", "HYBRID_SHARD", {"wrong-strategy", "wrong-group", "wrong-local-size"}),
        ("FULLY_SHARD", "FULL_SHARD", {"not-wrapped"}),
        ("FULL_SHARD", "FULLY_SHARD", {"not-wrapped"}),
        ("FULLY_SHARD", "FULLY_SHARD_2D", {"wrong-group"}),
    ],
)
def test_a_model_that_is_sharded_otherwise_is_found_out(
    is_: str, asked: str, codes: set[str], launch: Launch, tmp_path: Path
) -> None:
    setup = Setup(REFERENCE, _cell(Strategy[is_]), tmp_path)
    for found in launch(_judged, setup, 3, _cell(Strategy[asked]), world_size=4):
        assert {code for code, _ in found} == codes


def test_too_few_units_are_found_out(launch: Launch, tmp_path: Path) -> None:
    cell = _cell(Strategy.FULLY_SHARD, 2)
    setup = Setup(REFERENCE, cell, tmp_path)
    found = launch(_judged, setup, 4, cell, world_size=2)
    assert found == [[("wrong-units", "model")]] * 2


def _ignoring(cell: Cell) -> Codes:
    model = ZOO["uneven"].build(torch.float32)
    wrapped = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy(set(unit_classes(model))),
        device_id=torch.device("cpu"),
        ignored_states=list(model.get_submodule("head").parameters()),
    )
    found = sharding_violations([wrapped], cell, 3)
    return [(one.code.value, one.item) for one in found]


def test_parameters_that_no_unit_has_are_found_out(launch: Launch) -> None:
    left_out = [("wrong-local-size", f"parameter head.{name}") for name in ("weight", "bias")]
    found = launch(_ignoring, _cell(Strategy.FULL_SHARD, 2), world_size=2)
    assert found == [left_out] * 2


def test_a_bare_module_is_found_out() -> None:
    cell = _cell(Strategy.FULL_SHARD)
    (violation,) = sharding_violations([nn.Linear(2, 2)], cell, 1)
    assert violation.details == ("wanted FullyShardedDataParallel", "found Linear")


def test_tied_names_are_one_parameter(launch: Launch, tmp_path: Path) -> None:
    for strategy in (Strategy.FULL_SHARD, Strategy.FULLY_SHARD):
        setup = Setup(REFERENCE, _cell(strategy, 2), tmp_path)
        for names in launch(_names, setup, world_size=2):
            assert ("embed.weight", "lm_head.weight") in names
            assert len(names) == 5


def _names(setup: Setup) -> list[tuple[str, ...]]:
    parameters: list[LiveParameter] = live_parameters(_filled(setup, "tied").state.modules)
    return [one.names for one in parameters]
