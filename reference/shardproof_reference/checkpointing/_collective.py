"""Errors and results that reach every rank; all of it runs collectively."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from shardproof_reference.errors import CheckpointError

T = TypeVar("T")

Failure: TypeAlias = tuple[str, int]


_group: ContextVar[dist.ProcessGroup | None] = ContextVar("_group", default=None)


def group() -> dist.ProcessGroup | None:
    """Give the group of all ranks that is used here; None is the default one."""
    return _group.get()


@contextmanager
def over(other: dist.ProcessGroup) -> Iterator[None]:
    """Use another group of all ranks in this thread."""
    token = _group.set(other)
    try:
        yield
    finally:
        _group.reset(token)


def agree(action: Callable[[], T], error: type[CheckpointError]) -> T:
    """Run something on each rank; where it fails on one, raise that rank's message on all.

    The action may be collective itself, as long as it fails on all ranks or waits for none.
    """
    result, failure = _attempt(action)
    failures: list[Failure | None] = [None] * dist.get_world_size()
    with _peers(error):
        dist.all_gather_object(failures, failure, group=group())
    for one in failures:
        if one is not None:
            raise error(*one)
    return result[0]


def on_rank_0(action: Callable[[], T], error: type[CheckpointError]) -> T:
    """Run something on rank 0 and give its result, or raise its error, on every rank."""
    outcome: list[tuple[list[T], Failure | None]] = [([], None)]
    if dist.get_rank() == 0:
        outcome = [_attempt(action)]
    with _peers(error):
        dist.broadcast_object_list(outcome, src=0, group=group())
    result, failure = outcome[0]
    if failure is not None:
        raise error(*failure)
    return result[0]


def wire_device() -> torch.device:
    """Give the device whose tensors the group's backend can send."""
    if dist.get_backend(group()) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def _peers(error: type[CheckpointError]) -> Iterator[None]:
    """Say in our own words that another rank is gone."""
    try:
        yield
    except RuntimeError as lost:  # gloo's and NCCL's
        raise error(f"another rank is gone: {lost}", dist.get_rank()) from lost


def _attempt(action: Callable[[], T]) -> tuple[list[T], Failure | None]:
    """Give a result, or the message of an error and the rank that it comes from."""
    own = dist.get_rank()
    try:
        return [action()], None
    except CheckpointError as error:
        return [], (error.message, own if error.rank is None else error.rank)
    except CheckpointException as error:  # torch's, a BaseException; its own text is tracebacks
        rank, (cause, _) = next(iter(error.failures.items()))
        return [], (f"{type(cause).__name__}: {cause}", rank)
    except Exception as error:
        return [], (f"{type(error).__name__}: {error}", own)
