"""Cases that any implementation of sharded checkpoints can be held to.

Three lines in a test file hold an implementation to them:

    from shardproof_suites import conformance

    test_conformance = conformance("my_package.adapter:Mine")

Importing this package doesn't load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardproof_suites.capability import DEFAULT_CAPABILITIES, Capability
    from shardproof_suites.cell import Cell, Dtype, StateDictType, Strategy
    from shardproof_suites.door import conformance
    from shardproof_suites.implementation import (
        Implementation,
        LoadResult,
        Pending,
        Ref,
        TrainState,
        Unsupported,
    )

__all__ = [
    "DEFAULT_CAPABILITIES",
    "Capability",
    "Cell",
    "Dtype",
    "Implementation",
    "LoadResult",
    "Pending",
    "Ref",
    "StateDictType",
    "Strategy",
    "TrainState",
    "Unsupported",
    "conformance",
]

_HOME = {
    "DEFAULT_CAPABILITIES": "capability",
    "Capability": "capability",
    "Cell": "cell",
    "Dtype": "cell",
    "Implementation": "implementation",
    "LoadResult": "implementation",
    "Pending": "implementation",
    "Ref": "implementation",
    "StateDictType": "cell",
    "Strategy": "cell",
    "TrainState": "implementation",
    "Unsupported": "implementation",
    "conformance": "door",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
