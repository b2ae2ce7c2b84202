"""Output of a rank: its own files in place of the ones inherited from the pytest process."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

# Handlers of modules that were imported under the pytest process's capturing, as torch's is.
_held: list[tuple[Any, str]] = []


def leave_inherited(config: pytest.Config) -> None:
    """In the zygote: undo the capturing that the fork has copied, without printing it again."""
    manager = _manager(config)
    capturing = manager and manager._global_capturing
    if capturing is not None:
        files = {"stdout": capturing.out, "stderr": capturing.err}
        handlers: list[Any] = [reference() for reference in logging._handlerList]  # type: ignore[attr-defined]
        for handler in handlers:
            for name, capture in files.items():
                stream = getattr(handler, "stream", None)
                if stream is not None and stream is getattr(capture, "tmpfile", None):
                    _held.append((handler, name))
        capturing.stop_capturing()
        manager._global_capturing = None


def start_own(config: pytest.Config, log_file: int, stack_file: int) -> list[int]:
    """In a rank: send output outside of tests away, and capture tests as pytest does.

    Args:
        config: pytest's configuration, as copied by the fork.
        log_file: Descriptor for standard output and error: a file, or with `-s` a pipe.
        stack_file: Descriptor for the stacks that pytest's faulthandler plugin dumps.

    Returns:
        Descriptors of the files that hold captured output and error while a test runs.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = io.TextIOWrapper(
            os.fdopen(descriptor, "wb", buffering=0, closefd=False),
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if fault_handler_stderr_fd_key in config.stash:
        config.stash[fault_handler_stderr_fd_key] = stack_file
    manager = _manager(config)
    if manager is None:
        return []
    manager.start_global_capturing()
    for handler, name in _held:
        handler.stream = getattr(sys, name)
    manager.suspend_global_capture()
    captures = (manager._global_capturing.out, manager._global_capturing.err)
    return [
        capture.tmpfile.fileno()
        for capture in captures
        if capture is not None and hasattr(capture, "targetfd")
    ]


def closed(config: pytest.Config) -> list[str]:
    """In a rank: say which of its files for output a test has closed; pytest can't go on then."""
    capturing = getattr(_manager(config), "_global_capturing", None)
    files = [(name, getattr(sys, name)) for name in ("stdout", "stderr")]
    if capturing is not None:
        captures = (("captured stdout", capturing.out), ("captured stderr", capturing.err))
        files += [(name, getattr(capture, "tmpfile", None)) for name, capture in captures]
    return [f"a closed {name}" for name, file in files if getattr(file, "closed", False)]


def stdin_is_terminal(config: pytest.Config) -> bool:
    """In the pytest process, between tests: say what standard input is beneath pytest's own."""
    manager = _manager(config)
    if manager is None:
        return os.isatty(0)
    manager.suspend_global_capture(in_=True)
    try:
        return os.isatty(0)
    finally:
        manager.resume_global_capture()
        manager.suspend_global_capture()


def _manager(config: pytest.Config) -> Any:
    # pytest has no public way to restart its capturing in a forked process.
    return config.pluginmanager.getplugin("capturemanager")
