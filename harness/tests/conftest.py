"""What the tests of the engine share: sessions of pytest inside of a test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from ._inner import Inner, Session
from ._plugins import Plugged

# With one of these pytest cuts no line of its summary, and the tests compare what a reader sees.
for _name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(_name, None)
# A job in the background of a shell ignores these, and so do the sessions that tests send them to.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.fixture
def inner(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Inner:
    """Run sessions of pytest in a new folder; each is checked to leave nothing behind.

    Their ranks start as this session's option `--ranks-start-method` says.
    """
    method = request.config.getoption("ranks_start_method") or "fork"
    return Inner(pytester, monkeypatch, method)


@pytest.fixture
def forks(request: pytest.FixtureRequest) -> None:
    """Skip a test of what only a fork gives, where ranks are spawned."""
    if request.config.getoption("ranks_start_method") == "spawn":
        pytest.skip("is about ranks that are forked")


@pytest.fixture
def plugged(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> Plugged:
    """Run such sessions with other plugins."""
    return Plugged(inner, monkeypatch)


@pytest.fixture(scope="module")
def _sessions() -> dict[str, Session]:
    return {}


@pytest.fixture
def once(request: pytest.FixtureRequest, _sessions: dict[str, Session]) -> Callable[..., Session]:
    """Run a session that the tests of a module look at together, when the first one asks."""

    def run(source: str, *args: str) -> Session:
        key = repr((source, args))
        if key not in _sessions:
            _sessions[key] = request.getfixturevalue("inner").run(source, *args)
        return _sessions[key]

    return run
