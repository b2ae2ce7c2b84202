"""The pytest process's side of the engine: the zygote, warm ranks, and items run on them."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import time
import warnings
import zlib
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shardproof import _benchmarks, _capture, _junitxml, _reruns, _setup_show, _workers
from shardproof._clean import Dirt, look_again
from shardproof._conversation import Ending, exit_asked
from shardproof._merge import Merger
from shardproof._outcomes import add_section
from shardproof._output import Output
from shardproof._rankset import RankSet, Setting
from shardproof._report import late_death
from shardproof._settings import RanksMark, Settings, needs_gpus
from shardproof._start import Started, start
from shardproof._terminal import Terminal
from shardproof._zygote import Zygote
from shardproof.errors import StartError

_MOST_LOST = 3  # zygotes in one session; the cause does not go away by itself then


class Controller:
    """Owns everything that a session starts, and ends it."""

    def __init__(self, session: pytest.Session, settings: Settings, dirt: Dirt | None) -> None:
        self._session = session
        self.settings = settings
        self._dirt = dirt
        self._started: Started | None = None
        self._losses: list[str] = []
        self._warm: dict[tuple[int, str], RankSet] = {}
        self._index = {item: place for place, item in enumerate(session.items)}
        self._marks = [RanksMark.of(item) for item in session.items]
        self._launched = 0
        self._exit: list[Any] = []
        self._output = Output(session.config, settings.log)
        self._terminal = Terminal(
            _capture.stdin_is_terminal(session.config),
            settings.pdb,
            session.config.getoption("trace", False),
        )
        self._timer: float | None = None

    def start(self) -> Zygote:
        """Start the zygote, unless that was done.

        Raises:
            StartError: It did not come up, or was lost too often.
        """
        if len(self._losses) >= _MOST_LOST:
            raise StartError(
                f"nothing runs on ranks any more, as {_MOST_LOST} zygotes were lost; of the last "
                f"one is known: {self._losses[-1]}"
            )
        if self._started is None:
            self._basetemp = _basetemp(self._session.config)
            method = self.settings.start_method
            try:
                self._started = start(self._session, self._basetemp, method, self._dirt)
            except StartError as error:
                self._losses.append(str(error))
                raise
        return self._started.zygote

    def _let_go_of_lost(self) -> None:
        """Have the zygote started anew if it was lost, and all ranks with it."""
        if self._started is not None and (loss := self._started.zygote.loss()):
            self._losses.append(loss)
            for ranks in self._warm.values():
                ranks.kill()
            self._warm.clear()
            self._started.zygote.stop()
            self._started = None
            if self.settings.start_method == "fork":
                # Ordinary tests, too, may have made this process unfit to be forked.
                self._dirt = self._dirt or look_again(self._session.config)

    def describe(self) -> str:
        """Return the line that tells what tests on ranks run on."""
        facts = self.start().facts
        most = self.settings.most(facts["gpus"])
        backend = self._backend(most, None)
        device = f"{facts['gpus']} GPUs" if needs_gpus(backend) else "cpu"
        torch = importlib.metadata.version("torch")
        assert self._started is not None
        return f"ranks: world {most}, {backend}, {self._started.how}, {device}, torch {torch}"

    def refusal(self, world_size: int, backend: str | None) -> str:
        """Return why a world of this size can't run here, or an empty string."""
        gpus = self.start().facts["gpus"]
        backend = self._backend(world_size, backend)
        if needs_gpus(backend) and gpus < world_size:
            slots = _workers.place(self._session.config)[1]
            where = f"each of {slots} workers" if slots > 1 else "this machine"
            return f"{backend} needs a GPU for each of {world_size} ranks, {where} has {gpus}"
        most = self.settings.most(gpus)
        if world_size <= most:
            return ""
        limit = "--nproc" if self.settings.nproc else f"{gpus} GPUs" if gpus else "CPUs"
        return f"needs {world_size} ranks, {limit} allows {most}"

    def new_ranks(self, world_size: int, backend: str | None, name: str) -> RankSet:
        """Start fresh ranks.

        Args:
            world_size: How many.
            backend: One of `BACKENDS`, or None for what is set.
            name: What they are for; their seeds follow from it.

        Raises:
            StartError: They did not come up.
        """
        self._let_go_of_lost()
        zygote = self.start()
        assert self._started is not None
        backend = self._backend(world_size, backend)
        devices = tuple(
            f"cuda:{rank}" if needs_gpus(backend) else "cpu" for rank in range(world_size)
        )
        return RankSet(
            zygote,
            self._terminal,
            Setting(
                world_size=world_size,
                backend=backend,
                devices=devices,
                seed=zlib.crc32(name.encode()),
                basetemp=str(self._basetemp),
                output=self._output,
                start_timeout=self._started.form_timeout,
            ),
        )

    def run_item(self, item: pytest.Item, nextitem: pytest.Item | None, attempt: int) -> bool:
        """Run a marked item on its ranks and log the merged report.

        Returns:
            Whether it is to be run once more, after so many attempts.
        """
        try:
            reports = self._reports(item, nextitem)
        except StartError as error:
            reports = [_refusal(item, str(error), strict=True)]
        again = not self._exit and _reruns.again(item, reports, attempt)
        for report in reports:
            _setup_show.write(item.config, report)
            item.ihook.pytest_runtest_logreport(report=report)
        if self._exit:
            pytest.exit(*self._exit)
        return again

    def _reports(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        mark = self._marks[self._index[item]]
        assert mark is not None
        self._let_go_of_lost()
        world_size = mark.world_size or self.settings.most(self.start().facts["gpus"])
        refusal = self.refusal(world_size, mark.backend)
        if refusal:
            return [_refusal(item, refusal, self.settings.strict)]
        return self._run_on_ranks(item, nextitem, mark, world_size)

    def _run_on_ranks(
        self, item: pytest.Item, nextitem: pytest.Item | None, mark: RanksMark, world_size: int
    ) -> list[pytest.TestReport]:
        name = re.sub(r"\W", "_", item.name)[:30]  # as tmp_path
        timeout = mark.timeout or self._timer or self.settings.timeout
        ranks = self._ranks_for(item, mark, world_size)
        fields = {
            "index": self._index[item],
            "next_index": None if mark.isolate else self._next_index(item, nextitem),
            "shared_folder": str(self._basetemp / "shared" / f"{name}{self._launched}"),
        }
        self._launched += 1
        began = time.monotonic()
        endings = ranks.run(item.nodeid, "run", fields, timeout)
        merger = Merger(item, endings, timeout, time.monotonic() - began)
        reports = merger.reports()
        _setup_show.attach(endings, reports)
        self._exit = exit_asked(endings)
        if text := ranks.unmatched(endings):
            _add_failure(reports, "collectives without a match", text)
        problems = self._tidy(ranks, mark.isolate, timeout)
        if problems:
            _add_failure(reports, "ending wider fixtures", "\n".join(problems))
        elif self._exit and not any(e.failed_at and not e.lost_peer for e in endings):
            reports = []  # cut short, which is no failure
        self._forward_warnings(endings)
        for ending in endings:
            if ending.late_death:
                text = late_death(ending.rank, ending.late_death, item.nodeid, ending.output)
                self._warn(item, text)
        if self._output.failure:
            self._warn(item, self._output.failure)
            self._output.failure = ""
        for ending in endings:
            for message in ending.messages:
                if message.kind == "benchmarks":
                    _benchmarks.add(item.config, message.payload)
                if message.kind == "junitxml":
                    _junitxml.add(item, message.fields["recorded"])
        return [*reports[:1], *merger.subtests(), *reports[1:]]

    def _ranks_for(self, item: pytest.Item, mark: RanksMark, world_size: int) -> RankSet:
        if mark.isolate:
            return self.new_ranks(world_size, mark.backend, item.nodeid)
        key = (world_size, self._backend(world_size, mark.backend))
        ranks = self._warm.get(key)
        if ranks is None:
            ranks = self._warm[key] = self.new_ranks(world_size, mark.backend, f"warm/{key}")
        self._tell_of_deaths(ranks)
        if not ranks.whole:
            ranks.restore(mark.timeout or self.settings.timeout)
        return ranks

    def _tell_of_deaths(self, ranks: RankSet) -> None:
        """Warn of ranks that have died after their last test had ended."""
        for nodeid, text in ranks.deaths():
            self._warn(next(item for item in self._index if item.nodeid == nodeid), text)

    def _warn(self, item: pytest.Item | None, text: str) -> None:
        """Show a text in the summary of warnings, whatever filters there are."""
        fields: dict[str, Any] = {"category": "PytestWarning", "module": pytest.__name__}
        fields |= {"message": text, "when": "runtest"}
        path, line, _ = item.location if item else (__file__, None, "")
        fields |= {"nodeid": item.nodeid if item else "", "filename": path}
        fields["lineno"] = (line or 0) + 1
        _record_warning(self._session.config, fields)

    def _tidy(self, ranks: RankSet, isolate: bool, timeout: float) -> list[str]:
        """Make the ranks ready for the next test, or end them if they were for this one."""
        if isolate:
            return ranks.finish(timeout)
        try:
            return [] if ranks.whole else ranks.restore(timeout)
        except StartError as error:
            return [f"{error}\nThe next test starts ranks anew."]

    def _next_index(self, item: pytest.Item, nextitem: pytest.Item | None) -> int | None:
        """Return the next item that the same warm ranks will run, for their wider fixtures."""
        if nextitem is None:
            return None
        key = self._key(self._index[item])
        for index in range(self._index[nextitem], len(self._marks)):
            if self._key(index) == key:
                return index
        return None

    def _key(self, index: int) -> tuple[int | None, str] | None:
        mark = self._marks[index]
        if mark is None or mark.isolate:
            return None
        size = mark.world_size or self.settings.most(self.start().facts["gpus"])
        return size, self._backend(size, mark.backend)

    def _backend(self, world_size: int, wanted: str | None) -> str:
        facts = self.start().facts
        return self.settings.backend_for(world_size, wanted, facts["gpus"], facts["nccl"])

    def _forward_warnings(self, endings: list[Ending]) -> None:
        """Pass on, once, the warnings that ranks recorded."""
        seen = set()
        for ending in endings:
            for message in ending.messages:
                if message.kind == "warning":
                    key = tuple(message.fields.values())
                    if key not in seen:
                        seen.add(key)
                        _record_warning(self._session.config, message.fields)

    def stop(self) -> list[str]:
        """End all ranks and the zygote; return what went wrong with fixtures, one line each."""
        problems: list[str] = []
        try:
            for ranks in self._warm.values():
                if ranks.whole:
                    self._tell_of_deaths(ranks)
                    problems += ranks.finish(self.settings.timeout)
        except StartError as error:
            problems.append(str(error))
        finally:
            if self._started is not None:
                self._started.zygote.stop()
                self._started = None
        return problems

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Run marked items on ranks; leave the others to pytest."""
        if not self._is_ours(item):
            return None
        attempt, again = 0, True
        while again:
            attempt += 1
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            again = self.run_item(item, nextitem, attempt)
            self._tear_down_here(item, nextitem)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _is_ours(self, item: pytest.Item) -> bool:
        return item in self._index and self._marks[self._index[item]] is not None

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Make pytest-timeout's value the ranks' deadline; a signal would end the session."""
        if not self._is_ours(item):
            return None
        self._timer = settings.timeout
        return True

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        """Forget that value."""
        if not self._is_ours(item):
            return None
        self._timer = None
        return True

    def _tear_down_here(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """End the fixtures that ordinary tests before this item have left up in this process."""
        state = self._session._setupstate
        call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), "teardown")
        if call.excinfo is not None:
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)

    # The innermost wrapper: what others do when the tests have run, such as combining coverage
    # data, comes after the ranks' end.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """End what was started, however the session ends."""
        try:
            return (yield)
        finally:
            for problem in self.stop():
                self._warn(None, f"ending fixtures on ranks: {problem}")


