"""Inner tests that fail, in every way; a healthy test follows each in the same session."""

from __future__ import annotations

import re

# Each is the source of one inner test.
FAULTS = {
    # first, so that the numbers of its collectives are known
    "hang": """
@ranks(4, timeout=1)
def test_hang(world):
    reduce()
    if world.rank == 1:
        time.sleep(60)  # never comes
    reduce(7)
""",
    "assertion": """
@ranks(4)
def test_assertion(world):
    assert world.rank != 1, "on one"
""",
    "raise": """
@ranks(4)
def test_raise(world):
    if world.rank == 1:
        raise ValueError("mine alone")
    reduce()
""",
    "kill": """
@ranks(4)
def test_kill(world):
    print(f"before on {world.rank}")
    if world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    reduce()
""",
    "exit": """
@ranks(4)
def test_exit(world):
    if world.rank == 1:
        os._exit(3)
    reduce()
""",
    "exit_last": """
@ranks(4)
def test_exit_last(world):
    if world.rank == 3:
        os._exit(0)
""",
    "skip_one": """
@ranks(4)
def test_skip_one(world):
    if world.rank == 1:
        pytest.skip("not here")
""",
    "skip_one_while_others_wait": """
@ranks(4)
def test_skip_one_while_others_wait(world):
    if world.rank == 1:
        pytest.skip("not here")
    reduce()
""",
    "alike": """
@ranks(4)
def test_alike(world):
    value = reduce()
    assert value == [3.0] * 4
""",
    "two": """
@ranks(4)
def test_two(world):
    if world.rank == 0:
        time.sleep(0.05)
        raise KeyError("second")
    if world.rank == 3:
        raise ValueError("first")
""",
    "skip_all": """
@ranks(4)
def test_skip_all(world):
    pytest.skip("nowhere")
""",
    "xfail": """
@ranks(4)
@pytest.mark.xfail(reason="known")
def test_xfail(world):
    assert world.rank != 2
""",
    "xfail_alone": """
@ranks(4)
def test_xfail_alone(world):
    if world.rank == 2:
        pytest.xfail("only here")
""",
    "xpass_strict": """
@ranks(4)
@pytest.mark.xfail(reason="known", strict=True)
def test_xpass_strict(world):
    reduce()
""",
    "setup": """
@pytest.fixture
def broken(world):
    if world.rank == 2:
        raise OSError("no file")
    reduce()

@ranks(4)
def test_setup(broken):
    pass
""",
    "teardown": """
@pytest.fixture
def leaving(world):
    yield
    if world.rank == 0:
        raise OSError("not closed")

@ranks(4)
def test_teardown(leaving):
    pass
""",
    "sys_exit": """
@ranks(4)
def test_sys_exit(world):
    if world.rank == 1:
        sys.exit(0)
    reduce()
""",
    "segv": """
@ranks(4)
def test_segv(world):
    if world.rank == 0:
        ctypes.string_at(0)
    reduce()
""",
    "stopped": """
@ranks(2, timeout=1)
def test_stopped(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    reduce()
""",
    "lock_held": """
@ranks(2, timeout=1)
def test_lock_held(world):
    if world.rank == 1:
        re.match("(a+)+b", "a" * 64)  # with the interpreter's lock
    reduce()
""",
    "loop": """
@ranks(2, timeout=1)
def test_loop(world):
    if world.rank == 1:
        while True:  # gives the interpreter's lock to other threads
            pass
    reduce()
""",
    "last_barrier": """
@ranks(3, timeout=1)
def test_last_barrier(world):
    reduce()
    if world.rank != 1:
        world.barrier()
""",
    "late": """
@ranks(2, timeout=1)
def test_late(world):
    if world.rank == 1:
        ctypes.PyDLL(None).sleep(60)  # ends with the signal that asks for the stack
    reduce()
""",
    "unprintable": """
class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

@ranks(4)
def test_unprintable(world):
    if world.rank == 1:
        raise Unprintable()
    reduce()
""",
    "unpicklable": """
class Unpicklable(Exception):
    def __init__(self):
        super().__init__("it holds a lock")
        self.lock = threading.Lock()

@ranks(4)
def test_unpicklable(world):
    if world.rank == 1:
        raise Unpicklable()
    reduce()
""",
    "without_repr": """
class WithoutRepr:
    def __repr__(self):
        raise RuntimeError("no words")

@ranks(4)
def test_without_repr(world):
    value = WithoutRepr()
    assert value == 1
""",
    "swallows": """
@ranks(4)
def test_swallows(world):
    if world.rank == 1:
        raise ValueError("mine alone")
    try:
        reduce()
    except RuntimeError:
        pass
""",
}

HEALTHY = """
@ranks({world})
def test_healthy_after_{name}(world):
    assert reduce() == [{world}.0] * 4
    assert world.gather(world.rank) == list(range({world}))
"""


def source() -> str:
    """Return the inner tests, a healthy one after each fault."""
    return "\n".join(
        body + HEALTHY.format(name=name, world=re.search(r"ranks\((\d)", body)[1])  # type: ignore[index]
        for name, body in FAULTS.items()
    )
