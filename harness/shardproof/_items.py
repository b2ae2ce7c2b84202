"""Running test items inside a rank: pytest's own protocol, each report sent as it is made."""

from __future__ import annotations

import io
import unittest
import warnings
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from time import monotonic  # a test may patch the module's own
from typing import Any

import pytest
from _pytest.config import create_terminal_writer
from _pytest.runner import runtestprotocol
from _pytest.unittest import TestCaseFunction

from shardproof import _benchmarks, _capture, _junitxml, _reruns, _subtests
from shardproof._channel import Channel
from shardproof._debugger import Debugger
from shardproof._group import Place
from shardproof._leaks import Watch
from shardproof._output import append, shortened
from shardproof._plain import encodable, plain
from shardproof._report import lost_peer
from shardproof._settings import RanksMark

_EXPECTS_FAILURE = "__unittest_expecting_failure__"
PUT_BACK_FIXTURE = "_ranks_put_back"


class ItemRunner:
    """Runs items of the collected session on this rank, and is pytest's plugin there.

    Args:
        session: The session, as copied by the fork.
        channel: Where reports go.
        place: This rank's place.
        basetemp: The controller's base temporary folder.
        log: Path of the file that keeps this rank's output, or an empty string.
        fail: Called with the exception at once when a phase fails; returns facts to report.
        leave: Called after that, to leave the process group.
        debugger: This rank's debugger.
    """

    def __init__(
        self,
        session: pytest.Session,
        channel: Channel,
        place: Place,
        basetemp: str,
        log: str,
        fail: Callable[[BaseException], dict[str, Any]],
        leave: Callable[[], None],
        debugger: Debugger,
    ) -> None:
        self._session = session
        self._channel = channel
        self._log = log
        self._fail = fail
        self._leave = leave
        self._debugger = debugger
        self._facts: dict[str, Any] = {}
        self._must_leave = False
        self._subtests: list[pytest.TestReport] = []
        self._subtest_errors: list[BaseException] = []
        self._skipped_at: float | None = None
        self.place = place
        self.counts: dict[str, int] = {}
        self.left: list[str] = []
        self.watch: Watch | None = None
        self.wider: set[pytest.FixtureDef[Any]] = set()
        self._inside = False
        self._last: pytest.Item | None = None
        self._timed = False
        self._shown = io.StringIO()
        self.shared_folder = Path(basetemp)
        manager = session.config.pluginmanager
        for plugin in manager.get_plugins():
            # xdist's worker plugin would talk to its controller over a closed connection. Its
            # module has no name of its own in a worker.
            if type(plugin).__name__ == "WorkerInteractor":
                manager.unregister(plugin)
        if manager.has_plugin("shardproof-controller"):
            manager.unregister(name="shardproof-controller")
        reporter = manager.getplugin("terminalreporter")
        if reporter is not None:
            with suppress(ValueError):  # its marks of subtests would stand in the captured output
                session.config.hook.pytest_runtest_logreport._remove_plugin(reporter)
            if session.config.getoption("setupshow", False):
                reporter._tw = create_terminal_writer(session.config, self._shown)
        manager.register(self, "shardproof-rank")
        _junitxml.take(session.config)  # what the fork has copied is not of these ranks
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
        self.counts, self.left = {}, []
        items = self._session.items
        item = items[index]
        for problem in self._end_fixtures(item):
            self._warn(f"ending wider fixtures: {problem}", item)
        _insert_put_back(item)
        if isinstance(item, TestCaseFunction):
            _listen(item, self._note)
        self._debugger.within = item.name
        if item is self._last:
            _renew_instance(item)
        self._last = item
        nextitem = None if next_index is None else items[next_index]
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        except pytest.exit.Exception as error:
            return {"exit": [str(error), error.returncode]}
        except KeyboardInterrupt:
            return {"exit": ["KeyboardInterrupt on a rank", None]}
        finally:
            self._leave_if_failed()
        measured = _benchmarks.take(self._session.config)
        recorded = _junitxml.take(self._session.config)
        if measured and self.place.rank == 0:
            self._channel.send("benchmarks", measured)
        if recorded and self.place.rank == 0:
            self._channel.send("junitxml", recorded=encodable(recorded))
        left = [*self.left, *_capture.closed(self._session.config)]
        result = {"counts": self.counts, "left": left}
        return result if self._skipped_at is None else {**result, "skipped_at": self._skipped_at}

    def end_fixtures(self) -> list[str]:
        """Tear down every fixture that is still up; return what went wrong, one line each."""
        return self._end_fixtures(None)

    def _end_fixtures(self, nextitem: pytest.Item | None) -> list[str]:
        """Tear down what the next item doesn't share; with xdist it's not the one foretold.

        What only follows from a lost group goes without saying: that was told of, or expected.
        """
        try:
            self._session._setupstate.teardown_exact(nextitem)
        except BaseException as error:
            found = getattr(error, "exceptions", [error])
            own = [one for one in found if not self._fail(one)["lost_peer"]]
            return [f"{type(one).__name__}: {one}" for one in own]
        finally:
            self._debugger.give_back()
        return []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Run the item without logging: the controller logs the ranks' merged report."""
        runtestprotocol(item, nextitem=nextitem, log=False)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Wake the peers when the setup fails."""
        __tracebackhide__ = True
        return (yield from self._watch())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Wake the peers when the test fails."""
        __tracebackhide__ = True
        return (yield from self._watch())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Wake the peers when the teardown fails."""
        __tracebackhide__ = True
        self._leave_if_failed()
        return (yield from self._watch())

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """Let what a wider fixture changes stay, also if a test asks for it while it runs."""
        __tracebackhide__ = True
        if fixturedef.scope == "function":
            return (yield)
        self.wider.add(fixturedef)
        if self.watch is None:
            return (yield)
        before = Watch(self.wider)
        try:
            return (yield)
        finally:
            self.watch.allow(before)

    def _watch(self) -> Generator[None, object, object]:
        __tracebackhide__ = True
        self._inside = True
        try:
            return (yield)
        except BaseException as error:
            self._note(error)
            raise
        finally:
            self._inside = False
            self._debugger.give_back()

    def _note(self, error: BaseException) -> None:
        """Note how this rank leaves the test; if it fails, let the peers know at once."""
        if isinstance(error, (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)):
            self._skipped_at = monotonic()
            return
        if self._facts:
            return  # what a tearDown says of it after the test, in the same phase
        self._facts = self._fail(error)
        self._must_leave = True
        if not self._debugger.after_failures:  # else the peers wait until that is over
            self._leave_if_failed()

    def _leave_if_failed(self) -> None:
        if self._must_leave:
            self._must_leave = False
            self._leave()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send each phase's report as soon as it exists."""
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, pytest.xfail.Exception):
            # A decorator of unittest's calls it too.
            function = getattr(item, "obj", None)
            itself = not getattr(function, _EXPECTS_FAILURE, False)
            report.ranks_xfailed_itself = itself  # type: ignore[attr-defined]
        if self._inside:  # of a subtest
            if report.failed and call.excinfo is not None:
                self._subtest_errors.append(call.excinfo.value)
            return report
        if report.failed and call.excinfo is not None and not self._facts:
            # unittest has a tearDown's exception, after the test's own, reported with the teardown
            self._facts = self._fail(call.excinfo.value)
        if report.when == "call" and self._subtests:
            _subtests.add_failures(report, self._subtests)
            for error in sorted(self._subtest_errors, key=lambda error: bool(lost_peer(error))):
                self._note(error)  # the first counts: better one that is this rank's own
        if not report.skipped and report.when == "call":
            self._skipped_at = None  # unittest tells of a subtest's skip as if it were the test's
        self._subtests, self._subtest_errors = [], []
        report.sections = self._kept(report, item)
        _reruns.note(item, report, call)
        report.user_properties = [(str(k), plain(v)) for k, v in report.user_properties]
        shown = encodable(self._shown.getvalue())
        self._channel.send("report", report=self._sendable(report), shown=shown, **self._facts)
        self._shown.seek(0)
        self._shown.truncate()
        self._facts = {}
        return report

    def _sendable(self, report: pytest.TestReport) -> Any:
        config = self._session.config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        return encodable(data)

    def _kept(self, report: pytest.TestReport, item: pytest.Item) -> list[tuple[str, str]]:
        """Add what was captured in a phase to the log; return what the report is to hold of all."""
        for title, content in report.sections:
            if title.startswith("Captured ") and title.endswith(f" {report.when}"):
                try:
                    append(self._log, f"--- {title}\n{content}")
                except OSError as error:
                    self._log = ""
                    text = f"--ranks-log keeps nothing more of rank {self.place.rank}: {error}"
                    self._warn(text, item)
        return [(title, shortened(content)) for title, content in report.sections]

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """Have the controller watch the time of the test function alone, and arm no timer here."""
        mark = RanksMark.of(item)
        if settings.func_only and mark is not None and mark.timeout is None:
            self._timed = True
            self._channel.send("timer", seconds=settings.timeout)
        return True

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_cancel_timer(self) -> bool:
        """Tell the controller that the test function has ended."""
        if self._timed:
            self._timed = False
            self._channel.send("timer", seconds=None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what failed in subtests, which pytest reports by themselves; send the others."""
        if report.failed:
            self._subtests.append(report)
            self._channel.send("failed_subtest", failed=encodable(report.head_line))
        elif hasattr(report, "context"):  # what else is logged here, another plugin runs in its way
            report.sections = [(title, shortened(text)) for title, text in report.sections]
            self._channel.send("subtest", report=self._sendable(report))

    @pytest.hookimpl
    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: object
    ) -> None:
        """Send a warning on to the terminal's summary."""
        self._channel.send(
            "warning",
            category=warning_message.category.__qualname__,
            module=warning_message.category.__module__,
            message=encodable(str(warning_message.message)),
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


def _listen(item: TestCaseFunction, note: Callable[[BaseException], None]) -> None:
    """Have exceptions noted that unittest catches, before its own tearDown and cleanups run."""
    keep = type(item)._addexcinfo.__get__(item)

    def keep_and_note(excinfo: Any) -> None:
        keep(excinfo)
        note(getattr(excinfo, "_rawexcinfo", excinfo)[1])  # the former is of Twisted's failures

    item._addexcinfo = keep_and_note  # type: ignore[method-assign, assignment]


def _renew_instance(item: pytest.Item) -> None:
    """Have an item that runs again make a new object of its class, as it did the first time."""
    if getattr(item, "_instance", None) is not None:
        del item._instance  # type: ignore[attr-defined]
        item._obj = None  # type: ignore[attr-defined]


def use_basetemp(config: pytest.Config, folder: Path) -> None:
    """Have pytest make temporary folders of tests in a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        factory._basetemp = folder
