"""What only a GPU can show, and that without one it is skipped with the reason.

`benchmarks/gpu_check.sh` runs this file on a machine that has one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ._inner import Inner


def _gpus() -> int:
    """Count the GPUs in another process: other tests want none of torch in this one."""
    if not Path("/dev/nvidiactl").exists():
        return 0
    code = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


GPUS = _gpus()
needs_gpu = pytest.mark.skipif(GPUS < 1, reason="needs a GPU")
needs_two = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")

BOTH = "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize("backend", ["nccl", BOTH])
def test_backend_of_gpus_is_skipped_where_there_are_too_few(inner: Inner, backend: str) -> None:
    source = f"@ranks({GPUS + 1}, backend={backend!r})\ndef test_it(world): reduce()"
    session = inner.run(source, f"--nproc={GPUS + 1}")
    reason = f"{backend} needs a GPU for each of {GPUS + 1} ranks, this machine has {GPUS}"
    session.stdout.fnmatch_lines([f"SKIPPED *::test_it - Skipped: {reason}"])


def test_backend_of_both_is_an_option(inner: Inner) -> None:
    source = f"@ranks({GPUS + 1})\ndef test_it(world): reduce()"
    session = inner.run(source, f"--ranks-backend={BOTH}", f"--nproc={GPUS + 1}")
    session.stdout.fnmatch_lines([f"SKIPPED *::test_it - Skipped: {BOTH} needs a GPU for each *"])


STUCK = """
import time
import torch.distributed as dist
from shardproof import _group

def stuck():
    time.sleep(60)

_group.needs_gpus = lambda backend: True
_group._LEAVE = 0.2
dist.distributed_c10d._abort_process_group = stuck
dist.destroy_process_group = stuck
"""


def test_gpu_that_lets_no_rank_leave_hides_no_failure(inner: Inner) -> None:
    inner.write(conftest=STUCK)
    session = inner.run(
        """
@ranks(2)
def test_fails(world):
    if world.rank == 1:
        raise ValueError("mine alone")
    reduce()

@ranks(2)
def test_after(world):
    assert world.gather(world.rank) == [0, 1]
""",
        timeout=60,
    )
    session.result.assert_outcomes(passed=1, failed=1)
    session.match_failure(
        "test_fails",
        "*test_fails (rank 1 of 2)*",
        "E*ValueError: mine alone",
        "2 ranks did not form a process group",
        "The next test starts ranks anew.",
    )


@needs_gpu
@pytest.mark.parametrize("backend", ["nccl", "auto", BOTH])
def test_each_rank_has_a_gpu_of_its_own(inner: Inner, backend: str) -> None:
    session = inner.run(
        f"""
@ranks({GPUS}, backend={backend!r})
def test_it(world):
    assert world.backend == {"nccl" if backend == "auto" else backend!r}
    assert world.device == torch.device("cuda", world.rank)
    assert torch.cuda.current_device() == world.rank
    value = torch.ones(4, device=world.device)
    dist.all_reduce(value)
    assert value.tolist() == [{GPUS}.0] * 4
    if "gloo" in world.backend:
        assert reduce() == [{GPUS}.0] * 4
    assert world.gather(world.rank) == list(range({GPUS}))
"""
    )
    session.result.assert_outcomes(passed=1)


@needs_gpu
def test_gpus_are_those_that_the_caller_sees(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(GPUS)))
    last = seen.rpartition(",")[2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", last)
    session = inner.run(
        f"""
@ranks
def test_one(world):
    assert (world.world_size, torch.cuda.device_count()) == (1, 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == {last!r}
    assert world.device == torch.device("cuda", 0)

@ranks(2, backend="nccl")
def test_two(world):
    reduce()
"""
    )
    session.result.assert_outcomes(passed=1, skipped=1)
    session.stdout.fnmatch_lines(["SKIPPED *::test_two - *each of 2 ranks, this machine has 1"])


@needs_gpu
def test_two_ranks_share_a_gpu_over_gloo(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2, backend="gloo")
def test_it(world):
    value = torch.full((4,), world.rank + 1.0, device="cuda:0")
    dist.all_reduce(value)
    assert value.tolist() == [3.0] * 4
""",
        "--nproc=2",
    )
    session.result.assert_outcomes(passed=1)


