"""The pytest process's side of the engine: the zygote, warm ranks, and items run on them."""

from __future__ import annotations

import importlib.metadata
import time
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from shardproof._clean import Dirt
from shardproof._conversation import Ending
from shardproof._merge import Merger
from shardproof._rankset import RankSet, Setting
from shardproof._settings import RanksMark, Settings
from shardproof._start import Started, start
from shardproof._zygote import Zygote
from shardproof.errors import StartError


class Controller:
    """Owns everything that a session starts, and ends it."""

    def __init__(self, session: pytest.Session, settings: Settings, dirt: Dirt | None) -> None:
        self._session = session
        self.settings = settings
        self._dirt = dirt
        self._started: Started | None = None
        self._warm: dict[tuple[int, str], RankSet] = {}
        self._index = {item: place for place, item in enumerate(session.items)}
        self._marks = [RanksMark.of(item) for item in session.items]
        self._launched = 0
        self._exit: list[Any] = []

    def start(self) -> Zygote:
        """Start the zygote, once.

        Raises:
            StartError: It did not come up.
        """
        if self._started is None:
            self._basetemp = _basetemp(self._session.config)
            method = self.settings.start_method
            self._started = start(self._session, self._basetemp, method, self._dirt)
        return self._started.zygote

    def describe(self) -> str:
        """Return the line that tells what tests on ranks run on."""
        facts = self.start().facts
        most = self.settings.most(facts["gpus"])
        backend = self._backend(most, None)
        device = f"{facts['gpus']} GPUs" if backend == "nccl" else "cpu"
        torch = importlib.metadata.version("torch")
        assert self._started is not None
        return f"ranks: world {most}, {backend}, {self._started.how}, {device}, torch {torch}"

    def refusal(self, world_size: int, backend: str | None) -> str:
        """Return why a world of this size can't run here, or an empty string."""
        gpus = self.start().facts["gpus"]
        if self._backend(world_size, backend) == "nccl" and gpus < world_size:
            return f"nccl needs a GPU for each of {world_size} ranks, this machine has {gpus}"
        most = self.settings.most(gpus)
        if world_size <= most:
            return ""
        limit = "--nproc" if self.settings.nproc else f"{gpus} GPUs" if gpus else "CPUs"
        return f"needs {world_size} ranks, {limit} allows {most}"

    def new_ranks(self, world_size: int, backend: str | None, name: str) -> RankSet:
        """Start fresh ranks.

        Args:
            world_size: How many.
            backend: `gloo`, `nccl`, or None for what is set.
            name: What they are for; their seeds follow from it.

        Raises:
            StartError: They did not come up.
        """
        zygote = self.start()
        assert self._started is not None
        backend = self._backend(world_size, backend)
        devices = tuple(
            f"cuda:{rank}" if backend == "nccl" else "cpu" for rank in range(world_size)
        )
        return RankSet(
            zygote,
            Setting(
                world_size=world_size,
                backend=backend,
                devices=devices,
                seed=zlib.crc32(name.encode()),
                basetemp=str(self._basetemp),
                capture=self._session.config.getoption("capture", "no") != "no",
                start_timeout=self._started.form_timeout,
            ),
        )

    def run_item(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Run a marked item on its ranks and log the merged report."""
        mark = self._marks[self._index[item]]
        assert mark is not None
        world_size = mark.world_size or self.settings.most(self.start().facts["gpus"])
        refusal = self.refusal(world_size, mark.backend)
        if refusal:
            reports = [_refusal(item, refusal, self.settings.strict)]
        else:
            try:
                reports = self._run_on_ranks(item, nextitem, mark, world_size)
            except StartError as error:
                reports = [_refusal(item, str(error), strict=True)]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        if self._exit:
            pytest.exit(*self._exit)

    def _run_on_ranks(
        self, item: pytest.Item, nextitem: pytest.Item | None, mark: RanksMark, world_size: int
    ) -> list[pytest.TestReport]:
        timeout = mark.timeout or self.settings.timeout
        ranks = self._ranks_for(item, mark, world_size)
        fields = {
            "index": self._index[item],
            "next_index": None if mark.isolate else self._next_index(item, nextitem),
            "shared_folder": str(self._basetemp / "shared" / str(self._launched)),
        }
        self._launched += 1
        began = time.monotonic()
        endings = ranks.run("run", fields, timeout)
        reports = Merger(item, endings, timeout, time.monotonic() - began).reports()
        problems = self._tidy(ranks, mark.isolate)
        if problems:
            _tell_of_fixtures(reports, "\n".join(problems))
        self._forward_warnings(endings)
        for ending in endings:
            if ending.done is not None and "exit" in ending.done.fields:
                self._exit = ending.done.fields["exit"]
        return reports

    def _ranks_for(self, item: pytest.Item, mark: RanksMark, world_size: int) -> RankSet:
        if mark.isolate:
            return self.new_ranks(world_size, mark.backend, item.nodeid)
        key = (world_size, self._backend(world_size, mark.backend))
        ranks = self._warm.get(key)
        if ranks is None:
            ranks = self._warm[key] = self.new_ranks(world_size, mark.backend, f"warm/{key}")
        elif not ranks.whole:
            ranks.restore()
        return ranks

    def _tidy(self, ranks: RankSet, isolate: bool) -> list[str]:
        """Make the ranks ready for the next test, or end them if they were for this one."""
        if isolate:
            return ranks.finish()
        try:
            return [] if ranks.whole else ranks.restore()
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
                    problems += ranks.finish()
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
        if item not in self._index or self._marks[self._index[item]] is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self.run_item(item, nextitem)
        self._tear_down_here(item, nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _tear_down_here(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """End the fixtures that ordinary tests before this item have left up in this process."""
        state = self._session._setupstate
        call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), "teardown")
        if call.excinfo is not None:
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """End what was started, however the session ends."""
        try:
            return (yield)
        finally:
            for problem in self.stop():
                self._session.config.issue_config_time_warning(
                    pytest.PytestWarning(f"ending fixtures on ranks: {problem}"), stacklevel=2
                )


def _basetemp(config: pytest.Config) -> Path:
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is None:
        raise StartError("pytest's tmpdir plugin is off, and ranks need its base folder")
    base: Path = factory.getbasetemp()
    return base


def _tell_of_fixtures(reports: list[pytest.TestReport], text: str) -> None:
    """Report what went wrong with wider fixtures that had to end: by itself it is a failure."""
    last = reports[-1]
    if all(report.passed for report in reports):
        last.outcome = "failed"
        last.longrepr = f"ending wider fixtures:\n{text}"
    else:
        last.sections.append(("ending wider fixtures", text))


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


def _record_warning(config: pytest.Config, fields: dict[str, Any]) -> None:
    import builtins
    import warnings

    name = fields["category"]
    category = getattr(builtins, name, None)
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = type(name, (UserWarning,), {})
    warning = warnings.WarningMessage(
        message=category(fields["message"]),
        category=category,
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
