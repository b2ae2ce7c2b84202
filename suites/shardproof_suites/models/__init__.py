"""The model zoo: small modules chosen for their corners.

A module of the zoo has `build(dtype)` and `batch(dtype, generator)`, and its docstring says which
corner it is there for. Its model's `_no_split_modules` names the classes of its FSDP units, as in
transformers; the rest is one more unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shardproof_suites.models import tied, uneven

if TYPE_CHECKING:
    import torch
    from torch import nn


class ZooModel(Protocol):
    """A module of the zoo."""

    def build(self, dtype: torch.dtype) -> nn.Module:
        """Make the model with parameters of one dtype."""

    def batch(self, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        """Make one input."""


ZOO: dict[str, ZooModel] = {"uneven": uneven, "tied": tied}


def unit_classes(model: nn.Module) -> tuple[type[nn.Module], ...]:
    """Find the classes that `_no_split_modules` names."""
    names = getattr(model, "_no_split_modules", ())
    return tuple({type(child) for child in model.modules() if type(child).__name__ in names})
