"""Workers of pytest-xdist: each has a slot of its own, and the GPUs that go with it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

SLOT = "shardproof_slot"
_taken: pytest.StashKey[dict[str, int]] = pytest.StashKey()


def take_slot(node: Any) -> None:
    """In xdist's controller: give a worker that starts the lowest slot that is free.

    Its name has no place in a row: the worker that replaces `gw0` of two is `gw2`.
    """
    taken = node.config.stash.setdefault(_taken, {})
    slot = next(slot for slot in itertools.count() if slot not in taken.values())
    node.workerinput[SLOT] = taken[node.gateway.id] = slot


def free_slot(node: Any) -> None:
    """In xdist's controller: take back the slot of a worker that has ended."""
    node.config.stash.setdefault(_taken, {}).pop(node.gateway.id, None)


def place(config: pytest.Config) -> tuple[int, int]:
    """Return this worker's slot and how many there are; `(0, 1)` where this is no worker."""
    given: dict[str, Any] = getattr(config, "workerinput", {})
    return given.get(SLOT, 0), given.get("workercount", 1)


def gpus_of(slot: int, slots: int, count: int, visible: str | None) -> str:
    """Return the GPUs of one worker, as CUDA_VISIBLE_DEVICES names them.

    All workers get equally many, so that what a test may have doesn't depend on the worker that
    it lands on; some GPUs may be left over, and of fewer GPUs than workers no one gets any.

    Args:
        slot: The worker's slot, from 0.
        slots: How many workers there are.
        count: How many GPUs the caller sees.
        visible: The caller's CUDA_VISIBLE_DEVICES, or None.
    """
    names = [str(gpu) for gpu in range(count)] if visible is None else visible.split(",")
    share = count // slots
    return ",".join(name.strip() for name in names[slot * share : (slot + 1) * share])
