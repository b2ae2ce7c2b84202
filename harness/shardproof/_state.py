"""Global state of a process that a test may change, and putting it back."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# SIGCHLD is left alone: torch's DataLoader sets its handler once in a process, and keeps it.
_UNWATCHED = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD)
_RESOURCES = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
_SIGNALS = [number for number in signal.Signals if number not in _UNWATCHED]


class GlobalState:
    """A snapshot of a process's global state, to restore what has changed since.

    That is: random number generators, the environment, torch's default dtype and device, grad
    mode, deterministic mode and thread count, the working directory, signal handlers, resource
    limits and the interval timer. The values of accelerators' generators are kept for the ones
    that exist when the snapshot is taken.
    """

    def __init__(self) -> None:
        import torch

        self._random = random.getstate()
        self._numpy = _numpy_random().get_state() if _numpy_random() else None
        self._torch = torch.get_rng_state()
        self._cuda = _cuda_states()
        self._settings = [(name, read()) for name, read, _ in _settings()]
        self._handlers = _handlers()
        self._environment = dict(os.environ)

    def allow(self, before: GlobalState) -> None:
        """Take over what has changed since an earlier snapshot, but for the generators."""
        now = GlobalState()
        changed = zip(self._settings, before._settings, now._settings, strict=True)
        self._settings = [new if new != old else mine for mine, old, new in changed]
        for mine, old, new in (
            (self._handlers, before._handlers, now._handlers),
            (self._environment, before._environment, now._environment),
        ):
            _take_changes(mine, old, new)

    def put_back(self) -> list[str]:
        """Restore the snapshot.

        Returns:
            What had changed, but for generators and the environment, one phrase each.
        """
        import torch

        random.setstate(self._random)
        if self._numpy is not None:
            _numpy_random().set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        self._put_back_environment()
        free_gpu_memory()
        changed = []
        for (name, value), (_, read, write) in zip(self._settings, _settings(), strict=True):
            if value is not None and (now := read()) != value:
                write(value)
                changed.append(f"the {name}, {_say_change(value, now)}")
        for number, handler in self._handlers.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
                changed.append(f"a handler of {number.name}")
        return changed

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


def free_gpu_memory() -> None:
    """Hand GPU memory that nothing holds any more back to the other ranks, if there is any."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def reseed(seed: int) -> None:
    """On a rank: make pytest-randomly's seed of the test this rank's own, for all generators.

    The plugin calls it, by an entry point, each time it has seeded Python's and numpy's: as it
    did so alike on all ranks, they would draw the same numbers from these and not from torch's.
    """
    from shardproof import _world

    world = _world.here()
    if world is not None:
        seed_everything((seed + world.rank) % 2**32)


def _take_changes(mine: dict[Any, Any], old: dict[Any, Any], new: dict[Any, Any]) -> None:
    """Make the same changes to a mapping as have led from an old to a new one."""
    for key in old.keys() - new.keys():
        mine.pop(key, None)
    mine |= {key: value for key, value in new.items() if old.get(key) != value}


def _say_change(before: Any, now: Any) -> str:
    """Say what a setting is and was; of several only those that differ."""
    if isinstance(before, dict):
        changed = [name for name in before if now[name] != before[name]]
        return ", ".join(f"{name} {now[name]} (was {before[name]})" for name in changed)
    return f"{now} (was {before})"


def _cuda_states() -> list[Any] | None:
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return torch.cuda.get_rng_state_all()


def _numpy_random() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)


def _settings() -> tuple[tuple[str, Callable[[], Any], Callable[[Any], Any]], ...]:
    """Return what a process has one value of: its name, how it is read and how written."""
    import torch

    return (
        ("default dtype", torch.get_default_dtype, torch.set_default_dtype),
        ("default device", torch.get_default_device, torch.set_default_device),
        ("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        (
            "deterministic mode",
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
        ("number of torch's threads", torch.get_num_threads, torch.set_num_threads),
        ("working directory", _working_directory, os.chdir),
        ("resource limits", _limits, _set_limits),
        ("interval timer", _timer, lambda _: signal.setitimer(signal.ITIMER_REAL, 0)),
    )


def _limits() -> dict[str, tuple[int, int]]:
    """Return the soft and the hard limit of each resource, by the name that Python has for it."""
    return {name: resource.getrlimit(number) for name, number in _RESOURCES.items()}


def _set_limits(limits: dict[str, tuple[int, int]]) -> None:
    for name, limit in limits.items():
        with suppress(ValueError):  # a hard limit that was lowered stays; the rank is replaced
            resource.setrlimit(_RESOURCES[name], limit)


def _timer() -> bool:
    """Say whether a timer runs that will raise SIGALRM."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _handlers() -> dict[signal.Signals, Any]:
    """Return the handlers of all signals, but for those that weren't set from Python."""
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    return {number: handler for number, handler in found.items() if handler is not None}


def _working_directory() -> str | None:
    with suppress(FileNotFoundError):  # somebody removed it
        return os.getcwd()  # noqa: PTH109
    return None
