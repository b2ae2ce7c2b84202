"""Run pytest tests on real multi-rank process groups, and launch functions on fresh ranks.

The pytest plugin is `shardproof.plugin`; it loads by itself. Importing this package loads
neither torch nor anything else that is slow. PYTEST_DONT_REWRITE: a spawned rank has imported
it before pytest, which would warn that its assertions are too late to be rewritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardproof._launch import Launch
    from shardproof._world import World, current_world
    from shardproof.errors import LeakWarning, RankFailure, RankOutcome

__all__ = ["Launch", "LeakWarning", "RankFailure", "RankOutcome", "World", "current_world"]

_HOMES = {
    "Launch": "shardproof._launch",
    "LeakWarning": "shardproof.errors",
    "RankFailure": "shardproof.errors",
    "RankOutcome": "shardproof.errors",
    "World": "shardproof._world",
    "current_world": "shardproof._world",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
