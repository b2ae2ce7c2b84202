"""What a test changes in its process is put back after it; what a wider fixture changes, later."""

from __future__ import annotations

from ._inner import Inner

STATE = """
import numpy

def state():
    return {
        "random": hash(random.getstate()),
        "numpy": numpy.random.get_state()[1].tolist() + [numpy.random.get_state()[2]],
        "torch": torch.get_rng_state().tolist(),
        "environ": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
        "path": list(sys.path),
    }

KEPT = {}

@ranks(2)
def test_before():
    KEPT.update(state())

@ranks(2)
@pytest.mark.parametrize("fails", [False, True])
def test_changes_everything(fails, tmp_path):
    random.random(), numpy.random.rand(), torch.rand(3)
    os.environ["NEW"] = "1"
    os.environ["HOME"] = "/nowhere"
    del os.environ["GROUP_RANK"]
    assert not fails

@ranks(2)
@pytest.mark.parametrize("again", [1, 2])
def test_after(again):
    now = state()
    assert KEPT, "the ranks were replaced"
    for name in KEPT:
        if name == "environ":
            port = {"MASTER_PORT": None}
            assert {**now[name], **port} == {**KEPT[name], **port}
        else:
            assert now[name] == KEPT[name], name

"""

# What is put back and told of. It is seen by a wider fixture, whose end comes before the rank's.
TOLD = """
def settings():
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "cwd": os.getcwd(),
        "handler": signal.getsignal(signal.SIGUSR1),
        "timer": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
    }

@pytest.fixture(scope="module", autouse=True)
def compares():
    before = settings()
    yield
    assert settings() == before

@ranks(2)
def test_changes_everything(tmp_path):
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(2)
    os.chdir(tmp_path)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 60)

@ranks(2)
def test_removes_its_folder(tmp_path):
    os.chdir(tmp_path)
    tmp_path.rmdir()

@ranks(2)
def test_healthy():
    assert reduce() == [2.0] * 4
"""


def test_generators_and_environment_are_put_back(inner: Inner) -> None:
    session = inner.run(STATE)
    session.result.assert_outcomes(passed=4, failed=1)
    session.match_failure("test_changes_everything[True]", "*(ranks 0-1 of 2)*")


def test_settings_are_put_back_before_wider_fixtures_end(inner: Inner) -> None:
    inner.run(TOLD).result.assert_outcomes(passed=3, warnings=4)


WIDER = """
@pytest.fixture(scope="module", autouse=True)
def precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    os.environ["MODULE"] = "yes"
    torch.manual_seed(11)
    yield
    torch.set_default_dtype(before)
    del os.environ["MODULE"]

@ranks(2)
@pytest.mark.parametrize("again", [1, 2, 3])
def test_stays(again):
    assert torch.get_default_dtype() == torch.float64
    assert os.environ["MODULE"] == "yes"
    assert torch.initial_seed() == 11
    torch.set_default_dtype(torch.float16)
    del os.environ["MODULE"]
"""


def test_what_a_module_fixture_changes_stays_for_its_module(inner: Inner) -> None:
    inner.write(
        test_wider=WIDER,
        test_z="""
@ranks(2)
def test_ended():
    assert torch.get_default_dtype() == torch.float32
    assert "MODULE" not in os.environ
""",
    )
    inner.run(None).result.assert_outcomes(passed=4)


GROUPS = """
@pytest.fixture(scope="module")
def pair(world):
    return dist.new_group([0, 1])

@pytest.fixture(scope="module")
def mesh(world):
    return dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))

def count():
    return len(dist.distributed_c10d._world.pg_map)

def on(group):
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    return value.item()

@ranks(4)
def test_makes_groups():
    assert count() == 1
    for _ in range(3):
        dist.new_group([0, 1, 2, 3])
    dist.new_subgroups(2)
    assert count() > 1
    assert reduce() == [4.0] * 4

@ranks(4)
def test_they_are_gone():
    assert count() == 1
    assert reduce() == [4.0] * 4

@ranks(4)
def test_module_group(world, pair, mesh):
    dist.new_group([0, 1, 2, 3])
    if world.rank < 2:
        assert on(pair) == 2
    assert on(mesh["a"].get_group()) == 2

@ranks(4)
def test_module_group_survives(world, pair, mesh):
    if world.rank < 2:
        assert on(pair) == 2
    assert on(mesh["b"].get_group()) == 2

@ranks(4)
def test_destroys_the_default_group():
    dist.destroy_process_group()

@ranks(4)
def test_has_a_default_group_again():
    assert reduce() == [4.0] * 4
    assert count() == 1

@ranks(4)
def test_module_group_is_made_anew(world, pair, mesh):
    if world.rank < 2:
        assert on(pair) == 2
    assert on(mesh["a"].get_group()) == 2
"""


def test_groups_of_tests_and_of_wider_fixtures(inner: Inner) -> None:
    inner.run(GROUPS).result.assert_outcomes(passed=7)


FORMING = """
from datetime import timedelta

@ranks(2)
def test_own_group_does_not_form(world):
    dist.destroy_process_group()
    if world.rank == 0:
        store, wait = dist.HashStore(), timedelta(seconds=0.5)
        dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=wait)

@ranks(2)
def test_has_the_group_of_all_again():
    assert reduce() == [2.0] * 4
"""


def test_group_that_does_not_form_is_no_hindrance(inner: Inner) -> None:
    # torch counts it, and names the next group by that count: other than its peers do.
    session = inner.run(FORMING, timeout=40)
    session.match_failure("test_own_group_does_not_form", "*(rank 0 of 2)*")
    session.result.assert_outcomes(passed=1, failed=1)


MESHES = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

@ranks(4)
@pytest.mark.parametrize("again", [1, 2, 3])
def test_mesh(world, again):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    rows = distribute_tensor(torch.arange(8.0), mesh, [Shard(0), Shard(0)])
    assert (rows + rows).full_tensor().tolist() == list(range(0, 16, 2))
"""


def test_equal_meshes_of_later_tests_have_their_own_groups(inner: Inner) -> None:
    inner.run(MESHES).result.assert_outcomes(passed=3)
