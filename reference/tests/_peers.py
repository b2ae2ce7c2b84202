"""Real implementations, which are no dependencies: importing them, and comparing with them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

IMPLEMENTATIONS = Path(__file__).resolve().parents[2] / ".venv" / "implementations"
NEEDS_PEERS = pytest.mark.skipif(
    not IMPLEMENTATIONS.is_dir(), reason="make installs Accelerate and Modalities beside .venv"
)


def import_peers() -> None:
    """Make them importable, in a process of its own; their many warnings are no matter."""
    sys.path.append(str(IMPLEMENTATIONS))
    warnings.simplefilter("ignore")


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Name what differs; torch makes lists of tuples when it broadcasts a full state."""
    both = [
        {name: [*held] if isinstance(held, tuple) else held for name, held in values.items()}
        for values in (one, other)
    ]
    return [name for name in {**one, **other} if both[0].get(name) != both[1].get(name)]
