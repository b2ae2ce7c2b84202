"""What the models of the zoo are made of."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """A linear layer and a norm; one FSDP unit.

    Args:
        width: Size of the input and output.
        scaled: Add `scale`, a persistent buffer of 3 elements.
    """

    scale: torch.Tensor | None

    def __init__(self, width: int, scaled: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("scale", torch.ones(3) if scaled else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, width) to (batch, width)."""
        hidden: torch.Tensor = self.norm(torch.tanh(self.lin(x)))
        return hidden if self.scale is None else hidden * self.scale.mean().to(x.dtype)


def cast_parameters(module: nn.Module, dtype: torch.dtype) -> None:
    """Change the dtype of the parameters; buffers stay float32, as in the goldens."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
