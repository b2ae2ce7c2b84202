"""The program of a new Python that collects the session once more, to be the zygote or a rank."""

from __future__ import annotations

import gc
import json
import os
import pickle
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import pytest
from _pytest.config import get_config

from shardproof import _capture, _rank, _start
from shardproof._blueprint import ONE_THREAD, Blueprint, name_of
from shardproof._clean import WATCH, Watch
from shardproof._items import use_basetemp
from shardproof._zygote import Unclean, serve
from shardproof.errors import StartError

PLUGIN = "shardproof-spawned"
# What would write over files of the pytest process while pytest starts. Others are written at the
# end of a session, to which no rank comes.
_NO_FILES = {"log_file": os.devnull, "report_log": None, "cacheclear": False}


def main() -> NoReturn:
    """Run the new program."""
    try:
        blueprint, role, spec, descriptors, environment = json.loads(sys.argv[1])
        for descriptor in (blueprint, *descriptors):
            os.set_inheritable(descriptor, False)
        # Others read the same file: its position is theirs too.
        plan = pickle.loads(os.pread(blueprint, os.fstat(blueprint).st_size, 0))
        os.close(blueprint)
        if role == "zygote":
            _be_zygote(plan, socket.socket(fileno=descriptors[0]), spec["scratch"], environment)
        _be_rank(plan, spec, descriptors)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _be_zygote(
    plan: Blueprint, control: socket.socket, scratch: str, environment: dict[str, str | None]
) -> NoReturn:
    def prepare() -> dict[str, Any]:
        if failure is not None:
            raise failure
        return _start.facts(session)

    failure = None
    try:
        with tempfile.TemporaryFile() as file, _output_to(file.fileno()):
            session = _collect(plan, watched=True)
    except BaseException as error:
        failure = error
    _put_back(environment)
    serve(
        control, scratch, lambda spec, descriptors: _rank.main(session, spec, descriptors), prepare
    )


def _be_rank(plan: Blueprint, spec: dict[str, Any], descriptors: list[int]) -> NoReturn:
    try:
        with tempfile.TemporaryFile() as file, _output_to(file.fileno()):
            session = _collect(plan, watched=False)
    except BaseException as error:
        text = f"{error}\n" if isinstance(error, StartError) else traceback.format_exc()
        os.write(descriptors[-1], text.encode(errors="replace"))
        os._exit(1)
    gc.collect()
    gc.freeze()
    _rank.main(session, spec, descriptors)


def _put_back(environment: dict[str, str | None]) -> None:
    """Put back the variables of `ONE_THREAD`, unless collecting has changed them itself."""
    for name, value in environment.items():
        if os.environ.get(name) == ONE_THREAD[name]:
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def _output_to(file: int) -> Iterator[None]:
    """Send what pytest prints while it collects, as it has done before, to a file."""
    kept = [os.dup(1), os.dup(2)]
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, before in zip((1, 2), kept, strict=True):
            os.dup2(before, descriptor)
            os.close(before)


def _collect(plan: Blueprint, watched: bool) -> pytest.Session:
    """Collect again, and put the items into the order of the pytest process.

    Args:
        plan: What to collect.
        watched: Whether this process must be fit to be forked afterwards.

    Raises:
        StartError: An item is missing.
        Unclean: The process is not fit to be forked.
    """
    os.chdir(plan.folder)
    sys.argv[:] = plan.argv
    config = _configure(plan, watched)
    session = pytest.Session.from_config(config)
    config._do_configure()
    use_basetemp(config, plan.basetemp)
    config.hook.pytest_sessionstart(session=session)
    config.hook.pytest_collection(session=session)
    session.items = _in_order(session, plan, config.pluginmanager.getplugin(PLUGIN).failures)
    if watched:
        _check_clean(config)
    _capture.leave_inherited(config)
    return session


def _configure(plan: Blueprint, watched: bool) -> pytest.Config:
    args = list(plan.args)
    config = get_config(args, plan.plugins)
    manager = config.pluginmanager
    manager.register(_Collected(), PLUGIN)
    if not watched:
        manager.set_blocked(WATCH)
    for plugin in plan.plugins:
        manager.consider_pluginarg(plugin)
    config.parse(args)
    for name, value in plan.options.items():
        with suppress(Exception):  # its class may be one that can't be imported here
            setattr(config.option, name, pickle.loads(value))
    for name, neutral in _NO_FILES.items():
        if hasattr(config.option, name):
            setattr(config.option, name, neutral)
    if plan.workerinput is not None:
        config.workerinput = plan.workerinput  # type: ignore[attr-defined]
        config.workeroutput = {}  # type: ignore[attr-defined]
    return config


class _Collected:
    """A plugin that keeps what could not be collected; its presence tells what process this is."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep a failure."""
        if report.failed:
            self.failures.append(str(report.longrepr))


def _in_order(
    session: pytest.Session, plan: Blueprint, failures: Sequence[str]
) -> list[pytest.Item]:
    """Return the items that the pytest process has, with the node ids they have there."""
    found: dict[str, list[pytest.Item]] = {}
    for item in reversed(session.items):
        found.setdefault(name_of(item), []).append(item)
    items = []
    for name, nodeid in plan.items:
        if not found.get(name):
            raise StartError(_difference(nodeid, failures))
        item = found[name].pop()
        item._nodeid = nodeid  # type: ignore[attr-defined]
        items.append(item)
    return items


def _difference(nodeid: str, failures: Sequence[str]) -> str:
    head = f"collected again in another process, there is no {nodeid}"
    if failures:
        return "\n".join([f"{head}; this failed:", *failures])
    return (
        f"{head}: ids must be the same each time, so don't make parameters from a set, the time "
        "or random numbers, or give them ids"
    )


def _check_clean(config: pytest.Config) -> None:
    watch: Watch = config.pluginmanager.getplugin(WATCH)
    config.pluginmanager.unregister(watch)
    watch.probe("a plugin")  # no thread may tell: what was started has one thread only
    dirt = watch.end()
    if dirt is not None:
        raise Unclean(dirt.text)
