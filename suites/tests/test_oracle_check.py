"""What a check reports, and that it names an origin only where that is certain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from shardproof_suites.oracle import (
    Difference,
    Entry,
    Kind,
    LocalShard,
    Oracle,
    OriginKind,
    check,
    expected,
    fill_,
    poison_,
)

ORACLE = Oracle()
CATALOGUE = tuple(
    Entry(fqn, role, shape, dtype)
    for dtype in (torch.float32, torch.bfloat16)
    for role in ("param", "exp_avg", "exp_avg_sq")
    for fqn, shape in (("proj.weight", (5, 7)), ("proj.bias", (7,)), ("lin.weight", (7, 7)))
)


def make(
    dtype: torch.dtype = torch.float32, role: str = "param", oracle: Oracle = ORACLE
) -> LocalShard:
    """Fill a whole lin.weight."""
    shard = LocalShard("lin.weight", role, torch.empty(7, 7, dtype=dtype), (7, 7), (0, 0))
    fill_(shard, oracle)
    return shard


def values(fqn: str, start: int, count: int, dtype: torch.dtype, role: str) -> torch.Tensor:
    return expected(fqn, role, dtype, start=start, count=count, oracle=ORACLE)


def found(shard: LocalShard, **options: object) -> Difference:
    difference = check(shard, ORACLE, **options)  # type: ignore[arg-type]
    assert difference is not None
    return difference


def test_one_wrong_element_is_described() -> None:
    tensor = torch.empty(2, 7)
    shard = LocalShard("proj.weight", "exp_avg", tensor, (5, 7), (3, 0))
    fill_(shard, ORACLE)
    right = tensor[1, 2].item()
    tensor[1, 2] = 0.5
    tensor[1, 6] = 0.25
    difference = found(shard)
    assert (difference.fqn, difference.role) == ("proj.weight", "exp_avg")
    assert difference.wrong == 2
    assert difference.index == (4, 2)
    assert difference.expected is not None
    assert float(difference.expected.split()[0]) == pytest.approx(right, rel=1e-8)
    assert difference.found == "0.5 (0x3f000000)"
    assert difference.origin is None
    assert str(difference).splitlines() == [
        "exp_avg of proj.weight: 2 of 14 elements are wrong (torch.float32)",
        "  first at global index [4,2]",
        f"  expected {difference.expected}",
        "  found    0.5 (0x3f000000)",
    ]


def test_the_first_wrong_index_of_a_flat_range_is_global() -> None:
    tensor = torch.empty(12)
    shard = LocalShard("proj.weight", "param", tensor, (5, 7), 20)
    fill_(shard, ORACLE)
    tensor[3] = 9
    assert found(shard).index == (3, 2)


def test_wrong_elements_are_counted_across_blocks() -> None:
    tensor = torch.empty(100_000, dtype=torch.complex64)
    shard = LocalShard("w", "param", tensor, (100_000,), 0)
    fill_(shard, ORACLE)
    tensor[40_000::10_000] += 1
    tensor[99_999] += 1j
    difference = found(shard)
    assert difference.wrong == 7
    assert difference.index == (40_000,)


@pytest.mark.parametrize("change", [lambda bits: bits ^ 1, lambda bits: bits ^ -(2**31)])
def test_nan_payloads_and_signed_zeros_count(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    oracle = Oracle(kind=Kind.BITS)
    tensor = torch.empty(100_000)
    shard = LocalShard("w", "param", tensor, (100_000,), 0)
    fill_(shard, oracle)
    place = int(tensor.isnan().nonzero()[0])
    tensor.view(torch.int32)[place] = change(tensor.view(torch.int32)[place])
    difference = check(shard, oracle)
    assert difference is not None
    assert (difference.wrong, difference.index) == (1, (place,))


def test_a_bool_byte_that_is_neither_is_wrong() -> None:
    tensor = torch.empty(30, dtype=torch.bool)
    shard = LocalShard("mask", "buffer", tensor, (30,), (0,))
    fill_(shard, ORACLE)
    tensor.view(torch.uint8)[int(tensor.nonzero()[0])] = 255
    assert found(shard).wrong == 1


def test_dtype_comes_before_shape_and_bits() -> None:
    shard = LocalShard("w", "param", torch.zeros(3), (5, 7), (0, 0), torch.bfloat16, (5, 7))
    difference = found(shard)
    assert (difference.expected_dtype, difference.found_dtype) == (torch.bfloat16, torch.float32)
    assert (difference.expected_shape, difference.found_shape) == ((5, 7), (3,))
    assert str(difference) == "param of w: dtype is torch.float32, expected torch.bfloat16"


def test_dtype_alone_is_a_difference() -> None:
    shard = LocalShard("w", "param", torch.zeros(5, 7), (5, 7), (0, 0), torch.bfloat16, (5, 7))
    assert str(found(shard)) == "param of w: dtype is torch.float32, expected torch.bfloat16"


def test_shape_comes_before_bits() -> None:
    shard = LocalShard("w", "param", torch.zeros(3, 7), (5, 7), (0, 0), size=(2, 7))
    difference = found(shard)
    assert difference.wrong == 0
    assert str(difference) == "param of w: local shape is (3, 7), expected (2, 7)"


def test_a_piece_that_does_not_fit_is_a_difference() -> None:
    difference = found(LocalShard("w", "param", torch.zeros(7, 5), (5, 7), (0, 0)))
    assert str(difference) == "param of w: piece (7, 5) at (0, 0) ends outside shape (5, 7)"


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool]
)
def test_untouched_memory_is_named(dtype: torch.dtype) -> None:
    shard = make(dtype)
    right = shard.tensor.clone()
    poison_(shard, ORACLE)
    shard.tensor[0] = right[0]
    origin = found(shard).origin
    assert origin is not None
    assert (origin.kind, origin.elements) == (OriginKind.UNTOUCHED, 42)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_zeros_are_named(dtype: torch.dtype) -> None:
    shard = make(dtype)
    shard.tensor[3:] = 0
    origin = found(shard).origin
    assert origin is not None
    assert origin.kind is OriginKind.ZEROS
    assert str(origin).startswith("zeros (certain from ")


@pytest.mark.parametrize(
    ("dtype", "narrow"),
    [
        (torch.float64, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.float16, torch.bfloat16),
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.complex128, torch.complex64),
        (torch.int64, torch.int32),
    ],
)
def test_a_cast_is_named(dtype: torch.dtype, narrow: torch.dtype) -> None:
    shard = make(dtype)
    shard.tensor.copy_(shard.tensor.to(narrow))
    origin = found(shard).origin
    assert origin is not None
    assert origin.kind is OriginKind.CAST
    assert f"rounded through {narrow}" in str(origin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("fqn", "role", "text"),
    [
        ("proj.weight", "param", "holds proj.weight[2,0]"),
        ("lin.weight", "exp_avg", "holds exp_avg of lin.weight[2,0]"),
        ("proj.weight", "exp_avg_sq", "holds exp_avg_sq of proj.weight[2,0]"),
    ],
)
def test_another_tensor_is_named(dtype: torch.dtype, fqn: str, role: str, text: str) -> None:
    shard = make(dtype)
    shard.tensor[1:] = values(fqn, 14, 7, dtype, role)
    origin = found(shard, catalogue=CATALOGUE).origin
    assert origin is not None
    assert (origin.kind, origin.text) == (OriginKind.OTHER_TENSOR, text)


def test_a_swapped_row_is_named_without_a_catalogue() -> None:
    shard = make(torch.bfloat16)
    shard.tensor[[2, 5]] = shard.tensor[[5, 2]]
    difference = found(shard)
    assert difference.wrong == 14
    assert difference.origin is not None
    assert difference.origin.kind is OriginKind.MOVED
    assert difference.origin.text == "holds lin.weight[5,0]"


def test_a_column_block_is_named() -> None:
    tensor = torch.empty(7, 4)
    shard = LocalShard("lin.weight", "param", tensor, (7, 7), (0, 3))
    fill_(LocalShard("lin.weight", "param", tensor, (7, 7), (0, 0)), ORACLE)
    origin = found(shard, catalogue=CATALOGUE).origin
    assert origin is not None
    assert origin.text == "holds lin.weight[0,0]"


def test_a_complex_origin_starts_at_an_element() -> None:
    entry = Entry("freqs", "buffer", (20,), torch.complex64)
    shard = make(torch.complex64)
    shard.tensor[4:5] = values("freqs", 9, 7, torch.complex64, "buffer")
    origin = found(shard, catalogue=(entry,)).origin
    assert origin is not None
    assert origin.text == "holds buffer of freqs[9]"


def test_another_seed_is_named() -> None:
    shard = make(torch.float32, oracle=dataclasses.replace(ORACLE, seed=4))
    assert found(shard, catalogue=CATALOGUE).origin is None
    origin = found(shard, catalogue=CATALOGUE, other_seeds=(3, 4)).origin
    assert origin is not None
    assert origin.kind is OriginKind.OTHER_SEED
    assert origin.text == "holds lin.weight[0,0] of seed 4"


def test_one_narrow_element_proves_nothing() -> None:
    shard = make(torch.bfloat16)
    shard.tensor[1, 1] = values("proj.weight", 0, 1, torch.bfloat16, "param")[0]
    assert found(shard, catalogue=CATALOGUE).origin is None
    shard.tensor[1, 1] = 0
    assert found(shard, catalogue=CATALOGUE).origin is None


def test_the_run_needed_grows_with_the_candidates() -> None:
    shard = make(torch.float32)
    shard.tensor[1, 1] = values("proj.bias", 3, 1, torch.float32, "param")[0]
    few = (Entry("proj.bias", "param", (7,), torch.float32),)
    large = (*few, Entry("huge", "param", (1000, 1000), torch.float32))
    assert found(shard, catalogue=few).origin is None
    shard.tensor[1, 1:3] = values("proj.bias", 3, 2, torch.float32, "param")
    origin = found(shard, catalogue=large).origin
    assert origin is not None
    assert (origin.text, origin.elements) == ("holds proj.bias[3]", 2)


def test_a_hit_at_the_edge_of_a_searched_piece_is_found() -> None:
    total = 2**18 + 50
    large = Entry("huge", "param", (total,), torch.bfloat16)
    shard = make(torch.bfloat16)
    shard.tensor[0] = values("huge", 2**18 - 3, 7, torch.bfloat16, "param")
    origin = found(shard, catalogue=(large,)).origin
    assert origin is not None
    assert origin.text == f"holds huge[{2**18 - 3}]"


def test_noise_has_no_origin() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        shard = make(torch.bfloat16)
        noise = torch.randint(-128, 128, (7, 7), generator=generator)
        shard.tensor.copy_(noise / 128)
        assert found(shard, catalogue=CATALOGUE).origin is None
