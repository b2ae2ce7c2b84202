"""What a session costs that runs no rank test, and what a process costs that only imports."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks._measure import pytest_seconds, seconds, write

ORDINARY = """\
def test_ordinary():
    pass
"""

NOT_IMPORTED = """\
import sys


def test_what_is_loaded():
    loaded = {"torch", "hypothesis"} & set(sys.modules)
    assert not loaded
"""


def imports(folder: Path) -> float:
    """Return the seconds of a Python that imports torch and pytest and ends."""
    return seconds((sys.executable, "-c", "import torch, pytest"), folder)[0]


def ordinary(folder: Path, *options: str) -> float:
    """Return the seconds of a session with one ordinary test."""
    file = write(folder, "test_ordinary.py", ORDINARY)
    return pytest_seconds(file, *options)


def loads_nothing(folder: Path) -> bool:
    """Say whether a session without rank tests runs without torch and hypothesis being imported."""
    file = write(folder, "test_what_is_loaded.py", NOT_IMPORTED)
    # hypothesis has a pytest plugin of its own, which must not be what loads it
    try:
        pytest_seconds(file, "-p", "no:hypothesispytest")
    except RuntimeError:
        return False
    return True
