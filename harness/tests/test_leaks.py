"""What a test leaves on its rank is told with its name, and the rank is replaced."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ._inner import Inner, Session

LEAKS = """
@pytest.fixture(scope="module", autouse=True)
def wide(world):
    yield
    dist.barrier()  # all ranks take part in the end of a wider fixture

def leaks(world, rank, what):
    if world.rank == rank:
        what()

@ranks(3)
def test_leaves_nothing(world):
    threading.Thread(target=time.sleep, args=(0.05,)).start()
    subprocess.Popen(["sleep", "0.05"])
    os.environ["OF_THE_TEST"] = "1"
    random.seed(1)
    reduce()

@ranks(3)
def test_thread(world):
    leaks(world, 1, threading.Thread(target=time.sleep, args=(60,), daemon=True, name="mine").start)

@ranks(3)
def test_children(world):
    leaks(world, 2, lambda: subprocess.run(["sh", "-c", "sleep 611 & setsid setsid sleep 612 &"]))

@ranks(3)
def test_torch_settings(world):
    leaks(world, 0, lambda: torch.set_default_dtype(torch.float64))
    leaks(world, 1, lambda: torch.use_deterministic_algorithms(True))
    leaks(world, 2, lambda: torch.set_num_threads(2))

@ranks(3)
def test_process_settings(world, tmp_path):
    assert torch.get_default_dtype() == torch.float32
    def change():
        os.chdir(tmp_path)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 60)
    leaks(world, 0, change)

@ranks(3)
def test_all_ranks(world):
    torch.set_grad_enabled(False)

@ranks(3)
def test_collective(world):
    leaks(world, 0, lambda: dist.all_reduce(torch.ones(7), async_op=True))

@ranks(3)
def test_collective_of_its_own_group(world):
    group = dist.new_group([0, 2])
    leaks(world, 2, lambda: dist.all_reduce(torch.ones(5), group=group, async_op=True))

@ranks(3)
def test_collective_and_a_thread(world):
    leaks(world, 0, lambda: dist.all_reduce(torch.ones(3), async_op=True))
    leaks(world, 1, threading.Thread(target=time.sleep, args=(60,), daemon=True).start)

@ranks(3)
def test_transfer_is_no_collective(world):
    if world.rank == 0:
        dist.send(torch.ones(7), 1)
    if world.rank == 1:
        dist.recv(torch.ones(7), 0)

@ranks(3)
def test_healthy(world):
    assert world.gather(world.rank) == [0, 1, 2]
    assert not signal.getitimer(signal.ITIMER_REAL)[0]
"""


@pytest.fixture
def leaks(once: Callable[..., Session]) -> Session:
    """The session of all leaks."""
    return once(LEAKS, "-v")


def warning(session: Session, name: str) -> str:
    """Return what the summary of warnings says of a test."""
    summary = session.text.partition(" warnings summary ")[2].partition(" PASSES ")[0]
    parts = re.split(r"^test_inner\.py::(\w+)$", summary, flags=re.MULTILINE)
    return "".join(text for of, text in zip(parts[1::2], parts[2::2], strict=True) if of == name)


def test_outcomes(leaks: Session) -> None:
    leaks.result.assert_outcomes(passed=11, errors=3, warnings=10)
    for name in ("test_leaves_nothing", "test_transfer_is_no_collective", "test_healthy"):
        assert leaks.status(name) == "passed"
        assert not warning(leaks, name)


@pytest.mark.parametrize(
    ("name", "rank", "found"),
    [
        ("test_thread", 1, r"the thread 'mine' \(sleep\)"),
        (
            "test_children",
            2,
            r"the child process \d+ \(sleep 611\), the child process \d+ \(sleep 612\)",
        ),
        ("test_torch_settings", 0, r"the default dtype, torch.float64 \(was torch.float32\)"),
        ("test_torch_settings", 1, r"the deterministic mode, True \(was False\)"),
        ("test_torch_settings", 2, r"the number of torch's threads, 2 \(was 1\)"),
        (
            "test_process_settings",
            0,
            r"the working directory, \S+/test_process_settings0 \(was \S+\), the interval timer, "
            r"True \(was False\), a handler of SIGUSR1",
        ),
        ("test_all_ranks", 2, r"the grad mode, False \(was True\)"),
    ],
)
def test_leak_is_named(leaks: Session, name: str, rank: int, found: str) -> None:
    text = rf"LeakWarning: the test has left on rank {rank} of 3: {found}; the rank is replaced"
    assert re.search(text, warning(leaks, name))


def test_collective_without_a_match_is_a_failure(leaks: Session) -> None:
    leaks.match_failure(
        "test_collective",
        "_* ERROR at teardown of test_collective _*",
        "collectives without a match: "
        "rank 0 began all_reduce #* of float32[[]7[]], to which ranks 1-2 never came",
    )
    leaks.match_failure(
        "test_collective_of_its_own_group",
        "collectives without a match: "
        "rank 2 began all_reduce #1 of float32[[]5[]] in group *, to which rank 0 never came",
    )
    leaks.match_failure(
        "test_collective_and_a_thread",
        "*: rank 0 began all_reduce #* of float32[[]3[]], to which ranks 1-2 never came",
    )
    leaks.stdout.fnmatch_lines(["ERROR *::test_collective - collectives without a match: rank 0*"])


WELL_BEHAVED = """
import concurrent.futures, multiprocessing
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

