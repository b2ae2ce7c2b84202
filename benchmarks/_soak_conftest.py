"""The conftest of the soak's sessions: samples what the engine holds while it runs.

It reads the engine's insides, as nothing else can say whose a folder in /dev/shm is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

EVERY = 25  # tests


class Sampler:
    """Writes a line on the engine's processes every so many tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tests = 0

    def pytest_runtest_logfinish(self) -> None:
        """Count a test, and sample."""
        self._tests += 1
        controller: Any = self._config.pluginmanager.getplugin("shardproof-controller")
        if controller is None or self._tests % EVERY:
            return
        zygote = controller.start()
        ranks = [pid for one in controller._warm.values() if one.whole for pid in one.pids]
        sample = {
            "tests": self._tests,
            "scratch": zygote._scratch,
            "controller": usage(os.getpid()),
            "zygote": usage(zygote.pid),
            "rank": max((usage(pid) for pid in ranks), default=None),
        }
        with Path(f"sample{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(sample) + "\n")


def usage(pid: int) -> tuple[int, int]:
    """Return how many descriptors a process has open, and its resident memory in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return descriptors, pages * os.sysconf("SC_PAGE_SIZE") >> 20


def pytest_configure(config: pytest.Config) -> None:
    """Begin to sample."""
    config.pluginmanager.register(Sampler(config))
