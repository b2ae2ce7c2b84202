"""pytest's debugger on a rank: it runs as in pytest, on a terminal that the controller lends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from _pytest.config import create_terminal_writer
from _pytest.debugging import PdbInvoke, pytestPDB

from shardproof._channel import Channel
from shardproof._group import Place
from shardproof._report import lost_peer
from shardproof._terminal import CONTROLLING

_NO_TERMINAL = (
    "no debugger: ranks have no terminal here ({reason}). Run pytest in the foreground of a "
    "terminal, without a pipe into it and without -n, or remove the breakpoint."
)
_HAS = "has the terminal"
_NOT_THE_RANK = (
    "no debugger: only the main thread of a rank can have the terminal, not another thread nor a "
    "process that the rank has started."
)


class Debugger:
    """Has the terminal while pytest's debugger runs, and is pytest's plugin for it on this rank.

    Args:
        config: pytest's configuration.
        channel: Where the terminal is asked for.
        place: This rank's place.

    Attributes:
        after_failures: Whether a failure enters the debugger (`--pdb`).
        within: The name of the test or function that runs.
    """

    def __init__(self, config: pytest.Config, channel: Channel, place: Place) -> None:
        self._config = config
        self._channel = channel
        self._place = place
        self._pid = os.getpid()
        self._terminal = -1
        self._own: list[int] = []  # copies of descriptors 0 to 2 while those are the terminal
        self._stdin = sys.stdin
        self._on_interrupt: Any = None
        self.within = ""
        manager = config.pluginmanager
        self._capture: Any = manager.getplugin("capturemanager")
        self.after_failures = manager.has_plugin("pdbinvoke")
        if self.after_failures:
            manager.unregister(name="pdbinvoke")
        # All of pytest's ways into a debugger lead through this function.
        self._init_pdb: Callable[..., Any] = pytestPDB._init_pdb
        pytestPDB._init_pdb = self._open  # type: ignore[method-assign]
        manager.register(self, "shardproof-debugger")

    def pytest_exception_interact(
        self, node: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport
    ) -> None:
        """With `--pdb`, enter the debugger after a failure if this rank gets the terminal."""
        lost = lost_peer(call.excinfo.value) if call.excinfo else ""
        what = f"has lost a peer ({lost}) and has the terminal" if lost else _HAS
        if self.after_failures and self._take("failure", what):
            try:
                PdbInvoke().pytest_exception_interact(node, call, report)
            finally:
                self.give_back()

    def pytest_leave_pdb(self) -> None:
        """Give the terminal back on `continue`; pytest goes on with its capturing there."""
        if self._own:
            self.give_back()
            if self._capture:
                self._capture.resume()

    def give_back(self) -> None:
        """Give the terminal back if this rank has it; pytest's capturing stays suspended.

        What runs tests calls it at the end of each phase, however that has ended.
        """
        if not self._own:
            return
        self._say("gives the terminal back")
        if self._capture:
            self._capture.suspend(in_=True)
        for descriptor, own in enumerate(self._own):
            os.dup2(own, descriptor)
            os.close(own)
        self._own = []
        os.close(self._terminal)
        sys.stdin = self._stdin
        # `continue` has set pdb's handler, which would stop a later test that sends the signal.
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._channel.send("returned")

    def _open(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a debugger, in the place of pytest's own function."""
        __tracebackhide__ = True
        if not self._take("trace" if method == "runcall" else "breakpoint"):
            return _PassedBy()
        pdb = self._init_pdb(method, *args, **kwargs)
        pdb.interaction = partial(self._interact, pdb.interaction)
        return pdb

    def _interact(self, interaction: Callable[..., None], *args: Any) -> None:
        """Prompt; at a breakpoint that the debugger itself has set, ask for the terminal anew."""
        if self._take("breakpoint"):
            interaction(*args)

    def _take(self, why: str, what: str = _HAS) -> bool:
        """Ask for the terminal, unless this rank has it; return whether it has it then.

        Args:
            why: `failure`, `breakpoint` or `trace`.
            what: What to say of this rank when it has the terminal.

        Raises:
            pytest.fail.Exception: A breakpoint was reached where there is no terminal.
        """
        __tracebackhide__ = True
        if self._own:
            return True
        if os.getpid() != self._pid or threading.current_thread() != threading.main_thread():
            pytest.fail(_NOT_THE_RANK)
        self._channel.send("debug", failed=why == "failure")
        answer = self._channel.receive().fields
        if answer["lent"]:
            try:
                self._use_terminal(what)
            except BaseException:
                self._channel.send("returned")
                raise
        elif answer["refusal"] and why == "breakpoint":
            pytest.fail(_NO_TERMINAL.format(reason=answer["refusal"]))
        return bool(answer["lent"])

    def _use_terminal(self, what: str) -> None:
        if self._capture:
            self._capture.suspend(in_=True)
        self._stdin, self._on_interrupt = sys.stdin, signal.getsignal(signal.SIGINT)
        self._terminal = os.open(CONTROLLING, os.O_RDWR | os.O_NOCTTY)
        self._own = [os.dup(descriptor) for descriptor in range(3)]
        for descriptor in range(3):
            os.dup2(self._terminal, descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - with nothing read ahead
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter._tw = create_terminal_writer(self._config)
        self._say(f"of {self._place.world_size} ({self.within}) {what}; no deadline runs")

    def _say(self, text: str) -> None:
        os.write(self._terminal, f"\nrank {self._place.rank} {text}\n".encode())


class _PassedBy:
    """In the place of a debugger on a rank that does not get the terminal."""

    def set_trace(self, frame: object) -> None:
        """Go on."""

    def runcall(self, function: Callable[[], Any]) -> Any:
        """Call the function."""
        return function()
