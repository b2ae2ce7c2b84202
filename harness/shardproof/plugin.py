"""pytest's entry: options, marks, fixtures. Loads neither torch nor the engine until needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shardproof._clean import Watch
    from shardproof._launch import Launch
    from shardproof._world import World

# torch.cuda.is_available() at import, the commonest line in GPU tests, otherwise initialises
# CUDA in the process that ranks are forked from.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

_MARK = (
    "ranks(world_size=None, backend=None, timeout=None, isolate=False): run the test on so many "
    "ranks with a process group; isolate=True starts fresh processes for it."
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add `--nproc` and the `--ranks-*` options, and the ini options.

    From here on it is watched whether the process stays fit to be forked: conftests come next.
    """
    from shardproof._clean import WATCH, Watch
    from shardproof._settings import BACKENDS, DEFAULT_START_METHOD, START_METHODS

    pluginmanager.register(Watch(pluginmanager.getplugin("pytestconfig")), WATCH)
    group = parser.getgroup("ranks", "tests on several ranks (shardproof)")
    group.addoption(
        "--nproc",
        type=int,
        metavar="N",
        help="default world size of tests on ranks, and the most ranks that one test gets. "
        "Default: a test's own size, at most the number of GPUs, or 4 on CPUs.",
    )
    group.addoption(
        "--ranks-backend",
        choices=BACKENDS,
        help="backend of the default process group. Default auto: nccl with at least as many "
        "GPUs as ranks, else gloo.",
    )
    group.addoption(
        "--ranks-timeout",
        type=float,
        metavar="S",
        help="seconds that one test on ranks may take, from when its ranks are ready. Default 120.",
    )
    group.addoption(
        "--ranks-strict",
        action="store_true",
        help="fail a test that needs more ranks than it may have, instead of skipping it.",
    )
    group.addoption(
        "--ranks-start-method",
        choices=START_METHODS,
        help="how ranks are started: forked from a process that has collected the tests, or "
        "each as a new Python that collects them again. Default fork; spawn on macOS.",
    )
    group.addoption(
        "--ranks-log",
        metavar="DIR",
        help="keep everything that the ranks print in files of this folder, one for each rank.",
    )
    group.addoption(
        "--ranks-pdb",
        type=int,
        metavar="R",
        help="the rank that gets the terminal for --pdb, --trace and breakpoint(). Default: the "
        "first that asks; with --trace rank 0.",
    )
    parser.addini("nproc", "default of --nproc", default="")
    parser.addini("ranks_backend", "default of --ranks-backend", default="auto")
    parser.addini("ranks_timeout", "default of --ranks-timeout", default="120")
    parser.addini("ranks_strict", "default of --ranks-strict", type="bool", default=False)
    parser.addini(
        "ranks_start_method", "default of --ranks-start-method", default=DEFAULT_START_METHOD
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark and check the settings before anything is collected."""
    from shardproof._settings import Settings

    config.addinivalue_line("markers", _MARK)
    Settings.of(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the engine if a collected item needs ranks."""
    from shardproof._clean import WATCH

    manager = session.config.pluginmanager
    if manager.has_plugin("shardproof-spawned"):
        return  # this process has a controller already
    watch: Watch = manager.getplugin(WATCH)
    manager.unregister(watch)
    uses = any(
        item.get_closest_marker("ranks") or "launch" in getattr(item, "fixturenames", ())
        for item in session.items
    )
    if not uses or session.config.getoption("collectonly", False):
        watch.give_up()
    else:
        _start(session, watch)


def _start(session: pytest.Session, watch: Watch) -> None:
    from shardproof._controller import Controller
    from shardproof._settings import Settings
    from shardproof.errors import StartError

    settings = Settings.of(session.config)
    dirt = None
    if settings.start_method == "fork":
        dirt = watch.end()
    else:
        watch.give_up()
    controller = Controller(session, settings, dirt)
    session.config.pluginmanager.register(controller, "shardproof-controller")
    try:
        controller.start()
    except StartError as error:
        raise pytest.UsageError(f"ranks can't be started: {error}") from error


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse to run a marked item in the pytest process, which some other plugin has tried."""
    _refuse_outside_of_ranks(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Refuse the same once more: a fixture may have added the mark."""
    _refuse_outside_of_ranks(item)


def _refuse_outside_of_ranks(item: pytest.Item) -> None:
    marked = item.get_closest_marker("ranks") is not None
    if marked and not item.config.pluginmanager.has_plugin("shardproof-rank"):
        pytest.fail(
            "this test is marked for ranks, and would run in the pytest process, where it would "
            "prove nothing: another plugin runs it, or the mark came after collection",
            pytrace=False,
        )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With xdist: give each worker a slot, from which its share of the GPUs follows."""
    from shardproof import _workers

    _workers.take_slot(node)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """With xdist: a worker that replaces this one gets its slot."""
    from shardproof import _workers

    _workers.free_slot(node)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say what tests on ranks run on."""
    controller = config.pluginmanager.getplugin("shardproof-controller")
    return controller.describe() if controller else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Spare a session that has not used hypothesis the half second that its summary costs.

    Our dependency brings hypothesis along, and its plugin imports all of it for the summary.
    With xdist, it is the workers that know.
    """
    manager = session.config.pluginmanager
    unused = "hypothesis" not in sys.modules and not manager.has_plugin("dsession")
    if unused and manager.has_plugin("hypothesispytest"):
        manager.unregister(name="hypothesispytest")


@pytest.fixture(scope="session")
def world(request: pytest.FixtureRequest) -> World:
    """This rank's place among the ranks that run the test."""
    from shardproof._world import current_world

    if request.config.pluginmanager.getplugin("shardproof-rank") is None:
        pytest.fail("the world fixture needs @pytest.mark.ranks on the test", pytrace=False)
    return current_world()


@pytest.fixture
def shared_tmp_path(request: pytest.FixtureRequest) -> Path:
    """A temporary folder that is the same for all ranks of the test."""
    runner = request.config.pluginmanager.getplugin("shardproof-rank")
    if runner is None:
        pytest.fail("shared_tmp_path needs @pytest.mark.ranks on the test", pytrace=False)
    folder: Path = runner.shared_folder
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def launch(request: pytest.FixtureRequest) -> Launch:
    """Run a module-level function on fresh ranks: `launch(function, *args, world_size=4)`."""
    from shardproof._launch import Launch

    controller = request.config.pluginmanager.getplugin("shardproof-controller")
    if controller is None:
        pytest.fail(
            "launch starts ranks from the pytest process: request it by name in a test that "
            "isn't marked with ranks",
            pytrace=False,
        )
    return Launch(controller, request.node.nodeid)


@pytest.fixture
def _ranks_put_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a rank: put back global state, destroy groups, and tell what else the test has left."""
    __tracebackhide__ = True
    from shardproof import _group
    from shardproof._leaks import Watch
    from shardproof.errors import LeakWarning

    rank = request.config.pluginmanager.getplugin("shardproof-rank")
    groups = set(_group.all_groups())
    homes = [request.module, *(request.cls.__mro__[:-1] if request.cls else ())]
    rank.watch = watch = Watch(rank.wider, homes)
    yield
    rank.watch = None
    rank.counts = _group.counts()
    _group.destroy_since(groups)
    rank.left = watch.put_back()
    if rank.left:
        place = f"rank {rank.place.rank} of {rank.place.world_size}"
        text = f"the test has left on {place}: {', '.join(rank.left)}; the rank is replaced"
        request.node.warn(LeakWarning(text))
