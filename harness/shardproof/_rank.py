"""A rank's life: set up the forked process, then do what the controller asks until it is done."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from os import getpid  # a test may patch the modules' own
from time import monotonic
from typing import Any, NoReturn

import pytest

from shardproof import _capture, _coverage, _evidence, _group, _linux, _state, _world
from shardproof._channel import Channel, Message
from shardproof._debugger import Debugger
from shardproof._group import Place
from shardproof._items import ItemRunner
from shardproof._plain import encodable
from shardproof._report import lost_peer
from shardproof.errors import ChannelError

# torch's records of collectives, checkpoints and the errors that it raises anyway would fill every
# "Captured log".
_PRIVATE_LOGS = ("c10d-NullHandler-default", "c10d-NullHandler-dcp_logger")


class PeerFailed(RuntimeError):
    """Another rank failed while this one waited for it."""


def main(session: pytest.Session, spec: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Serve as a rank; runs in the forked process and ends it.

    Args:
        session: The collected session, as copied by the fork.
        spec: `rank`, `world_size`, `backend`, `device`, `seed`, `basetemp`, `form_timeout`,
            `port`, `log`.
        descriptors: The control and the evidence socket, the stack file, and where output goes
            that is not captured.
    """
    code = 1
    try:
        Rank(session, spec, descriptors).serve()
        code = 0
    except (EOFError, ChannelError) as error:
        # The controller is gone, or the test has closed the descriptor.
        os.write(2, f"rank {spec['rank']} has lost its connection to pytest: {error}\n".encode())
    except BaseException:
        traceback.print_exc()
        _coverage.save()
    finally:
        os._exit(code)


