"""Lines that run on ranks count: what coverage.py is told on them.

A forked rank inherits a running `Coverage`, which notices by itself that it has a new process and
takes a new data file. What it can't know is that a rank leaves by `os._exit`, past its own
handlers. The file is combined with the others by pytest-cov.
"""

from __future__ import annotations

import sys


def save() -> None:
    """On a rank: write down what has run so far, if coverage is measured and will be combined."""
    module = sys.modules.get("coverage")
    measured = module.Coverage.current() if module else None
    # Without a suffix a rank's file would take the place of the pytest process's own.
    if measured is not None and measured.get_option("run:parallel"):
        measured.save()
