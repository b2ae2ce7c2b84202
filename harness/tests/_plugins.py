"""Sessions of pytest with other plugins, which no other session of ours loads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ._inner import Inner, Session

FOLDER = Path(__file__).resolve().parents[2] / ".venv" / "plugins"
_OURS = ("shardproof", "shardproof_suites")


class Plugged:
    """Runs inner sessions that have our plugin and the named ones, and no other.

    Args:
        inner: What runs the sessions.
        monkeypatch: Sets their variables.
    """

    def __init__(self, inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
        if not FOLDER.is_dir():
            pytest.skip(f"make venv installs the plugins to {FOLDER.parent.name}/{FOLDER.name}")
        self.path = inner.path
        self.write = inner.write
        self._inner = inner
        path = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(self, plugins: str, source: str | None, *args: str, timeout: float = 90) -> Session:
        """Run a session with plugins, named by their entry points with blanks between."""
        named = [word for name in (*_OURS, *plugins.split()) for word in ("-p", name)]
        return self._inner.run(source, *named, *args, timeout=timeout)
