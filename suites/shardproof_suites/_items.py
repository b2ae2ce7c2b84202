"""What the plugin knows of a test that runs a case; loads no torch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardproof_suites.outcome import Kind, Outcome

if TYPE_CHECKING:
    from shardproof_suites.case import Case

#: Name of the attribute by which a door's test function names its implementation.
DOOR = "_conformance_implementation"
#: On an item: the import string of its implementation.
IMPLEMENTATION = pytest.StashKey[str]()
#: On an item that ran: how it ended.
OUTCOME = pytest.StashKey[Outcome]()
#: Name of the user property that carries the result through xdist.
PROPERTY = "conformance"


def case_of(item: pytest.Item) -> Case:
    """Give the case that an item of a door runs."""
    case: Case = item.callspec.params["case"]  # type: ignore[attr-defined]
    return case


def rerun_command(item: pytest.Item) -> str:
    """Write the one command that runs this test again, from where pytest was started."""
    config = item.config
    here = config.invocation_params.dir
    file, _, rest = item.nodeid.partition("::")
    path = _relative(config.rootpath / file, here)
    words = ["python", "-m", "pytest", "--nproc", str(case_of(item).world_size)]
    named = config.getoption("implementation")
    words += ["--implementation", named] if named else []
    return shlex.join([*words, f"{path}::{rest}"])


def annotate(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the case and its outcome into the report that tells of it."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        case, cell = case_of(item), case_of(item).cells[0]
        unknown = Outcome(Kind.HARNESS_ERROR, f"{report.when} {report.outcome}")
        result = {
            "case": case.id,
            "outcome": str(item.stash.get(OUTCOME, unknown)),
            "row": cell.row,
            "column": cell.state_dict_type.name,
        }
        report.user_properties.append((PROPERTY, result))
        if report.failed and OUTCOME not in item.stash:
            report.sections.append(("rerun", rerun_command(item)))


def result_of(report: pytest.TestReport) -> dict[str, Any] | None:
    """Undo `annotate`, in whatever process."""
    for name, value in report.user_properties:
        if name == PROPERTY and isinstance(value, dict):
            return value
    return None


def _relative(path: Path, folder: Path) -> str:
    try:
        return str(path.relative_to(folder))
    except ValueError:
        return str(path)
