"""`uneven`: few sizes divide by 2 or 4, and with four ranks the head leaves one without a shard."""

from __future__ import annotations

import torch
from torch import nn

from shardproof_suites.models._layers import Block, cast_parameters


class Uneven(nn.Module):
    """Twelve parameters and two buffers, of the golden checkpoints' names and shapes."""

    _no_split_modules = ("Block",)

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(5, 7)
        self.blocks = nn.ModuleList([Block(7, scaled=True), Block(7, scaled=True)])
        self.head = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, 5) to (batch, 3)."""
        x = self.proj(x)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result


def build(dtype: torch.dtype) -> nn.Module:
    """Make the model with parameters of one dtype."""
    model = Uneven()
    cast_parameters(model, dtype)
    return model


def batch(dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Make one input, shape (2, 5)."""
    return torch.randn(2, 5, generator=generator).to(dtype)
