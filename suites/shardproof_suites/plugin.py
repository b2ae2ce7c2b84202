"""pytest's entry to the suites: their options and their report. Loads neither torch nor a case."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from shardproof_suites import _items
from shardproof_suites._matrix import Matrix


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--implementation`, with an ini option beside it."""
    group = parser.getgroup("conformance", "conformance of sharded checkpoints (shardproof)")
    group.addoption(
        "--implementation",
        metavar="WHERE:CLASS",
        help="implementation that the suites hold to the contract, as package.module:Class or "
        "path/file.py:Class, where a test file names none, as with --pyargs shardproof_suites.",
    )
    parser.addini(
        "conformance_implementation",
        "default of --implementation; a path is relative to the ini file",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect results where reports arrive, which isn't in an xdist worker."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Matrix(), "conformance-matrix")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In an xdist worker, refuse a door while it is collected: xdist loses a usage error."""
    if hasattr(metafunc.config, "workerinput") and hasattr(metafunc.function, _items.DOOR):
        try:
            _implementation(metafunc.function, metafunc.config)
        except pytest.UsageError as error:
            raise pytest.Collector.CollectError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Import each door's implementation before ranks are forked; they then have it already."""
    for item in items:
        function = getattr(item, "function", None)
        if hasattr(function, _items.DOOR):
            item.stash[_items.IMPLEMENTATION] = _implementation(function, config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put a case's outcome into its report, which also xdist carries to the end of the run."""
    report = yield
    if _items.IMPLEMENTATION in item.stash:
        _items.annotate(item, report)
    return report


def _implementation(function: object, config: pytest.Config) -> str:
    """Give a door's implementation, imported.

    Raises:
        pytest.UsageError: None is named, or the named one isn't there.
    """
    from shardproof_suites.importing import ImplementationNotFound, load_implementation

    text = getattr(function, _items.DOOR) or _configured(config)
    try:
        load_implementation(text)
    except ImplementationNotFound as error:
        raise pytest.UsageError(str(error)) from None
    return text


def _configured(config: pytest.Config) -> str:
    """Read which implementation is meant; a path is relative to where it was written.

    Raises:
        pytest.UsageError: None is named.
    """
    from shardproof_suites.importing import absolute

    if config.getoption("implementation"):
        return absolute(config.getoption("implementation"), config.invocation_params.dir)
    text = config.getini("conformance_implementation")
    if not text:
        raise pytest.UsageError(
            "no implementation named: pass --implementation package.module:Class or "
            "path/file.py:Class, or set conformance_implementation in the ini file"
        )
    return absolute(text, (config.inipath or config.rootpath / "pytest.ini").parent)
