"""Running a test on its ranks again where pytest-rerunfailures is asked to.

The plugin's own protocol would run the test in the pytest process. So it is asked how often and
when, and its reports and counts are made the way that it makes them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest


def note(item: pytest.Item, report: Any, call: pytest.CallInfo[None]) -> None:
    """On a rank, where the exception is: note on a failure whether it is one to run again for."""
    if report.failed and (plugin := _plugin(item)):
        report.ranks_may_rerun = _may_rerun(plugin, item, report, call.excinfo)


def again(item: pytest.Item, reports: Sequence[Any], attempt: int) -> bool:
    """Mark an attempt's merged reports as the plugin would; return whether to make another.

    Args:
        item: The item.
        reports: The merged reports.
        attempt: Which attempt it was, from 1.
    """
    plugin = _plugin(item)
    if plugin is None:
        return False
    item.execution_count = attempt  # type: ignore[attr-defined]
    for report in reports:
        report.rerun = attempt - 1
    failed = [report for report in reports if report.failed]
    if not failed or attempt > (plugin.get_reruns_count(item) or 0) or _is_excluded(item):
        return False
    # A rank that died has no exception that the plugin could look at.
    rerun = getattr(failed[0], "ranks_may_rerun", None)
    if rerun is None:
        rerun = _may_rerun(plugin, item, failed[0], None)
    if not rerun or not _session_allows(item):
        return False
    for report in failed:
        report.outcome = "rerun"
    factor = plugin.get_reruns_delay_backoff_factor(item)
    time.sleep(plugin.get_reruns_delay(item) * factor ** (attempt - 1))
    return True


def _plugin(item: pytest.Item) -> Any:
    module = sys.modules.get("pytest_rerunfailures")
    return module if item.config.pluginmanager.is_registered(module) else None


def _may_rerun(
    plugin: Any,
    item: pytest.Item,
    report: Any,
    excinfo: pytest.ExceptionInfo[BaseException] | None,
) -> bool:
    """Say whether `--only-rerun`, `--rerun-except` and the mark's condition allow it."""
    hard = plugin._should_hard_fail_on_error(item, report, excinfo)
    return not hard and bool(plugin.get_reruns_condition(item, [(report.when, 0, excinfo)]))


def _is_excluded(item: pytest.Item) -> bool:
    folders = item.config.getoption("rerun_exclude_path", None) or ()
    return any(item.path.is_relative_to(item.config.rootpath / folder) for folder in folders)


def _session_allows(item: pytest.Item) -> bool:
    most = item.config.getoption("max_suite_reruns", None)
    database: Any = getattr(item.config, "failures_db", None)
    return most is None or bool(database.try_increment_suite_reruns(most))
