"""Every value agrees with an independent reading of RECIPE.md, in every dtype, role and place."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shardproof_suites.oracle import (
    Kind,
    Oracle,
    Recipe,
    expected,
    expected_box,
    fingerprint,
    step_value,
)

from . import _slow_recipe

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

NAMES_1 = ["float64", "float32", "float16", "bfloat16"]
NAMES_1 += ["int64", "int32", "int16", "int8", "uint8", "bool"]
NAMES_2 = [*NAMES_1, "uint16", "uint32", "uint64", "complex32", "complex64", "complex128"]
NAMES_2 += ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
if hasattr(torch, "float8_e8m0fnu"):
    NAMES_2.append("float8_e8m0fnu")
CASES = [
    *[(name, Recipe.ONE, Kind.VALUE) for name in NAMES_1],
    *[(name, Recipe.TWO, kind) for kind in Kind for name in NAMES_2],
]
ROLES = ["param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg", "acc_delta"]


def lanes_of(tensor: torch.Tensor) -> list[int]:
    """Give a tensor's bits, one unsigned integer a lane."""
    width = tensor.element_size() // (2 if tensor.is_complex() else 1)
    raw = bytes(tensor.reshape(-1).contiguous().view(torch.uint8).tolist())
    return [
        int.from_bytes(raw[start : start + width], "little") for start in range(0, len(raw), width)
    ]


def slow_lanes(
    fqn: str, role: str, name: str, indices: range | list[int], oracle: Oracle
) -> list[int]:
    return [
        lane
        for index in indices
        for lane in _slow_recipe.lanes(
            oracle.seed, role, fqn, name, index, oracle.recipe.value, oracle.kind.value
        )
    ]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("name", "recipe", "kind"), CASES)
def test_value_follows_the_recipe(name: str, recipe: Recipe, kind: Kind, role: str) -> None:
    oracle = Oracle(seed=5, recipe=recipe, kind=kind)
    found = expected("a.b", role, getattr(torch, name), start=3, count=700, oracle=oracle)
    assert found.dtype is getattr(torch, name)
    assert lanes_of(found) == slow_lanes("a.b", role, name, range(3, 703), oracle)


@settings(deadline=None, max_examples=60)
@given(
    case=st.sampled_from(CASES),
    role=st.sampled_from(ROLES),
    fqn=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    seed=st.integers(-(2**70), 2**70),
    start=st.integers(0, 2**61),
    count=st.integers(0, 40),
)
def test_any_range_follows_the_recipe(
    case: tuple[str, Recipe, Kind], role: str, fqn: str, seed: int, start: int, count: int
) -> None:
    name, recipe, kind = case
    oracle = Oracle(seed=seed, recipe=recipe, kind=kind)
    found = expected(fqn, role, getattr(torch, name), start=start, count=count, oracle=oracle)
    assert lanes_of(found) == slow_lanes(fqn, role, name, range(start, start + count), oracle)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64", "bool"])
def test_blocks_join_without_a_seam(name: str) -> None:
    count, step = 200_003, 97
    oracle = Oracle()
    found = expected("w", "param", getattr(torch, name), start=11, count=count, oracle=oracle)
    indices = list(range(11, 11 + count, step))
    assert lanes_of(found[::step]) == slow_lanes("w", "param", name, indices, oracle)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=4)))
    offset = tuple(draw(st.integers(0, length)) for length in shape)
    size = tuple(
        draw(st.integers(0, length - start)) for length, start in zip(shape, offset, strict=True)
    )
    return shape, offset, size


@settings(deadline=None, max_examples=150)
@given(box=boxes(), name=st.sampled_from(["float32", "bfloat16", "complex64", "int64", "bool"]))
def test_box_is_a_slice_of_the_flat_tensor(
    box: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], name: str
) -> None:
    shape, offset, size = box
    dtype, oracle = getattr(torch, name), Oracle()
    whole = expected("w", "param", dtype, start=0, count=math.prod(shape), oracle=oracle)
    cut = tuple(slice(start, start + many) for start, many in zip(offset, size, strict=True))
    found = expected_box(
        "w", "param", dtype, global_shape=shape, offset=offset, size=size, oracle=oracle
    )
    assert tuple(found.shape) == size
    assert torch.equal(found, whole.reshape(shape)[cut])