@pytest.fixture(scope="module")
def background():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()

@ranks(2)
def test_wider_fixture(background):
    pass

@ranks(2)
def test_fsdp(world):
    model = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

@ranks(2)
def test_asynchronous_save(world, shared_tmp_path):
    mesh = init_device_mesh("cpu", (2,))
    model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
    dcp.async_save(model.state_dict(), checkpoint_id=shared_tmp_path / "saved").result()
    dist.all_reduce(torch.ones(1), group=mesh.get_group())

@ranks(2)
def test_workers(world):
    assert sum(1 for _ in torch.utils.data.DataLoader(range(4), num_workers=1)) == 4
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        assert list(executor.map(abs, [-1])) == [1]

@ranks(3)
def test_transfers_to_one_rank(world):
    if world.rank:
        dist.send(torch.ones(1), 0)
    else:
        for rank in (1, 2):
            dist.recv(torch.ones(1), rank)
"""


WIDER_FIXTURES = """
import concurrent.futures, unittest

@pytest.fixture(scope="session")
def threads():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        yield pool.submit

@pytest.fixture(scope="module", autouse=True)
def processes():
    pool = concurrent.futures.ProcessPoolExecutor(1)
    global submit
    submit = pool.submit
    yield
    pool.shutdown()

@pytest.fixture(scope="module")
def loader():
    return torch.utils.data.DataLoader(range(4), num_workers=1, persistent_workers=True)

@pytest.fixture(scope="module")
def late():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    sleeper = subprocess.Popen(["sleep", "614"])
    torch.set_default_dtype(torch.float64)
    os.environ["OF_LATE"] = "1"
    yield
    torch.set_default_dtype(torch.float32)
    sleeper.kill()
    sleeper.wait()
    done.set()
    thread.join()

@ranks(2)
def test_starts_threads(threads):
    assert [threads(abs, -1).result() for _ in range(4)] == [1] * 4

@ranks(2)
def test_starts_processes():
    assert submit(abs, -1).result() == 1

@ranks(2)
def test_starts_workers(loader):
    assert len(list(loader)) == 4

@ranks(2)
def test_asks_late(request):
    request.getfixturevalue("late")

@ranks(2)
def test_finds_it_as_it_was(late):
    assert torch.get_default_dtype() == torch.float64
    assert os.environ["OF_LATE"] == "1"

def setup_module():
    global of_module
    of_module = concurrent.futures.ThreadPoolExecutor(2)

def teardown_module():
    of_module.shutdown()

class TestOfAClass(unittest.TestCase):
    pytestmark = ranks(2)

    @classmethod
    def setUpClass(cls):
        cls.pool = concurrent.futures.ThreadPoolExecutor(2)

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()

    def test_starts_more(self):
        self.assertEqual(self.pool.submit(abs, -1).result(), of_module.submit(abs, -1).result())

@ranks(2)
def test_leaks(threads, late):
    global new
    new = threading.Thread(target=time.sleep, args=(60,), daemon=True, name="mine")
    new.start()
"""


def test_wider_fixtures(inner: Inner) -> None:
    session = inner.run(WIDER_FIXTURES)
    session.result.assert_outcomes(passed=7, warnings=2)
    assert session.text.count("LeakWarning: the test has left on") == 2
    assert warning(session, "test_leaks").count("the thread 'mine' (sleep)") == 2


def test_well_behaved(inner: Inner) -> None:
    inner.run(WELL_BEHAVED).result.assert_outcomes(passed=5)


REPLACED = """
FOLDER = Path(os.environ["PYTEST_DEBUG_TEMPROOT"])

@pytest.fixture(scope="module", autouse=True)
def wide(world):
    yield
    dist.barrier()  # every rank takes part in the end of a wider fixture

def note(name, world):
    (FOLDER / f"{name}{world.rank}").write_text(str(os.getpid()))

def same(name, world):
    return (FOLDER / f"{name}{world.rank}").read_text() == str(os.getpid())

@ranks(3)
def test_leaks(world):
    note("first", world)
    if world.rank == 1:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

