"""What `wrap_fsdp1` and `wrap_fully_shard` refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from shardproof import Launch
from shardproof_reference import WrapError, wrap_fsdp1, wrap_fully_shard
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from ._models import CPU, Block, Model

PACKAGE = Path(__file__).parents[1] / "shardproof_reference"
HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def _wrap(strategy: str, mesh: tuple[int, ...] | None) -> str:
    dimensions = ("replicate", "shard")[: len(mesh or ())]
    device_mesh = mesh and init_device_mesh("cpu", mesh, mesh_dim_names=dimensions)
    try:
        wrap_fsdp1(
            Model(),
            ShardingStrategy[strategy],
            blocks=(Block,),
            device=CPU,
            device_mesh=device_mesh or None,
        )
    except WrapError as error:
        return str(error)
    return "wrapped"


@pytest.mark.parametrize("strategy", HYBRID)
def test_hybrid_needs_a_2d_mesh(strategy: str, launch: Launch) -> None:
    wanted = f"{strategy} needs a 2-D device mesh (replicate, shard), found"
    assert launch(_wrap, strategy, None, world_size=2) == [f"{wanted} none"] * 2
    assert launch(_wrap, strategy, (2,), world_size=2) == [f"{wanted} 1-D"] * 2
    assert launch(_wrap, strategy, (1, 2), world_size=2) == ["wrapped"] * 2


def test_other_strategies_refuse_a_2d_mesh(launch: Launch) -> None:
    found = launch(_wrap, "FULL_SHARD", (1, 2), world_size=2)
    assert found == ["FULL_SHARD needs no 2-D mesh, found 2-D"] * 2


class TiedBlocks(nn.Module):
    """Two units that share a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(3), Block(3)])
        self.blocks[1].lin.weight = self.blocks[0].lin.weight


def _wrap_tied(version: int) -> str:
    model, blocks = TiedBlocks(), (Block,)
    mesh = init_device_mesh("cpu", (2,))
    try:
        if version == 2:
            wrap_fully_shard(model, blocks=blocks, device_mesh=mesh)
        else:
            wrap_fsdp1(model, ShardingStrategy.FULL_SHARD, blocks=blocks, device=CPU)
    except WrapError as error:
        return str(error)
    return "wrapped"


@pytest.mark.parametrize("version", [1, 2])
def test_a_parameter_of_two_units_is_refused_with_both_names(version: int, launch: Launch) -> None:
    found = launch(_wrap_tied, version, world_size=2)
    assert (
        found
        == [
            "blocks.0.lin.weight and blocks.1.lin.weight are one parameter, but lie in the units "
            "blocks.0 and blocks.1; wrap both in one unit"
        ]
        * 2
    )


def _wrap_alone(strategy: str) -> bool:
    model = wrap_fsdp1(Model(), ShardingStrategy[strategy], blocks=(Block,), device=CPU)
    return isinstance(model, FullyShardedDataParallel)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
def test_a_world_of_one_rank_is_wrapped_without_a_warning(strategy: str, launch: Launch) -> None:
    assert launch(_wrap_alone, strategy, world_size=1) == [True]


def test_the_reference_imports_neither_harness_nor_suites() -> None:
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        assert "shardproof_suites" not in text
        assert "import shardproof\n" not in text
        assert "from shardproof " not in text
        assert "from shardproof." not in text


def test_importing_the_reference_loads_no_torch() -> None:
    code = "import sys, shardproof_reference; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
