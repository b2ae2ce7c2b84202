"""The optimizer of the cases and one step with it, as a function of the rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from shardproof_suites.oracle import clean_name

if TYPE_CHECKING:
    from torch import nn

    from shardproof_suites.implementation import MakeOptimizer, TrainState
    from shardproof_suites.models import ZooModel

Options: TypeAlias = tuple[dict[str, Any], dict[str, Any]]

# Group 0 is the rest, group 1 the blocks; the two sides of a save differ in every value.
SAVED_OPTIONS: Options = (
    {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1},
    {"lr": 3e-4, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.0},
)
LOADING_OPTIONS: Options = (
    {"lr": 0.5, "betas": (0.5, 0.6), "eps": 1e-3, "weight_decay": 0.7},
    {"lr": 0.25, "betas": (0.3, 0.4), "eps": 1e-4, "weight_decay": 0.6},
)
STATES = ("exp_avg", "exp_avg_sq")
STEP_KIND = "torch.float32"  # of AdamW's 0-dim `step`, whatever the parameters' dtype


def make_adamw(options: Options) -> MakeOptimizer:
    """Give a maker of AdamW with two groups, cut so that a flat parameter lies in one of them."""

    def make(named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for name, parameter in named:
            groups[group_of(clean_name(name))].append(parameter)
        return _adamw(groups, options)

    return make


def group_of(fqn: str) -> int:
    """Tell which parameter group trains a parameter."""
    return int(fqn.startswith("blocks."))


def full_options(options: Options) -> list[dict[str, Any]]:
    """Give each group's options with AdamW's own defaults, without its parameters."""
    groups = _adamw(([torch.zeros(1)], [torch.zeros(1)]), options).param_groups
    return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def take_step(state: TrainState, model: ZooModel, dtype: torch.dtype, rank: int) -> None:
    """Train one step, on data that differs from rank to rank; collective."""
    batch = model.batch(dtype, torch.Generator().manual_seed(rank))
    batch = batch.to(next(state.modules[0].parameters()).device)
    for module in state.modules:
        batch = module(batch)
    loss = batch.float().square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    for optimizer in state.optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _adamw(groups: tuple[list[Any], list[Any]], options: Options) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [{"params": group, **one} for group, one in zip(groups, options, strict=True)]
    )
