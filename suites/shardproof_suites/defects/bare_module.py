"""A model that was never sharded saves and loads well, and proves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardproof_suites.implementations.reference import Reference

if TYPE_CHECKING:
    from torch import nn


class BareModule(Reference):
    """Wraps nothing."""

    name = "bare-module"

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module as it is."""
        return module
