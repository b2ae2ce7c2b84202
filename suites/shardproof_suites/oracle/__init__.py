"""What every element of every tensor has to be: closed form, fill, poison, check.

A value is a function of (seed, role, name, global index), so each rank fills and checks its own
shard, nothing is gathered and nothing expected is stored (golden/RECIPE.md; the contract's
Oracle). Nothing here is collective: a rank may call it alone.

Names are imported on first use, so importing the package loads neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardproof_suites.oracle._check import check
    from shardproof_suites.oracle._difference import Difference
    from shardproof_suites.oracle._distinct import IndistinctError, assert_distinct
    from shardproof_suites.oracle._fill import expected, expected_box, fill_, poison_
    from shardproof_suites.oracle._names import canonical_names, clean_name
    from shardproof_suites.oracle._origin import Origin, OriginKind
    from shardproof_suites.oracle._recipe import Kind, Oracle, Recipe, fingerprint, step_value
    from shardproof_suites.oracle._shard import Entry, LocalShard

__all__ = [
    "Difference",
    "Entry",
    "IndistinctError",
    "Kind",
    "LocalShard",
    "Oracle",
    "Origin",
    "OriginKind",
    "Recipe",
    "assert_distinct",
    "canonical_names",
    "check",
    "clean_name",
    "expected",
    "expected_box",
    "fill_",
    "fingerprint",
    "poison_",
    "step_value",
]

_HOME = {
    "Difference": "_difference",
    "Entry": "_shard",
    "IndistinctError": "_distinct",
    "Kind": "_recipe",
    "LocalShard": "_shard",
    "Oracle": "_recipe",
    "Origin": "_origin",
    "OriginKind": "_origin",
    "Recipe": "_recipe",
    "assert_distinct": "_distinct",
    "canonical_names": "_names",
    "check": "_check",
    "clean_name": "_names",
    "expected": "_fill",
    "expected_box": "_fill",
    "fill_": "_fill",
    "fingerprint": "_recipe",
    "poison_": "_fill",
    "step_value": "_recipe",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
