"""Global state of a process that a test may change, and putting it back."""

from __future__ import annotations

import os
import random
import sys
from contextlib import suppress
from typing import Any


class GlobalState:
    """A snapshot of RNGs, torch's defaults, the working directory, environment and threads.

    Call `put_back` to restore what has changed since. The values of accelerators' generators are
    kept for the ones that exist when the snapshot is taken.
    """

    def __init__(self) -> None:
        import torch

        self._random = random.getstate()
        self._numpy = _numpy_random().get_state() if _numpy_random() else None
        self._torch = torch.get_rng_state()
        self._cuda = _cuda_states()
        self._dtype = torch.get_default_dtype()
        self._device = torch.get_default_device()
        self._grad = torch.is_grad_enabled()
        self._threads = torch.get_num_threads()
        self._folder = _working_directory()
        self._environment = dict(os.environ)

    def put_back(self) -> None:
        """Restore the snapshot."""
        import torch

        random.setstate(self._random)
        if self._numpy is not None:
            _numpy_random().set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        torch.set_default_dtype(self._dtype)
        if torch.get_default_device() != self._device:
            torch.set_default_device(self._device)
        torch.set_grad_enabled(self._grad)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        if self._folder is not None and _working_directory() != self._folder:
            os.chdir(self._folder)
        self._put_back_environment()

    def _put_back_environment(self) -> None:
        now = dict(os.environ)
        if now == self._environment:
            return
        for name in now.keys() - self._environment.keys() - {"PYTEST_CURRENT_TEST"}:
            del os.environ[name]
        for name, value in self._environment.items():
            if now.get(name) != value and name != "PYTEST_CURRENT_TEST":
                os.environ[name] = value


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's (where it is loaded) and torch's generators.

    Args:
        seed: A number below 2**32.
    """
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if _numpy_random():
        _numpy_random().seed(seed)


def reseed(seed: int) -> None:
    """On a rank: make pytest-randomly's seed of the test this rank's own, for all generators.

    The plugin calls it, by an entry point, each time it has seeded Python's and numpy's: as it
    did so alike on all ranks, they would draw the same numbers from these and not from torch's.
    """
    from shardproof import _world

    world = _world.here()
    if world is not None:
        seed_everything((seed + world.rank) % 2**32)


def _cuda_states() -> list[Any] | None:
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return torch.cuda.get_rng_state_all()


def _numpy_random() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)


def _working_directory() -> str | None:
    with suppress(FileNotFoundError):  # somebody removed it
        return os.getcwd()  # noqa: PTH109
    return None
