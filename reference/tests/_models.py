"""Models, optimizers and comparisons that the tests of the reference share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from shardproof import current_world
from shardproof_reference import FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

KINDS = ("flat", "original", "fully-shard")
SHARDED, FULL = StateDictType.SHARDED_STATE_DICT, StateDictType.FULL_STATE_DICT
TYPES = (SHARDED, FULL)


class Block(nn.Module):
    """One unit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.register_buffer("count", torch.tensor([1, 2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.lin(x))


class Model(nn.Module):
    """Sizes that don't divide, a tied head and integer buffers."""

    def __init__(self, width: int = 5, tied: bool = True, extra: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, width)
        self.block = Block(width)
        self.head = nn.Linear(width, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        if extra:
            self.extra = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.block(self.embed(x)))
        return result


def wrap(model: nn.Module, kind: str) -> nn.Module:
    """Shard over all ranks."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2 if kind == "fully-shard" else 1,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=None if kind == "fully-shard" else kind == "original",
    )
    return plugin.wrap(model)


def build(
    kind: str,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make a sharded model and its optimizer; the same seed gives the same values."""
    torch.manual_seed(seed)
    model = wrap(Model(**settings).to(dtype), kind)
    return model, make(model.parameters(), **(options or {}))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    """Take steps on data that differs from rank to rank."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + current_world().rank)
        loss = model(torch.randint(7, (2, 3), generator=generator)).float().square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Copy what this rank holds, as bytes; padding of flat parameters is left out by nobody."""
    held: dict[str, Any] = {name: _bytes(tensor) for name, tensor in model.named_parameters()}
    held |= {name: _bytes(tensor) for name, tensor in model.named_buffers()}
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    for tensor, state in optimizer.state.items():
        if tensor.numel():
            held |= {f"{names[id(tensor)]}.{key}": _bytes(value) for key, value in state.items()}
    for index, group in enumerate(optimizer.param_groups):
        held |= {f"{index}.{key}": _bytes(v) for key, v in group.items() if key != "params"}
    return held


def _bytes(value: Any) -> Any:
    if isinstance(value, DTensor):
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        flat = value.detach().clone().contiguous().view(-1)
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
    return value


def names_in(folder: Path) -> list[str]:
    """List a folder, hidden names too."""
    return sorted(path.name for path in folder.iterdir())
