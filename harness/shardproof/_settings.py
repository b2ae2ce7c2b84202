"""What the user has asked for: command line, ini file and mark."""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

BACKENDS = ("auto", "gloo", "nccl", "cpu:gloo,cuda:nccl")
START_METHODS = ("fork", "spawn")
# On macOS, system libraries start threads of which Python knows nothing.
DEFAULT_START_METHOD = "spawn" if sys.platform == "darwin" else "fork"
# Without --nproc a test on CPUs gets at most this many ranks.
CPU_RANKS = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """The session's settings.

    Attributes:
        nproc: The default world size and the most ranks that one test gets, or None.
        backend: One of `BACKENDS`.
        timeout: Seconds for one test on ranks.
        strict: A test that wants more ranks than there may be fails.
        start_method: `fork` or `spawn`.
        log: Folder that keeps what each rank prints, or None.
        pdb: The one rank that may have the terminal for a debugger, or None for the first.
    """

    nproc: int | None
    backend: str
    timeout: float
    strict: bool
    start_method: str
    log: Path | None
    pdb: int | None

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """Read the settings; the command line wins over the ini file.

        Raises:
            pytest.UsageError: A value is out of its range.
        """
        nproc = config.getoption("nproc")
        if nproc is None and config.getini("nproc"):
            nproc = _number(config.getini("nproc"), int, "nproc")
        timeout = config.getoption("ranks_timeout")
        if timeout is None:
            timeout = _number(config.getini("ranks_timeout"), float, "ranks_timeout")
        backend = config.getoption("ranks_backend") or config.getini("ranks_backend")
        if nproc is not None and nproc < 1:
            raise pytest.UsageError(f"--nproc wants at least 1 rank, got {nproc}")
        if not _is_duration(timeout):
            raise pytest.UsageError(f"--ranks-timeout wants seconds above 0, got {timeout:g}")
        if backend not in BACKENDS:
            allowed = ", ".join(BACKENDS)
            raise pytest.UsageError(f"ranks_backend is one of {allowed}, got {backend!r}")
        strict = config.getoption("ranks_strict") or config.getini("ranks_strict")
        method = config.getoption("ranks_start_method") or config.getini("ranks_start_method")
        if method not in START_METHODS:
            raise pytest.UsageError(f"ranks_start_method is fork or spawn, got {method!r}")
        pdb = config.getoption("ranks_pdb")
        if pdb is not None and pdb < 0:
            raise pytest.UsageError(f"--ranks-pdb wants a rank, counted from 0, got {pdb}")
        return cls(nproc, backend, timeout, bool(strict), method, _log_folder(config), pdb)

    def most(self, gpus: int) -> int:
        """Return the most ranks that one test may have on this machine."""
        return self.nproc or gpus or CPU_RANKS

    def backend_for(self, world_size: int, wanted: str | None, gpus: int, nccl: bool) -> str:
        """Return the backend of a test: what it asks for, else what is set, else what fits."""
        backend = wanted or self.backend
        if backend == "auto":
            return "nccl" if nccl and gpus >= world_size else "gloo"
        return backend


def _log_folder(config: pytest.Config) -> Path | None:
    wanted = config.getoption("ranks_log")
    if wanted is None:
        return None
    folder = Path(config.invocation_params.dir, wanted)
    if folder.exists() and not folder.is_dir():
        raise pytest.UsageError(f"--ranks-log wants a folder, and {wanted} is a file")
    return folder


def needs_gpus(backend: str) -> bool:
    """Say whether each rank of a group with this backend needs a GPU of its own."""
    return "nccl" in backend


def _number(text: str, kind: Any, name: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise pytest.UsageError(f"the ini option {name} wants a number, got {text!r}") from None


@dataclass(frozen=True, slots=True)
class RanksMark:
    """The arguments of `@pytest.mark.ranks(...)`, each None or False where it is left out."""

    world_size: int | None
    backend: str | None
    timeout: float | None
    isolate: bool

    @classmethod
    def of(cls, item: pytest.Item) -> RanksMark | None:
        """Return the item's closest mark, or None.

        Raises:
            pytest.UsageError: The mark's arguments don't fit.
        """
        mark = item.get_closest_marker("ranks")
        if mark is None:
            return None
        try:
            bound = _SIGNATURE.bind(*mark.args, **mark.kwargs)
        except TypeError as error:
            names = ", ".join(_SIGNATURE.parameters)
            raise pytest.UsageError(
                f"{item.nodeid}: mark ranks: {error}; it takes {names}"
            ) from None
        bound.apply_defaults()
        return _checked(item.nodeid, cls(*bound.args))


def _mark(
    world_size: int | None = None,
    backend: str | None = None,
    timeout: float | None = None,
    isolate: bool = False,
) -> None:
    """Give the mark its signature."""


_SIGNATURE = inspect.signature(_mark)


def _is_duration(value: object) -> bool:
    """Say whether a value is a finite number of seconds above 0."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


def _checked(nodeid: str, mark: RanksMark) -> RanksMark:
    size, backend, timeout = mark.world_size, mark.backend, mark.timeout
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise pytest.UsageError(f"{nodeid}: mark ranks wants a number of ranks, got {size!r}")
    if backend not in (None, *BACKENDS):
        raise pytest.UsageError(
            f"{nodeid}: mark ranks: backend is one of {', '.join(BACKENDS)}, got {backend!r}"
        )
    if not isinstance(mark.isolate, bool):
        raise pytest.UsageError(
            f"{nodeid}: mark ranks: isolate is True or False, got {mark.isolate!r}"
        )
    if timeout is not None and not _is_duration(timeout):
        raise pytest.UsageError(f"{nodeid}: mark ranks wants a timeout in s, got {timeout!r}")
    return mark
