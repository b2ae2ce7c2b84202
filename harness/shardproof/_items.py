"""Running test items inside a rank: pytest's own protocol, each report sent as it is made."""

from __future__ import annotations

import time
import unittest
import warnings
from collections.abc import Callable, Generator
from json import dumps
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from shardproof._channel import Channel
from shardproof._group import Place

PUT_BACK_FIXTURE = "_ranks_put_back"


class ItemRunner:
    """Runs items of the collected session on this rank, and is pytest's plugin there.

    Args:
        session: The session, as copied by the fork.
        channel: Where reports go.
        place: This rank's place.
        basetemp: The controller's base temporary folder.
        fail: Called with the exception at once when a phase fails; returns facts to report.
    """

    def __init__(
        self,
        session: pytest.Session,
        channel: Channel,
        place: Place,
        basetemp: str,
        fail: Callable[[BaseException], dict[str, Any]],
    ) -> None:
        self._session = session
        self._channel = channel
        self._fail = fail
        self._facts: dict[str, Any] = {}
        self._subtests: list[pytest.TestReport] = []
        self._skipped_at: float | None = None
        self.shared_folder = Path(basetemp)
        manager = session.config.pluginmanager
        for plugin in manager.get_plugins():
            # xdist's worker plugin would talk to its controller over a closed connection. Its
            # module has no name of its own in a worker.
            if type(plugin).__name__ == "WorkerInteractor":
                manager.unregister(plugin)
        # A debugger would read a terminal that ranks don't have.
        for name in ("shardproof-controller", "pdbinvoke", "pdbtrace"):
            if manager.has_plugin(name):
                manager.unregister(name=name)
        manager.register(self, "shardproof-rank")
        use_basetemp(session.config, Path(basetemp) / f"rank{place.rank}")

    def run(self, index: int, next_index: int | None, shared_folder: str) -> dict[str, Any]:
        """Run one item through pytest's protocol; its reports are sent, what ends it returned.

        Args:
            index: The item's place in the session's items.
            next_index: The next item that these ranks run, or None.
            shared_folder: The folder that all ranks share in this test, made when it is used.
        """
        self.shared_folder = Path(shared_folder)
        self._skipped_at = None
        items = self._session.items
        item = items[index]
        for problem in self._end_fixtures(item):
            self._warn(f"ending wider fixtures: {problem}", item)
        _insert_put_back(item)
        nextitem = None if next_index is None else items[next_index]
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        except pytest.exit.Exception as error:
            return {"exit": [str(error), error.returncode]}
        except KeyboardInterrupt:
            return {"exit": ["KeyboardInterrupt on a rank", None]}
        return {} if self._skipped_at is None else {"skipped_at": self._skipped_at}

    def end_fixtures(self) -> list[str]:
        """Tear down every fixture that is still up; return what went wrong, one line each."""
        return self._end_fixtures(None)

    def _end_fixtures(self, nextitem: pytest.Item | None) -> list[str]:
        """Tear down what the next item doesn't share; with xdist it's not the one foretold."""
        try:
            self._session._setupstate.teardown_exact(nextitem)
        except BaseException as error:
            return [f"{type(error).__name__}: {error}"]
        return []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Run the item without logging: the controller logs the ranks' merged report."""
        runtestprotocol(item, nextitem=nextitem, log=False)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Wake the peers when the setup fails."""
        return (yield from self._watch())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Wake the peers when the test fails."""
        return (yield from self._watch())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Wake the peers when the teardown fails."""
        return (yield from self._watch())

    def _watch(self) -> Generator[None, object, object]:
        try:
            return (yield)
        except (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest):
            self._skipped_at = time.monotonic()
            raise
        except BaseException as error:
            self._facts = self._fail(error)
            raise

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send each phase's report as soon as it exists."""
        report = yield
        if report.when == "call" and report.passed and self._subtests:
            report.outcome = "failed"
            report.longrepr = "\n".join(str(subtest.longrepr) for subtest in self._subtests)
        self._subtests = []
        report.user_properties = [(str(k), _plain(v)) for k, v in report.user_properties]
        hook = item.config.hook
        data = hook.pytest_report_to_serializable(config=item.config, report=report)
        self._channel.send("report", report=data, **self._facts)
        self._facts = {}
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what failed in subtests, which pytest reports by themselves and only here."""
        if report.failed:
            self._subtests.append(report)

    @pytest.hookimpl
    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: object
    ) -> None:
        """Send a warning on to the terminal's summary."""
        self._channel.send(
            "warning",
            category=warning_message.category.__name__,
            message=str(warning_message.message),
            filename=warning_message.filename,
            lineno=warning_message.lineno,
            when=when,
            nodeid=nodeid,
        )

    def _warn(self, text: str, item: pytest.Item) -> None:
        path, line, _ = item.location
        warning = warnings.WarningMessage(
            pytest.PytestWarning(text), pytest.PytestWarning, path, (line or 0) + 1
        )
        self.pytest_warning_recorded(warning, "runtest", item.nodeid, None)


def _plain(value: object) -> object:
    """Return a value that JSON can hold as it is, else its representation."""
    try:
        dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


def _insert_put_back(item: pytest.Item) -> None:
    """Have the state put back after the item's own fixtures, and before wider ones, are torn down.

    So what a wider fixture has changed stays as long as that fixture.
    """
    names = getattr(item, "fixturenames", None)
    if names is None or PUT_BACK_FIXTURE in names:
        return
    definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    own = (
        place
        for place, name in enumerate(names)
        if name not in definitions or definitions[name][-1].scope == "function"
    )
    names.insert(next(own, len(names)), PUT_BACK_FIXTURE)


def use_basetemp(config: pytest.Config, folder: Path) -> None:
    """Have pytest make temporary folders of tests in a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        factory._basetemp = folder
