"""How another Python is made to collect the session once more, to be the zygote or a rank.

As with pytest-xdist's workers, it is given the command line, the options as plugins have left
them, and `sys.path`. What it does with them is in `_spawned`.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from shardproof import _linux

# With these a process that collects does its tensor work in one thread, and stays clean.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What another process needs to collect the same items.

    Attributes:
        args: pytest's command line.
        plugins: Plugins that were given to pytest by name.
        options: Each option's value, pickled by itself.
        workerinput: What xdist has told this worker, or None.
        folder: Where pytest was started.
        argv: The program's arguments.
        basetemp: The base temporary folder.
        items: For each item its name in the tree of collectors, and its node id, which plugins
            such as xdist may have changed.
    """

    args: tuple[str, ...]
    plugins: tuple[str, ...]
    options: dict[str, bytes]
    workerinput: dict[str, Any] | None
    folder: Path
    argv: tuple[str, ...]
    basetemp: Path
    items: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, session: pytest.Session, basetemp: Path) -> Blueprint:
        """Describe a collected session."""
        config = session.config
        invocation = config.invocation_params
        options = {}
        for name, value in vars(config.option).items():
            with suppress(Exception):  # such an option stays what the command line says
                options[name] = pickle.dumps(value)
        return cls(
            args=(*map(os.fspath, invocation.args), *_more_args(config)),
            plugins=tuple(p for p in invocation.plugins or () if isinstance(p, str)),
            options=options,
            workerinput=getattr(config, "workerinput", None),
            folder=invocation.dir,
            argv=tuple(sys.argv),
            basetemp=basetemp,
            items=tuple((name_of(item), item.nodeid) for item in session.items),
        )

    def file(self) -> int:
        """Return the descriptor of an unnamed file with the blueprint in it."""
        with tempfile.TemporaryFile() as file:
            pickle.dump(self, file)
            file.flush()
            return os.dup(file.fileno())


def _more_args(config: pytest.Config) -> list[str]:
    """Return what keeps pytest-cov from erasing what other ranks have saved."""
    return ["--cov-append"] if getattr(config.option, "cov_source", None) else []


def name_of(item: pytest.Item) -> str:
    """Return an item's name in the tree of collectors."""
    return f"{item.parent.nodeid if item.parent else ''}::{item.name}"


def become_zygote(blueprint: int, control: socket.socket, scratch: str) -> NoReturn:
    """In a fork of the pytest process: become a clean zygote.

    Args:
        blueprint: Descriptor of the blueprint's file.
        control: The zygote's end of the control socket.
        scratch: The folder of stores.
    """
    _execute(
        blueprint, "zygote", {"scratch": scratch}, [control.fileno()], {**os.environ, **ONE_THREAD}
    )


def become_rank(blueprint: int, spec: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """In a fork of the zygote: become a rank; for the arguments see `_rank.main`."""
    os.setpgid(0, 0)
    _execute(blueprint, "rank", spec, descriptors, dict(os.environ))


def _execute(
    blueprint: int, role: str, spec: dict[str, Any], passed: Sequence[int], env: dict[str, str]
) -> NoReturn:
    try:
        _linux.end_with_parent(signal.SIGKILL)  # is kept by the new program
        for descriptor in (blueprint, *passed):
            os.set_inheritable(descriptor, True)
        before = {name: os.environ.get(name) for name in ONE_THREAD}
        start = json.dumps([blueprint, role, spec, list(passed), before])
        # Not -m: the package must come from where it came from here, whatever the folder holds.
        path = [entry for entry in sys.path if isinstance(entry, str)]
        code = f"import sys; sys.path[:] = {path!r}; from shardproof._spawned import main; main()"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        os.execve(sys.executable, [sys.executable, *flags, "-c", code, start], env)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
