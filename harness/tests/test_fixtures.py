"""Fixtures of every scope live on each rank, once per scope there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ._inner import Inner, Session

# Two modules on the same ranks with ordinary tests between them; each event is a line of a file.
EVENTS = """
import os
import pytest

def note(event):
    who = os.environ["RANK"] if os.environ.get("RANK") else "pytest"
    with open(os.environ["EVENTS"] + who, "a") as file:
        file.write(f"{event} {os.getpid()}\\n")

def scoped(scope):
    @pytest.fixture(scope=scope, name=scope + "_one")
    def fixture():
        note(f"+{scope}")
        yield scope
        note(f"-{scope}")
    return fixture

for scope in ("session", "package", "module", "class", "function"):
    globals()[scope] = scoped(scope)
"""

FIRST = """
from conftest import note

@ranks(2)
class TestA:
    def test_a1(self, session_one, package_one, module_one, class_one, function_one):
        note("a1")

    def test_a2(self, session_one, module_one, class_one, function_one):
        note("a2")

def test_ordinary_1(session_one, module_one, function_one):
    note("o1")

@ranks(2)
def test_b(module_one, function_one):
    note("b")

def test_ordinary_2(module_one):
    note("o2")
"""

SECOND = """
from conftest import note

def test_ordinary_3(session_one, module_one):
    note("o3")

@ranks(2)
def test_c(module_one):
    note("c")

@ranks(2, isolate=True)
def test_d(session_one, module_one):
    note("d")

def test_ordinary_4(function_one):
    note("o4")
"""


def test_scopes_across_modules_and_ordinary_tests(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTS", str(inner.path / "events."))
    monkeypatch.delenv("RANK", raising=False)
    inner.write(conftest=EVENTS, test_first=FIRST, test_second=SECOND)
    session = inner.run(None)
    session.result.assert_outcomes(passed=9)

    def events(who: str) -> tuple[list[str], list[int]]:
        """Return a process's events, and the place of each change of process."""
        pairs = [line.split() for line in (inner.path / f"events.{who}").read_text().splitlines()]
        pids = [pid for _, pid in pairs]
        return [event for event, _ in pairs], [
            i for i in range(1, len(pids)) if pids[i] != pids[i - 1]
        ]

    a1 = "+session +package +module +class +function a1 -function"
    a2 = "+function a2 -function -class"
    b = "+function b -function -module"
    c = "+module c -module -package -session"
    fresh = "+session +module d -module -session"
    for rank in "01":
        got, changes = events(rank)
        assert " ".join(got) == f"{a1} {a2} {b} {c} {fresh}"
        assert changes == [len(got) - 5]
    ordinary = (
        "+session +module +function o1 -function o2 -module "
        "+module o3 -module -session +function o4 -function"
    )
    got, changes = events("pytest")
    assert sorted(got) == sorted(ordinary.split())
    assert not changes
    assert " ".join(got).startswith("+session +module +function o1 -function o2 -module +module o3")


SHARED = """
@pytest.fixture(scope="session")
def rank_of(world):
    return dist.get_rank()

@pytest.fixture(scope="module")
def model(world):
    torch.manual_seed(7)
    return torch.nn.Linear(4, 4)

@ranks(2)
def test_world_in_wider_fixtures(rank_of, model, world):
    assert rank_of == world.rank
    assert len(set(world.gather(id(model)))) >= 1
    model.seen = True

@ranks(2)
def test_object_is_kept(model):
    assert model.seen

@ranks(2)
def test_tmp_path(world, tmp_path, tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    assert base.name == f"rank{world.rank}" and base in tmp_path.parents
    folders = world.gather((tmp_path, base.parent))
    assert folders[0][0] != folders[1][0]
    assert folders[0][1] == folders[1][1] == Path(BASE)

@ranks(2)
def test_shared(world, shared_tmp_path):
    assert len(set(world.gather(shared_tmp_path))) == 1
    assert Path(BASE) in shared_tmp_path.parents
    assert list(shared_tmp_path.iterdir()) == []
    world.barrier()
    (shared_tmp_path / str(world.rank)).touch()
    world.barrier()
    assert len(list(shared_tmp_path.iterdir())) == 2

@ranks(2)
def test_shared_is_new_for_each_test(shared_tmp_path, world):
    assert list(shared_tmp_path.iterdir()) == []

def test_tmp_path_of_an_ordinary_test(tmp_path, tmp_path_factory):
    assert tmp_path_factory.getbasetemp() == Path(BASE)

@ranks(2)
def test_capsys(capsys, world):
    print("one", world.rank)
    assert capsys.readouterr().out == f"one {world.rank}\\n"

@ranks(2)
def test_capfd(capfd, world):
    os.system(f"echo two {world.rank}")
    assert capfd.readouterr().out == f"two {world.rank}\\n"

@ranks(2)
def test_caplog(caplog, world):
    import logging
    logging.getLogger("mine").warning("rank %d", world.rank)
    assert [record.getMessage() for record in caplog.records] == [f"rank {world.rank}"]

@ranks(2)
def test_monkeypatch(monkeypatch, world):
    monkeypatch.setenv("MINE", str(world.rank))
    monkeypatch.setattr(os, "sep", "!")

@ranks(2)
def test_monkeypatch_is_undone():
    assert "MINE" not in os.environ and os.sep == "/"

@ranks(2)
@pytest.mark.parametrize(("left", "right"), [(1, 2), (3, 4)], ids=["small", "large"])
def test_parametrize(left, right, world):
    assert world.gather((left, right)) == [(left, right)] * 2
    assert right == left + 1

@pytest.fixture(params=["x", lambda: 5], ids=["text", "closure"])
def param(request):
    return request.param

@ranks(2)
def test_fixture_params(param):
    assert param == "x" or param() == 5

@pytest.fixture(autouse=True)
def automatic(request):
    request.node.automatic = True

@ranks(2)
def test_autouse(request):
    assert request.node.automatic

@ranks(2)
@pytest.mark.usefixtures("model")
def test_recwarn(recwarn, request):
    warnings.warn("mine", UserWarning)
    assert len(recwarn) == 1

def test_stdin_is_left_alone():
    assert os.getpid() == int(os.environ["CONTROLLER"])
    assert not dist.is_initialized()
    assert "RANK" not in os.environ
"""