def _basetemp(config: pytest.Config) -> Path:
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is None:
        raise StartError("pytest's tmpdir plugin is off, and ranks need its base folder")
    base: Path = factory.getbasetemp()
    return base


def _add_failure(reports: list[pytest.TestReport], title: str, text: str) -> None:
    """Tell of what went wrong after the test itself, which is a failure if there is no other."""
    failed = next((report for report in reports if report.failed), None)
    if failed is not None:
        add_section(failed, title, text)
    else:
        reports[-1].outcome = "failed"
        reports[-1].longrepr = f"{title}: {text}"


def _refusal(item: pytest.Item, reason: str, strict: bool) -> pytest.TestReport:
    path, line, _ = item.location
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={name: 1 for name in item.keywords},
        outcome="failed" if strict else "skipped",
        longrepr=reason if strict else (path, (line or 0) + 1, f"Skipped: {reason}"),
        when="setup",
    )


def _warning(module: str, category: str, text: str) -> Warning:
    """Make a rank's warning again; xdist then finds its class by name, so it has to be real."""
    kind = getattr(sys.modules.get(module), category, None)
    if isinstance(kind, type) and issubclass(kind, Warning):
        with suppress(Exception):  # it may take what we don't know
            again = kind(text)
            if str(again) == text:
                return again
    return UserWarning(f"{category}: {text}")


def _record_warning(config: pytest.Config, fields: dict[str, Any]) -> None:
    message = _warning(fields["module"], fields["category"], fields["message"])
    warning = warnings.WarningMessage(
        message=message,
        category=type(message),
        filename=fields["filename"],
        lineno=fields["lineno"],
    )
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": warning,
            "when": fields["when"],
            "nodeid": fields["nodeid"],
            "location": None,
        }
    )
