"""Whether collection has left the pytest process fit for ranks to be forked from it.

A fork copies the thread that forks and no other. With a pool of OpenMP's or a running autograd
engine left behind, the copy's first parallel operation waits for ever; CUDA refuses to work in
it; and what a Python thread was to do is never done.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from shardproof import _linux

WATCH = "shardproof-watch"
_PATIENCE = 1.0  # seconds; a probe of a clean process ends within some 10 ms
# By their names, threads that a fork does no harm to: those that Python did not start (execnet's
# in a worker of xdist), and a debugger's.
_HARMLESS = ("Dummy-", "pydevd.", "debugpy.")


@dataclass(frozen=True, slots=True)
class Dirt:
    """Why the process can't be forked.

    Attributes:
        text: Who did what.
        curable: A process that collects with one thread for tensor work would be clean.
    """

    text: str
    curable: bool = False


@dataclass(slots=True)
class _Probe:
    """A forked child that does parallel tensor work; it never ends if the process is dirty."""

    where: str
    pid: int
    began: float
    status: int | None = None

    def passed(self, deadline: float) -> bool:
        """Wait until it has ended, or the deadline; say whether it ended well."""
        while not self._ended() and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.status == 0

    def failed(self) -> bool:
        """Say whether it ended badly, or ought to have ended."""
        if self._ended():
            return self.status != 0
        return time.monotonic() > self.began + _PATIENCE

    def _ended(self) -> bool:
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # a conftest waits for all children
                pid, status = self.pid, -1
            self.status = status if pid else None
        return self.status is not None

    def end(self) -> None:
        if not self._ended():
            os.kill(self.pid, signal.SIGKILL)
            _, self.status = os.waitpid(self.pid, 0)


class Watch:
    """pytest's plugin until collection is done: looks after each import who made what start.

    Args:
        config: pytest's configuration.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._native: set[int] = set()
        self._strays: dict[threading.Thread, str] = {}
        self._probes: list[_Probe] = []
        self._cuda = ""
        self._look("a plugin")

    @pytest.hookimpl
    def pytest_plugin_registered(self, plugin_name: str) -> None:
        """Look what a conftest, or another plugin, has done."""
        self._look(plugin_name)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Look what a test module has done."""
        report = yield
        self._look(collector.nodeid.partition("::")[0] or "a plugin")
        return report

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        """End the probes of a session that has not come to its tests."""
        self._end_probes()

    def _look(self, where: str) -> None:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.name.startswith(_HARMLESS):
                self._strays.setdefault(thread, where)
        torch = sys.modules.get("torch")
        if torch is None:
            return
        if not self._cuda and _has_cuda(torch):
            self._cuda = where
        native = _linux.native_threads()
        grown, self._native = native - self._native, native
        if grown and not any(probe.failed() for probe in self._probes):
            self.probe(where)

    def probe(self, where: str) -> None:
        """Start a probe that doesn't pass if the process is dirty, and don't wait for it."""
        pid = _linux.fork()
        if pid == 0:
            _work_in_parallel()
        self._probes.append(_Probe(where, pid, time.monotonic()))

    def end(self) -> Dirt | None:
        """Judge, when collection is done: who was the first to make the process dirty, if any."""
        self._look("a plugin")
        try:
            return self._stray() or self._judge_probes()
        finally:
            self._end_probes()

    def give_up(self) -> None:
        """End without a judgement."""
        self._end_probes()

    def _stray(self) -> Dirt | None:
        if self._cuda:
            return Dirt(f"{self._name(self._cuda)} initialised CUDA during collection")
        for thread, where in self._strays.items():
            if thread.is_alive():
                return Dirt(
                    f"{self._name(where)} started the thread {thread.name!r} during collection"
                )
        return None

    def _judge_probes(self) -> Dirt | None:
        deadline = time.monotonic() + _PATIENCE
        for probe in self._probes:
            if not probe.passed(deadline):
                text = f"{self._name(probe.where)} ran tensor work during collection"
                return Dirt(text, curable=True)
        return None

    def _name(self, where: str) -> str:
        """Return a file's name as the node ids have it, or a plugin's."""
        with suppress(ValueError):
            return str(Path(where).relative_to(self._config.rootpath))
        return where

    def _end_probes(self) -> None:
        for probe in self._probes:
            probe.end()
        self._probes = []


def look_again(config: pytest.Config) -> Dirt | None:
    """Judge anew, when tests have run in this process too."""
    watch = Watch(config)
    if "torch" in sys.modules:
        watch.probe("a test in the pytest process")
    return watch.end()


def _has_cuda(torch: Any) -> bool:
    return hasattr(torch, "cuda") and bool(torch.cuda.is_initialized())


def _work_in_parallel() -> NoReturn:
    """In a forked child: do what a rank may do, and end."""
    code = 1
    try:
        _linux.end_with_parent(signal.SIGKILL)
        _linux.let_go_of_all_but(set())
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):  # torch may say on them why it can't
            os.dup2(null, descriptor)
        import torch

        torch.set_num_threads(2)
        torch.ones(400_000, dtype=torch.float32, device="cpu").add_(1)
        with torch.enable_grad():  # raises if the engine had threads before the fork
            torch.autograd.backward(torch.ones(2, device="cpu", requires_grad=True).sum())
        code = 0
    finally:
        os._exit(code)
