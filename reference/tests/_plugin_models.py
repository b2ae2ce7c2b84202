"""The model that the tests of the plugin shard, and what they look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from shardproof_reference import FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
)
from torch.distributed.tensor import DTensor

WIDTH = 6
BLOCKS: dict[str, Any] = {
    "auto_wrap_policy": "transformer_based_wrap",
    "transformer_cls_names_to_wrap": "Block",
}
VERSIONS = pytest.mark.parametrize("version", [1, 2])
TOKENS = torch.tensor([[1, 2, 3]])


class Block(nn.Module):
    """One unit, with buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.rand(3), persistent=False)
        self.register_buffer("count", torch.tensor(2))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = x.dtype, self.lin.weight.dtype, self.scale.dtype
        return torch.tanh(self.lin(x)) * self.count + self.scale.sum()


class Model(nn.Module):
    """Two blocks between an embedding and a head that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Named(Model):
    """One that names its blocks itself, as models of transformers do."""

    _no_split_modules = ("Block", "OfAnotherVariant")


def wrap(
    model: nn.Module | None = None, mesh: DeviceMesh | None = None, **settings: Any
) -> nn.Module:
    plugin = FullyShardedDataParallelPlugin(**{**BLOCKS, **settings})
    return plugin.wrap(Model() if model is None else model, mesh)


def units(model: nn.Module) -> dict[str, dict[str, Any]]:
    described = FullyShardedDataParallelPlugin.describe(model).as_dict()
    return {unit["name"]: unit for unit in described["units"]}


def loss(model: nn.Module) -> torch.Tensor:
    result: torch.Tensor = model(TOKENS).float().sum()
    return result


def two_replicas() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def blocks(model: nn.Module) -> Iterator[Block]:
    return (module for module in model.modules() if isinstance(module, Block))


def everything(model: nn.Module, version: int) -> list[torch.Tensor]:
    """Return all parameters, whole, and all buffers."""
    if version == 1:
        with FullyShardedDataParallel.summon_full_params(model):
            found = [p.detach().clone().reshape(-1) for p in model.parameters()]
    else:
        found = [
            (p.full_tensor() if isinstance(p, DTensor) else p).detach().reshape(-1)
            for p in model.parameters()
        ]
    return [*found, *(buffer.reshape(-1).float() for buffer in model.buffers())]


def seeded(seed: int) -> Model:
    torch.manual_seed(seed)
    return Model()


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