@needs_gpu
def test_process_that_ranks_are_forked_from_has_no_cuda_context(inner: Inner) -> None:
    # /dev/nvidia-uvm is opened with the first context; asking for the number of GPUs opens others.
    session = inner.run(
        """
def opened(pid):
    return {os.path.realpath(file) for file in Path(f"/proc/{pid}/fd").iterdir()}

torch.cuda.is_available()  # as test files do when they are imported

@ranks(1, backend="nccl")
def test_it(world):
    torch.ones(1, device=world.device)
    assert "/dev/nvidia-uvm" in opened(os.getpid())
    assert "/dev/nvidia-uvm" not in opened(os.getppid())
"""
    )
    session.result.assert_outcomes(passed=1)


@needs_gpu
def test_memory_is_handed_back_after_each_test(inner: Inner) -> None:
    session = inner.run(
        """
def take(world):
    return torch.empty(1 << 30, dtype=torch.uint8, device=world.device)

@ranks(1, backend="nccl")
def test_passes(world):
    mine = take(world)
    mine.me = mine  # in a cycle, which only the collector frees

@ranks(1, backend="nccl")
def test_after_it(world):
    assert torch.cuda.memory_reserved() < 1 << 29

@ranks(1, backend="nccl")
def test_fails(world):
    mine = take(world)
    assert mine is None, "on purpose"

@ranks(1, backend="nccl")
def test_after_the_failure(world):
    assert torch.cuda.memory_reserved() < 1 << 29
"""
    )
    session.result.assert_outcomes(passed=3, failed=1)
    session.match_failure("test_fails", "*AssertionError: on purpose")


@needs_gpu
def test_hang_of_a_gpu_is_told_from_the_flight_recorder(inner: Inner) -> None:
    session = inner.run(
        f"""
@ranks({GPUS}, backend="nccl", timeout=5)
def test_hang(world):
    torch.cuda._sleep(1 << 45)  # hours; what is enqueued after it does not begin
    dist.all_reduce(torch.ones(7, device=world.device))
    torch.cuda.synchronize()

@ranks({GPUS}, backend="nccl")
def test_after(world):
    assert world.gather(world.rank) == list(range({GPUS}))
"""
    )
    session.result.assert_outcomes(passed=1, failed=1)
    who = "rank 0 waits" if GPUS == 1 else f"ranks 0-{GPUS - 1} wait"
    session.match_failure(
        "test_hang",
        "the test did not end within 5 s on *",
        f"  {who} in all_reduce #* of float32[[]7[]]",
        '  File "*test_inner.py", line * in test_hang',
    )


@needs_two
def test_rank_that_never_came_is_told_with_nccl(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2, backend="nccl", timeout=5)
def test_hang(world):
    if world.rank == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(7, device=world.device))
    torch.cuda.synchronize()
"""
    )
    session.match_failure(
        "test_hang",
        "the test did not end within 5 s on ranks 0-1",
        "  rank 0 waits in all_reduce #* of float32[[]7[]]",
        "  rank 1 never came to #*",
    )


@needs_two
def test_failure_ends_the_waiting_of_peers_with_nccl(inner: Inner) -> None:
    session = inner.run(
        """
@ranks(2, backend="nccl", timeout=60)
def test_fails(world):
    if world.rank == 1:
        raise ValueError("mine alone")
    dist.all_reduce(torch.ones(4, device=world.device))
    torch.cuda.synchronize()

@ranks(2, backend="nccl")
def test_after(world):
    assert world.gather(world.rank) == [0, 1]
""",
        "--durations=0",
        "-vv",
    )
    session.result.assert_outcomes(passed=1, failed=1)
    session.match_failure(
        "test_fails",
        "*test_fails (rank 1 of 2)*",
        "E*ValueError: mine alone",
        "-* followed from it -*",
        "rank 0: *",
    )
    assert "did not end within" not in session.failure("test_fails")
