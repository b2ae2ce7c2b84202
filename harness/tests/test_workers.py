"""The share of the GPUs that each worker of pytest-xdist sees."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from shardproof import _workers

from ._inner import Inner


@pytest.mark.parametrize(
    ("count", "slots", "visible", "shares"),
    [
        (8, 2, None, ["0,1,2,3", "4,5,6,7"]),
        (4, 4, None, ["0", "1", "2", "3"]),
        (5, 2, None, ["0,1", "2,3"]),
        (1, 2, None, ["", ""]),
        (0, 2, None, ["", ""]),
        (4, 2, "6,7,2,3", ["6,7", "2,3"]),
        (2, 2, "GPU-aa, GPU-bb", ["GPU-aa", "GPU-bb"]),
        # torch sees none from the first bad name on
        (2, 2, "3,1,-1,0", ["3", "1"]),
        (0, 2, "", ["", ""]),
    ],
)
def test_shares(count: int, slots: int, visible: str | None, shares: list[str]) -> None:
    assert [_workers.gpus_of(slot, slots, count, visible) for slot in range(slots)] == shares


def test_replaced_worker_gets_the_slot_that_is_free() -> None:
    config = SimpleNamespace(stash=pytest.Stash())

    def start(name: str) -> SimpleNamespace:
        node = SimpleNamespace(
            config=config, gateway=SimpleNamespace(id=name), workerinput={"workercount": 3}
        )
        _workers.take_slot(node)
        return node

    nodes = [start(name) for name in ("gw0", "gw1", "gw2")]
    assert [_workers.place(node) for node in nodes] == [(0, 3), (1, 3), (2, 3)]  # type: ignore[arg-type]
    _workers.free_slot(nodes[1])
    assert _workers.place(start("gw3")) == (1, 3)  # type: ignore[arg-type]
    assert _workers.place(SimpleNamespace()) == (0, 1)  # type: ignore[arg-type]


FAKE_GPUS = """
import os

def pytest_collection_modifyitems(config):
    import torch

    def count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3")
        return len([name for name in visible.split(",") if name])

    torch.cuda.device_count = count
    torch.distributed.is_nccl_available = lambda: True
"""


def test_workers_see_their_own(inner: Inner) -> None:
    inner.write(conftest=FAKE_GPUS)
    session = inner.run(
        """
VISIBLE = "CUDA_VISIBLE_DEVICES"

@ranks(1, backend="gloo")
@pytest.mark.parametrize("number", range(6))
def test_sees(world, number):
    print("sees", os.environ["PYTEST_XDIST_WORKER"], os.environ[VISIBLE])

@ranks(3, backend="nccl")
def test_too_many():
    pass
""",
        "-n2",
    )
    session.result.assert_outcomes(passed=6, skipped=1)
    seen = {line for line in session.text.splitlines() if line.startswith("sees ")}
    assert seen == {"sees gw0 0,1", "sees gw1 2,3"}
    session.stdout.fnmatch_lines(
        ["SKIPPED *nccl needs a GPU for each of 3 ranks, each of 2 workers has 2"]
    )