class Rank:
    """One rank: its process, its process group and the work it is given."""

    def __init__(
        self, session: pytest.Session, spec: dict[str, Any], descriptors: list[int]
    ) -> None:
        control, evidence, stack_file, log_file = descriptors
        os.setpgid(0, 0)
        _linux.end_with_parent(signal.SIGKILL)
        _linux.adopt_orphans()
        _linux.let_go_of_all_but(set(descriptors))
        captured = _capture.start_own(session.config, log_file, stack_file)
        self._channel = Channel(socket.socket(fileno=control))
        self._form_timeout: float = spec["form_timeout"]
        self._place = Place(spec["rank"], spec["world_size"], spec["backend"], spec["device"])
        self._use_device()
        _state.seed_everything(spec["seed"])
        self._keep = _group.connected_sockets()
        self._group: Any = None
        self._store = ""
        self._reforms = 0
        self._dropped = False
        self._cut = False
        _group.export(spec["port"], spec["backend"])
        side = Channel(socket.socket(fileno=evidence))
        self._pid = getpid()
        self._work = 0
        self._working = threading.Lock()
        _evidence.answer_in_background(side, stack_file, self._wake)
        _world.enter(self._place, self._reform)
        self._debugger = Debugger(session.config, self._channel, self._place)
        self._items = ItemRunner(
            session,
            self._channel,
            self._place,
            spec["basetemp"],
            spec["log"],
            self.fail,
            self.leave,
            self._debugger,
        )
        self._channel.send("ready", captured=captured)

    def _use_device(self) -> None:
        import torch

        device = torch.device(self._place.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            torch.set_num_threads(1)  # the ranks share the cores
        for name in _PRIVATE_LOGS:
            logging.getLogger(name).addFilter(lambda _: False)

    def serve(self) -> None:
        """Do what the controller asks until it says that this was all."""
        while True:
            message = self._channel.receive()
            with self._working:
                self._work = message.fields.pop("work")
            if message.kind == "finish":
                self._done(errors=self._items.end_fixtures())
                return
            getattr(self, f"_on_{message.kind}")(message)

    def _wake(self, work: int) -> None:
        """On the evidence thread: end this rank's waiting, unless that is over already."""
        with self._working:
            if work == self._work:
                self._cut = True
                _group.cut(self._keep, self._store)

    def _on_form(self, message: Message) -> None:
        """Leave what is left of the old group and form the whole one."""
        _group.drop(self._keep, self._store)
        _forget_failures()
        _state.free_gpu_memory()
        self._reforms = 0  # a rank that has been replaced counts from there
        self._form(self._place, message.fields["store"])
        self._done()

    def _on_unwind(self, message: Message) -> None:
        """End the fixtures: they may hold the old group, and a rank that is replaced has none."""
        self._done(errors=self._items.end_fixtures())

    def _form(self, place: Place, store: str) -> None:
        self._keep = _group.connected_sockets()
        self._store = store
        self._dropped = self._cut = False
        _group.form(place, store, self._form_timeout)
        if place is self._place:
            self._group = _group.reference()

    def _reform(self, world_size: int | None) -> None:
        """Make the first ranks, or all, the default group; every rank of the world calls it."""
        self._channel.send("arrive")
        if self._channel.receive().kind != "go":
            raise PeerFailed("another rank failed while this one waited for it")
        self._reforms += 1
        store = f"{self._store.partition('+')[0]}+{self._reforms}"
        _group.drop(self._keep, self._store)
        size = world_size or self._place.world_size
        place = self._place if size == self._place.world_size else self._place.resized(size)
        if place.rank < size:
            self._form(place, store)
        else:
            self._store = store

    def fail(self, error: BaseException) -> dict[str, Any]:
        """Say when and why this rank has failed; it has to leave its group then."""
        if getpid() != self._pid:
            os._exit(1)  # a child that the test has forked shares its parent's connections
        return {"at": monotonic(), "lost_peer": lost_peer(error, self._dropped)}

    def leave(self) -> None:
        """Leave the group, so that nobody waits for this rank."""
        _group.drop(self._keep, self._store)
        self._dropped = True

    def _on_run(self, message: Message) -> None:
        result = self._items.run(**message.fields)
        with self._working:
            self._work = 0  # a wake that comes only now must not cut what is said to be whole
        # After a subworld the group is a new one, and wider fixtures may hold the old one.
        damaged = self._reforms or self._dropped or self._cut
        whole = _group.is_whole(self._group) and not damaged
        whole = whole and not result.get("left")
        self._done(whole=whole, **result)

    def _on_call(self, message: Message) -> None:
        try:
            function, args, kwargs = pickle.loads(message.payload)
            self._debugger.within = getattr(function, "__qualname__", repr(function))
            value = function(*args, **kwargs)
            payload = _pickled(value)
        except BaseException as error:
            self._debugger.give_back()
            facts = self.fail(error)
            self.leave()
            self._channel.send("failed", **facts)
            self._done(error=describe(error), **_exit(error))
        else:
            self._debugger.give_back()
            self._done(payload)

    def _done(self, payload: bytes = b"", **fields: Any) -> None:
        """Say that the work has ended; what comes after it may be cut short."""
        _coverage.save()
        self._channel.send("done", payload, **fields)


def _exit(error: BaseException) -> dict[str, Any]:
    """Return what ends the session, if it was `pytest.exit` or the debugger's `quit`."""
    if isinstance(error, pytest.exit.Exception):
        return {"exit": [str(error), error.returncode]}
    return {}


def _forget_failures() -> None:
    """Let go of the frames of failed tests, which hold the groups that were dropped."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()  # cheap: what came with the fork is frozen


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"the returned value of type {kind} can't be pickled: {error}") from None


def describe(error: BaseException) -> dict[str, str]:
    """Return an exception's type, one line and traceback, without this module's frames."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    detail = "".join(traceback.format_exception(kind, error, tb))
    line = traceback.format_exception_only(kind, error)[-1].strip()
    return {
        "exception_type": name,
        "message": encodable(line),
        "detail": encodable(detail),
    }
