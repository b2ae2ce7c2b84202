"""Errors and results that reach every rank; all of it runs collectively."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from shardproof_reference.errors import CheckpointError

T = TypeVar("T")


def agree(action: Callable[[], T], error: type[CheckpointError]) -> T:
    """Run something on each rank; where it fails on one, raise that rank's message on all.

    The action may be collective itself, as long as it fails on all ranks or waits for none.
    """
    result, message = _attempt(action)
    messages: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(messages, message)
    for rank, text in enumerate(messages):
        if text is not None:
            raise error(f"rank {rank}: {text}")
    return result[0]


def on_rank_0(action: Callable[[], T], error: type[CheckpointError]) -> T:
    """Run something on rank 0 and give its result, or raise its error, on every rank."""
    outcome: list[object] = [None, None]
    if dist.get_rank() == 0:
        result, message = _attempt(action)
        outcome = [result, message]
    dist.broadcast_object_list(outcome)
    result, message = outcome  # type: ignore[assignment]
    if message is not None:
        raise error(f"rank 0: {message}")
    return result[0]


def wire_device() -> torch.device:
    """Give the device whose tensors the default group's backend can send."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _attempt(action: Callable[[], T]) -> tuple[list[T], str | None]:
    try:
        return [action()], None
    except CheckpointError as error:
        return [], str(error)
    except CheckpointException as error:  # torch's, a BaseException; its own text is tracebacks
        rank, (cause, _) = next(iter(error.failures.items()))
        return [], f"rank {rank}: {type(cause).__name__}: {cause}"
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"
