"""Filling, poisoning and checking the pieces that ranks hold."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest
import torch
from shardproof_suites.oracle import Kind, LocalShard, Oracle, check, expected, fill_, poison_
from torch import nn

from .test_oracle_values import NAMES_2, lanes_of

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

ORACLES = [Oracle(), Oracle(seed=9, kind=Kind.BITS), Oracle(kind=Kind.TRAINING)]


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.kind.value)
@pytest.mark.parametrize("name", NAMES_2)
def test_poison_is_wrong_in_every_element(name: str, oracle: Oracle) -> None:
    tensor = torch.empty(5, 7, dtype=getattr(torch, name))
    shard = LocalShard("proj.weight", "param", tensor, (5, 7), (0, 0))
    fill_(shard, oracle)
    right = lanes_of(tensor)
    assert check(shard, oracle) is None
    poison_(shard, oracle)
    flip = 1 if name == "bool" else 2 ** (8 * tensor.element_size()) - 1
    if tensor.is_complex():
        flip = 2 ** (4 * tensor.element_size()) - 1
    assert lanes_of(tensor) == [lane ^ flip for lane in right]
    difference = check(shard, oracle)
    assert difference is not None
    assert difference.wrong == 35


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_boxes_of_all_ranks_make_the_tensor(world_size: int, dim: int) -> None:
    whole = torch.zeros(5, 7)
    start = 0
    for chunk in whole.chunk(world_size, dim):
        offset = (start, 0) if dim == 0 else (0, start)
        piece = torch.zeros_like(chunk)
        fill_(LocalShard("w", "param", piece, (5, 7), offset), Oracle())
        chunk.copy_(piece)
        start += chunk.shape[dim]
    assert check(LocalShard("w", "param", whole.reshape(-1), (5, 7), 0), Oracle()) is None


def test_flat_ranges_of_all_ranks_make_the_tensor() -> None:
    whole = torch.empty(5, 7, dtype=torch.bfloat16)
    for start, stop in ((0, 12), (12, 12), (12, 24), (24, 35)):
        fill_(LocalShard("w", "param", whole.view(-1)[start:stop], (5, 7), start), Oracle())
    assert check(LocalShard("w", "param", whole, (5, 7), (0, 0)), Oracle()) is None


@pytest.mark.parametrize(
    ("shape", "global_shape", "offset"),
    [
        ((0, 7), (5, 7), (5, 0)),
        ((0, 7), (5, 7), (6, 0)),
        ((0,), (5, 7), 35),
        ((0, 3), (0, 3), (0, 0)),
    ],
)
def test_a_piece_without_elements_is_right(
    shape: tuple[int, ...], global_shape: tuple[int, ...], offset: int | tuple[int, ...]
) -> None:
    shard = LocalShard("w", "param", torch.empty(shape), global_shape, offset)
    fill_(shard, Oracle())
    poison_(shard, Oracle())
    assert check(shard, Oracle()) is None


def test_zero_dimensions() -> None:
    shard = LocalShard("scale", "buffer", torch.empty(()), (), ())
    fill_(shard, Oracle())
    assert check(shard, Oracle()) is None
    shard.tensor.add_(1)
    difference = check(shard, Oracle())
    assert difference is not None
    assert difference.index == ()


def test_strides_are_kept() -> None:
    base = torch.zeros(7, 5)
    shard = LocalShard("w", "param", base.t(), (5, 7), (0, 0))
    fill_(shard, Oracle())
    assert check(shard, Oracle()) is None
    wanted = expected("w", "param", torch.float32, start=0, count=35, oracle=Oracle())
    assert torch.equal(base.t().reshape(-1), wanted)
    poison_(shard, Oracle())
    difference = check(shard, Oracle())
    assert difference is not None
    assert difference.wrong == 35


def test_a_stride_that_no_element_uses_is_legal() -> None:
    base = torch.zeros(300, 3)
    shard = LocalShard("w", "param", base[::97, 1][2:3], (300,), (5,))
    assert shard.tensor.is_contiguous()
    assert shard.tensor.stride() != (1,)
    fill_(shard, Oracle())
    assert check(shard, Oracle()) is None
    assert base[194, 1] == expected("w", "param", torch.float32, start=5, count=1, oracle=Oracle())


def test_neighbouring_memory_is_left_alone() -> None:
    base = torch.full((6, 9), 7.0)
    fill_(LocalShard("w", "param", base[1:5, 2:8], (4, 6), (0, 0)), Oracle())
    inside = torch.zeros(6, 9, dtype=torch.bool)
    inside[1:5, 2:8] = True
    assert torch.equal(base == 7.0, ~inside)


def test_lazy_conjugates_are_filled_and_read() -> None:
    tensor = torch.zeros(40, dtype=torch.complex64).conj()
    shard = LocalShard("w", "param", tensor, (40,), 0)
    fill_(shard, Oracle())
    assert check(shard, Oracle()) is None
    wanted = expected("w", "param", torch.complex64, start=0, count=40, oracle=Oracle())
    assert torch.equal(tensor.resolve_conj(), wanted)


def test_parameters_are_filled_outside_autograd() -> None:
    parameter = nn.Parameter(torch.zeros(3, 4))
    shard = LocalShard("w", "param", parameter, (3, 4), (0, 0))
    fill_(shard, Oracle())
    assert parameter.requires_grad
    assert parameter.grad_fn is None
    assert check(shard, Oracle()) is None


def test_misfits_are_refused_before_a_write() -> None:
    tensor = torch.zeros(5, 7)
    with pytest.raises(ValueError, match=r"param of w: piece .* ends outside shape"):
        fill_(LocalShard("w", "param", tensor, (5, 7), (1, 0)), Oracle())
    with pytest.raises(ValueError, match="2-D piece"):
        poison_(LocalShard("w", "param", tensor, (5, 7), 0), Oracle())
    assert not tensor.any()


class Distributed(torch.Tensor):
    def to_local(self) -> torch.Tensor:
        return torch.zeros(0)


def test_what_has_no_local_memory_is_refused() -> None:
    with pytest.raises(TypeError, match="param of w: found a DTensor"):
        LocalShard("w", "param", torch.zeros(3).as_subclass(Distributed), (3,), 0)
    with pytest.raises(ValueError, match="param of w: a meta tensor has no memory"):
        LocalShard("w", "param", torch.zeros(3, device="meta"), (3,), 0)


def test_a_check_needs_little_memory() -> None:
    tensor = torch.empty(3_000_000, dtype=torch.float64)
    shard = LocalShard("w", "param", tensor, (3_000_000,), 0)
    tracemalloc.start()
    fill_(shard, Oracle())
    poison_(shard, Oracle())
    fill_(shard, Oracle())
    assert check(shard, Oracle()) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2**20


def test_importing_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, shardproof_suites.oracle as oracle, shardproof_suites.goldens\n"
        "oracle.step_value('a', oracle.Oracle())\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()\n"
        "assert all(getattr(oracle, name) for name in oracle.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
