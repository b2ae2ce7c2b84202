"""A rank's report of a phase: made again from what was sent, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

# What a strict xfail says of a test that passes, and unittest's expectedFailure.
_PASSED_AGAINST = ("[XPASS(strict)]", "Unexpected success")


def revived(config: pytest.Config, data: dict[str, Any]) -> Any:
    """Rebuild a report, with the tuples that JSON has made lists."""
    for name in ("longrepr", "location"):
        if isinstance(data[name], list):
            data[name] = tuple(data[name])
    for name in ("sections", "user_properties"):
        data[name] = [tuple(entry) for entry in data[name]]
    return config.hook.pytest_report_from_serializable(config=config, data=data)


def kind(report: pytest.TestReport) -> str:
    """Return the outcome, with `xfailed` and `xpassed` told from skipped and passed."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed and str(report.longrepr).startswith(_PASSED_AGAINST):
        return "xpassed"
    return report.outcome


def is_marked(report: Any) -> bool:
    """Say whether it failed as expected by a mark, and not by calling `pytest.xfail`."""
    return kind(report) == "xfailed" and not getattr(report, "ranks_xfailed_itself", False)


def say(report: pytest.TestReport) -> str:
    """Say in words what a rank has made of a phase."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return f"skipped ({report.longrepr[2].removeprefix('Skipped: ')})"
    if report.failed and report.ranks_facts[1]:
        return "lost a peer"
    return kind(report)


def add_section(report: Any, title: str, text: str) -> None:
    """Make a text part of a failure, so that every reporter has it, junitxml too."""
    add = getattr(report.longrepr, "addsection", None)
    if add is not None:
        add(title, text)
    else:
        report.sections.append((title, text))