@pytest.mark.parametrize("shape", [(3, 70_000), (70_000, 3), (700, 2, 130)])
def test_large_boxes_join_without_a_seam(shape: tuple[int, ...]) -> None:
    oracle = Oracle()
    whole = expected("w", "param", torch.int32, start=0, count=math.prod(shape), oracle=oracle)
    size = (shape[0] - 1, *shape[1:-1], shape[-1] - 1)
    found = expected_box(
        "w",
        "param",
        torch.int32,
        global_shape=shape,
        offset=tuple(1 if length != 2 else 0 for length in shape),
        size=size,
        oracle=oracle,
    )
    assert torch.equal(found, whole.reshape(shape)[1:, ..., 1:])


def test_bits_hold_what_values_do_not() -> None:
    bits = expected(
        "w", "param", torch.float16, start=0, count=300_000, oracle=Oracle(kind=Kind.BITS)
    )
    assert bits.isnan().any()
    assert bits.isinf().any()
    assert ((bits == 0) & bits.signbit()).any()
    assert ((bits != 0) & (bits.abs() < torch.finfo(torch.float16).tiny)).any()


@pytest.mark.parametrize("name", [name for name in NAMES_2 if name.startswith("float8")])
def test_float8_has_no_nan(name: str) -> None:
    values = expected("w", "param", getattr(torch, name), start=0, count=5000, oracle=Oracle())
    assert not values.float().isnan().any()
    assert len(set(lanes_of(values))) >= 250


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_training_keeps_second_moments_away_from_zero(name: str) -> None:
    oracle = Oracle(kind=Kind.TRAINING)
    moment = expected("w", "exp_avg_sq", getattr(torch, name), start=0, count=5000, oracle=oracle)
    assert moment.min() >= 0.5
    assert moment.max() <= 1
    first = expected("w", "exp_avg", getattr(torch, name), start=0, count=5000, oracle=oracle)
    assert first.min() < -0.9


def test_lowest_integer_of_a_non_negative_role_saturates() -> None:
    found = expected("w", "sum", torch.int8, start=0, count=5000, oracle=Oracle())
    assert found.min() >= 0
    assert found.max() == 127


def test_step_of_each_recipe() -> None:
    assert step_value("a", Oracle(recipe=Recipe.ONE)) == 3
    steps = {step_value(f"layer.{number}", Oracle()) for number in range(1000)}
    assert steps == set(range(3, 64))
    assert step_value("a", Oracle(seed=7)) == 3 + fingerprint("a", "step", 7) % 61


@pytest.mark.parametrize("kind", [Kind.BITS, Kind.TRAINING])
def test_recipe_1_has_one_kind(kind: Kind) -> None:
    with pytest.raises(ValueError, match="recipe 1 has no kind"):
        Oracle(recipe=Recipe.ONE, kind=kind)


@pytest.mark.parametrize("name", ["uint16", "complex64", "float8_e5m2"])
def test_recipe_1_refuses_what_it_does_not_define(name: str) -> None:
    dtype, oracle = getattr(torch, name), Oracle(recipe=Recipe.ONE)
    with pytest.raises(TypeError, match=f"recipe 1 defines no value for torch.{name}"):
        expected("w", "param", dtype, start=0, count=1, oracle=oracle)


def test_quantized_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match=r"defines no value for torch\.qint8"):
        expected("w", "param", torch.qint8, start=0, count=1, oracle=Oracle())


def test_ranges_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="negative offset"):
        expected("w", "param", torch.float32, start=-1, count=2, oracle=Oracle())
    with pytest.raises(ValueError, match="ends outside shape"):
        expected_box(
            "w",
            "param",
            torch.float32,
            global_shape=(5, 7),
            offset=(4, 0),
            size=(2, 7),
            oracle=Oracle(),
        )
