"""The process that starts the ranks.

The zygote is forked from the pytest process once collection is done, or is a new process that has
collected again. It imports torch, does no tensor work, starts no thread and touches no
accelerator, so that each rank is a fork of a clean process and costs milliseconds; spawned ranks
it forks and executes. It also is the reaper: it alone waits for ranks, so a rank's
process id can't be reused behind its back, and what a dead rank leaves behind comes to it.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from shardproof import _linux
from shardproof.errors import StartError

# Runs in a forked rank: its specification and the descriptors passed for it.
RankMain = Callable[[dict[str, Any], list[int]], NoReturn]
# Runs in the forked zygote: its end of the control socket, and the folder of stores.
ZygoteMain = Callable[[socket.socket, str], NoReturn]

_MAX_DATAGRAM = 1 << 16
_MAX_DESCRIPTORS = 8
_MAX_ERROR = 8000  # characters, of which JSON may make six bytes each


class Unclean(StartError):
    """The zygote's process is not fit to be forked."""


class Zygote:
    """The controller's side of the zygote.

    Args:
        main: What the zygote runs; it comes to `serve`, be it in another program.
        timeout: Seconds that the start, and each fork, may take.

    Raises:
        StartError: The zygote did not come up.
    """

    def __init__(self, main: ZygoteMain, timeout: float) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self._timeout = timeout
        self._exits: dict[int, int] = {}
        # Named after this process, so that somebody who finds it knows whose it was. Made here, as
        # a zygote that is killed can't remove it.
        self._scratch = tempfile.mkdtemp(prefix=f"shardproof-{os.getpid()}-", dir=_memory_folder())
        self._loss = ""
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = _linux.fork()
        if self.pid == 0:
            ours.close()
            main(theirs, self._scratch)
        theirs.close()
        try:
            hello = self._reply("hello")
            if "error" in hello:
                raise (Unclean if hello["unclean"] else StartError)(hello["error"])
        except BaseException:
            self.stop()
            raise
        self.facts: dict[str, Any] = hello["facts"]
        self._stores = itertools.count()

    def fileno(self) -> int:
        """Return the descriptor that is readable when a rank has ended."""
        return self._socket.fileno()

    def new_store(self) -> str:
        """Return a new path for a process group's store; it is removed with the zygote."""
        return f"{self._scratch}/{next(self._stores)}"

    def fork_rank(self, spec: dict[str, Any], descriptors: list[int]) -> int:
        """Fork one rank that gets `spec` and its own copies of the descriptors; return its pid."""
        body = json.dumps({"fork": spec}).encode()
        with suppress(BrokenPipeError):  # then there is no reply, which tells more
            socket.send_fds(self._socket, [body], descriptors)
        return int(self._reply("forked")["forked"])

    @property
    def lost(self) -> bool:
        """Whether it was found to have ended by itself or by another's hand."""
        return bool(self._loss)

    def kill(self, pid: int) -> None:
        """Kill a rank and everything that it started; does nothing if it has ended.

        Without the zygote the ranks have ended; what is left of their groups is killed from here.
        """
        if self.lost:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            return
        with suppress(OSError):
            self._socket.send(json.dumps({"kill": pid}).encode())

    def exits(self) -> dict[int, int]:
        """Return the wait statuses of the ranks that have ended, by their process ids."""
        self._hear()
        return self._exits

    def _hear(self) -> None:
        while readable(self._socket.fileno(), timeout=0):
            self._receive()

    def loss(self) -> str:
        """Look whether it has ended by itself; return how, or an empty string."""
        with suppress(StartError):
            self._hear()
        return self._loss

    def stop(self) -> None:
        """End the zygote and all ranks; returns when they are gone."""
        self._socket.close()  # the zygote reads an end of file, and kills what is left
        if not self.lost:
            self._wait()
        shutil.rmtree(self._scratch, ignore_errors=True)  # one that was killed could not

    def _wait(self) -> int:
        """Return the wait status of the zygote, which ends by itself or is killed."""
        deadline = time.monotonic() + 5
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.002)
        return ended[1]

    def _reply(self, key: str) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not readable(self._socket.fileno(), timeout=left):
                raise StartError(f"the zygote gave no answer within {self._timeout:g} s")
            message = self._receive()
            if key in message:
                return message

    def _receive(self) -> dict[str, Any]:
        if self._loss:
            raise StartError(self._loss)
        try:
            data = self._socket.recv(_MAX_DATAGRAM)
        except ConnectionError:
            data = b""
        if not data:
            status = self._wait()
            self._loss = f"the zygote, which ranks are forked from, {_linux.describe_exit(status)}"
            if status == signal.SIGKILL:
                self._loss += ", as the kernel does when memory runs out"
            raise StartError(self._loss)
        message: dict[str, Any] = json.loads(data)
        if "exit" in message:
            self._exits[message["exit"]] = message["status"]
        return message