@ranks(3)
def test_others_stay(world):
    assert world.gather(same("first", world)) == [True, False, True]
    note("second", world)
    if world.rank == 0:
        dist.all_reduce(torch.ones(7), async_op=True)

@ranks(3)
def test_only_the_one_ahead_goes(world):
    assert world.gather(same("second", world)) == [False, True, True]
    note("third", world)
    reduce()

@ranks(3)
def test_none_was_replaced(world):
    assert all(world.gather(same("third", world)))
"""


def test_only_the_leaking_rank_is_replaced(inner: Inner) -> None:
    session = inner.run(REPLACED)
    session.result.assert_outcomes(passed=4, errors=1, warnings=1)


def test_leak_is_an_error_where_warnings_are(inner: Inner) -> None:
    session = inner.run(LEAKS, "-k", "test_thread or test_all", "-W", "error", "--nproc=3")
    session.result.assert_outcomes(passed=2, errors=2, deselected=9)
    session.match_failure(
        "test_thread",
        "_* ERROR at teardown of test_thread (rank 1 of 3) _*",
        "E   shardproof.errors.LeakWarning: the test has left on rank 1 of 3: the thread 'mine' *",
    )
    assert "shardproof/_items.py" not in session.failure("test_thread")


def test_leak_may_be_ignored(inner: Inner) -> None:
    option = "ignore::shardproof.LeakWarning"
    session = inner.run(LEAKS, "-k", "test_thread or test_all", "-W", option)
    session.result.assert_outcomes(passed=2, deselected=9)


MANY = """
FOLDER = Path(os.environ["PYTEST_DEBUG_TEMPROOT"])

def size():
    status = Path("/proc/self/status").read_text()
    fields = dict(re.findall(r"^(\\w+):\\s+(\\d+)", status, re.MULTILINE))
    descriptors = len(os.listdir("/proc/self/fd"))
    return descriptors, int(fields["Threads"]), int(fields["VmRSS"])

@ranks(2)
@pytest.mark.parametrize("number", range(510))
def test_grows_nothing(world, number, tmp_path, shared_tmp_path):
    print("some output")
    group = dist.new_group([0, 1])
    value = torch.ones(1000)
    dist.all_reduce(value, group=group)
    assert reduce() == [2.0] * 4
    if number in (10, 509):
        (FOLDER / f"{world.rank}-{number}").write_text(repr(size()))

@pytest.mark.parametrize("rank", range(2))
def test_is_as_it_was(rank):
    before, after = (eval((FOLDER / f"{rank}-{number}").read_text()) for number in (10, 509))
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 20_000, f"kB of memory: {before[2]} to {after[2]}"
"""


def test_five_hundred_warm_tests_grow_nothing(inner: Inner) -> None:
    inner.write(
        conftest="""
import os, re
from pathlib import Path

sizes = {}

def pytest_runtest_logfinish(nodeid):
    status = Path("/proc/self/status").read_text()
    fields = dict(re.findall(r"^(\\w+):\\s+(\\d+)", status, re.MULTILINE))
    sizes[nodeid] = len(os.listdir("/proc/self/fd")), fields["Threads"], int(fields["VmRSS"])

def pytest_terminal_summary(terminalreporter):
    values = list(sizes.values())
    before, after = values[10], values[509]
    assert before[:2] == after[:2], (before, after)
    terminalreporter.write_line(f"controller grew by {after[2] - before[2]} kB")
"""
    )
    session = inner.run(MANY, "-q", "-p", "no:logging", timeout=300)
    session.result.assert_outcomes(passed=512)
    grown = re.search(r"controller grew by (-?\d+) kB", session.text)
    assert grown
    assert int(grown[1]) < 20_000


ORPHANS = """
FOLDER = Path(os.environ["PYTEST_DEBUG_TEMPROOT"])

@ranks(2)
def test_leaves_a_grandchild(world):
    if world.rank == 1:
        script = f"setsid setsid sh -c 'echo $$ >{FOLDER}/pid; exec sleep 613' &"
        subprocess.run(["sh", "-c", script])
        while not (FOLDER / "pid").exists() or not (FOLDER / "pid").read_text():
            time.sleep(0.01)

@ranks(2)
def test_it_is_gone():
    pid = (FOLDER / "pid").read_text().strip()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.05)
    assert False, f"process {pid} is left"
"""


def test_grandchild_of_a_passing_test_is_named_and_ends_with_its_rank(inner: Inner) -> None:
    session = inner.run(ORPHANS)
    session.result.assert_outcomes(passed=2, warnings=1)
    text = r"the test has left on rank 1 of 2: the child process \d+ \(sleep 613\); the rank is"
    assert re.search(text, warning(session, "test_leaves_a_grandchild"))
