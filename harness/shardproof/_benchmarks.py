"""Figures of pytest-benchmark: rank 0's are the test's, and reach the table of the session."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from shardproof._plain import plain


def take(config: pytest.Config) -> bytes:
    """On a rank: return what was measured since the last time, or nothing."""
    measured = getattr(getattr(config, "_benchmarksession", None), "benchmarks", [])
    taken = [_detached(one) for one in measured]
    measured.clear()
    return pickle.dumps(taken) if taken else b""


def add(config: pytest.Config, taken: bytes) -> None:
    """In the pytest process: add what a rank has measured."""
    config._benchmarksession.benchmarks += pickle.loads(taken)  # type: ignore[attr-defined]


def _detached(measured: Any) -> Any:
    """Return a copy without what can't leave the process: the fixture, profiles, odd values."""
    detached = copy.copy(measured)
    detached.fixture = SimpleNamespace(has_error=measured.fixture.has_error)
    detached.cprofile_stats = None
    if measured.params is not None:
        detached.params = {name: plain(value) for name, value in measured.params.items()}
    detached.extra_info = {name: plain(value) for name, value in measured.extra_info.items()}
    return detached