def readable(*descriptors: int, timeout: float | None = None) -> list[int]:
    """Return the descriptors that can be read, once some can or time is up.

    `select` would take none above 1023.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [ready for ready, _ in poll.poll(None if timeout is None else timeout * 1000)]


def serve(
    control: socket.socket,
    scratch: str,
    rank_main: RankMain,
    prepare: Callable[[], dict[str, Any]],
) -> NoReturn:
    """Be the zygote; the process ends with it.

    Args:
        control: The zygote's end of the control socket.
        scratch: The folder of stores, to be removed at the end.
        rank_main: What each rank runs; it never returns.
        prepare: Runs once, before the first rank; its result, JSON-ready, is `facts`.
    """
    zygote = os.getpid()
    try:
        server = _Server(control, rank_main)
        try:
            hello = {"hello": 1, "facts": prepare()}
        except BaseException as error:
            text = (
                str(error) if isinstance(error, StartError) else f"{type(error).__name__}: {error}"
            )
            unclean = isinstance(error, Unclean)
            hello = {"hello": 0, "error": text[:_MAX_ERROR], "unclean": unclean}
        gc.collect()
        gc.freeze()  # the collector then leaves the pages shared with the ranks alone
        control.send(json.dumps(hello).encode())
        server.loop()
    finally:
        if os.getpid() == zygote:
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(0)


def _memory_folder() -> str | None:
    """Return a folder that is held in memory, or None for the usual one for temporary files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class _Server:
    def __init__(self, control: socket.socket, rank_main: RankMain) -> None:
        self._control = control
        self._rank_main = rank_main
        self._ranks: set[int] = set()
        self._stopping = False
        os.setpgid(0, 0)  # a Ctrl-C in the terminal is the controller's business
        _linux.adopt_orphans()
        _linux.end_with_parent(signal.SIGTERM)
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def _terminate(self, *_: object) -> None:
        self._stopping = True

    def loop(self) -> None:
        while not self._stopping:
            control = self._control.fileno()
            ready = readable(control, self._wake)
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if control in ready:
                self._answer()
        for pid in tuple(self._ranks):
            self._kill(pid)
        while self._ranks:
            self._reap()
            time.sleep(0.001)

    def _answer(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._control, _MAX_DATAGRAM, _MAX_DESCRIPTORS)
        if not data:
            self._stopping = True
            return
        request = json.loads(data)
        if "kill" in request:
            self._kill(request["kill"])
        else:
            self._tell({"forked": self._fork_rank(request["fork"], descriptors)})

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            self._stopping = True

    def _fork_rank(self, spec: dict[str, Any], descriptors: list[int]) -> int:
        pid = _linux.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for signum in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(signum, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._rank_main(spec, descriptors)
        self._ranks.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return pid

    def _kill(self, pid: int) -> None:
        if pid in self._ranks:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):  # not yet a group leader just after the fork
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Collect what has ended, and end what dead ranks have left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            if pid in self._ranks:
                self._ranks.discard(pid)
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                self._tell({"exit": pid, "status": status})
        # A rank adopts its own orphans, so a child that is no rank has lost its rank. Its own
        # children come here when it ends, and with them the next SIGCHLD.
        for pid in set(_linux.children()) - self._ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