def test_pytests_own_fixtures(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    base = inner.path / "runpytest-0"
    inner.write(conftest="import os\nos.environ['CONTROLLER'] = str(os.getpid())\n")
    session = inner.run(f"BASE = {str(base)!r}\n" + SHARED)
    session.result.assert_outcomes(passed=18)


AFTER_FAILURE = """
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

EVENTS = []

@pytest.fixture(scope="session")
def whole(world):
    EVENTS.append("+session")
    yield
    EVENTS.append("-session")

@pytest.fixture(scope="module")
def fsdp(whole):
    EVENTS.append("+module")
    torch.manual_seed(0)
    yield FullyShardedDataParallel(torch.nn.Linear(8, 8), device_id=torch.device("cpu"))
    EVENTS.append("-module")

@pytest.fixture(scope="module")
def fsdp2(world):
    model = torch.nn.Linear(8, 8)
    fully_shard(model)
    return model

def step(model):
    model(torch.ones(2, 8)).sum().backward()

@ranks(2)
def test_step(fsdp, fsdp2):
    step(fsdp)
    step(fsdp2)

@ranks(2)
def test_fails(fsdp, fsdp2, world):
    if world.rank == 1:
        raise ValueError("in between")
    step(fsdp)

@ranks(2)
def test_step_again(fsdp, fsdp2):
    assert EVENTS == ["+session", "+module", "-module", "-session", "+session", "+module"]
    step(fsdp)
    step(fsdp2)

@ranks(2)
def test_dies(fsdp, fsdp2, world):
    if world.rank == 1:
        os._exit(1)
    step(fsdp2)

@ranks(2)
def test_step_after_death(fsdp, fsdp2, world):
    assert EVENTS[-2:] == ["+session", "+module"]
    assert world.gather(len(EVENTS)) == [10, 2]
    step(fsdp)
    step(fsdp2)

@ranks(2)
def test_kept(fsdp, world):
    assert world.gather(len(EVENTS)) == [10, 2]
"""


def test_wider_fixtures_are_set_up_again_after_a_failure(inner: Inner) -> None:
    session = inner.run(AFTER_FAILURE)
    session.result.assert_outcomes(passed=4, failed=2)
    session.match_failure("test_fails", "*test_fails (rank 1 of 2)*")
    session.match_failure("test_dies", "*test_dies (rank 1 of 2)*")


ENDING = """
@pytest.fixture(scope="module")
def collective(world):
    yield
    assert reduce() == [2.0] * 4

@pytest.fixture(scope="session")
def failing(world):
    yield
    if world.rank == 1:
        raise OSError("session not closed")

@ranks(2)
def test_one(collective, failing):
    pass

def test_ordinary():
    pass
"""


def test_error_while_the_last_fixtures_end_is_told(once: Callable[..., Session]) -> None:
    # The module's and session's fixtures end with the last test that the ranks run.
    session = once(ENDING)
    session.match_failure(
        "test_one", "*ERROR at teardown of test_one (rank 1 of 2)*", "E*OSError: session not closed"
    )
    assert session.ret == pytest.ExitCode.TESTS_FAILED
