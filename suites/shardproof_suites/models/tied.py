"""`tied`: the head's weight is the embedding's, and vectors of 6 leave one of four ranks empty."""

from __future__ import annotations

import torch
from torch import nn

from shardproof_suites.models._layers import Block, cast_parameters

_VOCABULARY = 11


class Tied(nn.Module):
    """Five parameters, one of them with two names; as in the golden checkpoints."""

    _no_split_modules = ("Block",)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, 6)
        self.blocks = nn.ModuleList([Block(6, scaled=False)])
        self.lm_head = nn.Linear(6, _VOCABULARY, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map token ids (batch, length) to logits (batch, length, 11)."""
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.lm_head(x)
        return result


def build(dtype: torch.dtype) -> nn.Module:
    """Make the model with parameters of one dtype."""
    model = Tied()
    cast_parameters(model, dtype)
    return model


def batch(dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Make one input of token ids, shape (2, 3), int64."""
    return torch.randint(_VOCABULARY, (2, 3), generator=generator)
