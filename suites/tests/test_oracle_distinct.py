"""The lint refuses models in which a swap could go unseen, and the names of tied tensors."""

from __future__ import annotations

import pytest
import torch
from shardproof_suites.oracle import (
    Entry,
    IndistinctError,
    Oracle,
    assert_distinct,
    canonical_names,
    clean_name,
    expected,
)
from torch import nn


def uneven(dtype: torch.dtype) -> list[Entry]:
    shapes = {"proj.weight": (5, 7), "proj.bias": (7,), "lin.weight": (7, 7), "lin.bias": (7,)}
    roles = ("param", "exp_avg", "exp_avg_sq")
    return [Entry(fqn, role, shape, dtype) for fqn, shape in shapes.items() for role in roles]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_a_usual_model_is_distinct(dtype: torch.dtype) -> None:
    assert_distinct(uneven(dtype), world_sizes=[1, 2, 3, 4], seeds=[0, 1])


def test_empty_tensors_and_scalars_are_legal() -> None:
    entries = [
        Entry("none", "buffer", (0, 3), torch.float32),
        Entry("scale", "buffer", (), torch.float32),
    ]
    assert_distinct(entries, world_sizes=[2], seeds=[0])


def test_the_same_tensor_twice_is_refused() -> None:
    entry = Entry("w", "param", (5, 7), torch.float32)
    with pytest.raises(IndistinctError, match=r"param of w\[0:5\] and param of w\[0:5\]"):
        assert_distinct([entry, entry], world_sizes=[1], seeds=[0])


def test_equal_rows_of_one_tensor_are_refused() -> None:
    entry = Entry("mask", "buffer", (40, 2), torch.bool)
    with pytest.raises(IndistinctError, match=r"buffer of mask\[\d+:\d+\] and buffer of mask"):
        assert_distinct([entry], world_sizes=[1], seeds=[0, 1])


def test_equal_shards_are_refused() -> None:
    entries = [Entry(f"flag.{number}", "buffer", (2,), torch.bool) for number in range(9)]
    with pytest.raises(IndistinctError, match=r"buffer of flag\.\d\[0:1\] and buffer of flag"):
        assert_distinct(entries, world_sizes=[2], seeds=[0, 1])


def equal_for(dtype: torch.dtype, seeds: tuple[int, ...]) -> list[Entry]:
    """Find two one-element tensors that are equal under exactly these seeds of 0 and 1."""
    names = [f"w{number}" for number in range(100)]

    def value(name: str, seed: int) -> object:
        oracle = Oracle(seed=seed)
        return expected(name, "param", dtype, start=0, count=1, oracle=oracle).item()

    for first in names:
        for second in names:
            same = tuple(seed for seed in (0, 1) if value(first, seed) == value(second, seed))
            fresh = all(value(name, 0) != value(name, 1) for name in (first, second))
            if first != second and same == seeds and fresh:
                return [Entry(first, "param", (1,), dtype), Entry(second, "param", (1,), dtype)]
    raise AssertionError("no such pair")


def test_two_seeds_tell_narrow_values_apart_that_one_does_not() -> None:
    assert_distinct(equal_for(torch.uint8, (1,)), world_sizes=[1], seeds=[0, 1])
    with pytest.raises(IndistinctError):
        assert_distinct(equal_for(torch.bool, (0, 1)), world_sizes=[1], seeds=[0, 1])


def test_equal_seeds_are_refused() -> None:
    def value(seed: int) -> torch.Tensor:
        oracle = Oracle(seed=seed)
        return expected("w", "param", torch.bool, start=0, count=1, oracle=oracle)

    other = next(seed for seed in range(1, 100) if torch.equal(value(seed), value(0)))
    entry = Entry("w", "param", (1,), torch.bool)
    with pytest.raises(IndistinctError, match=f"w with seed {other} and param of w with seed 0"):
        assert_distinct([entry], world_sizes=[1], seeds=[0, other])


def test_narrow_dtypes_need_two_seeds() -> None:
    with pytest.raises(ValueError, match=r"torch\.bfloat16 is narrow, check it with two seeds"):
        assert_distinct(uneven(torch.bfloat16), world_sizes=[1], seeds=[0])


@pytest.mark.parametrize("empty", ["entries", "world_sizes", "seeds"])
def test_nothing_to_compare_is_an_error(empty: str) -> None:
    given: dict[str, list[object]] = {
        "entries": [Entry("w", "param", (5,), torch.float32)],
        "world_sizes": [1],
        "seeds": [0],
    }
    given[empty] = []
    with pytest.raises(ValueError, match="nothing to compare"):
        assert_distinct(**given)  # type: ignore[arg-type]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lm_head = nn.Linear(6, 11, bias=False)
        self.lm_head.weight = self.embed.weight
        scale = torch.ones(3)
        self.register_buffer("scale", scale)
        self.register_buffer("again", scale)


def test_tied_tensors_take_their_first_name() -> None:
    assert canonical_names(Tied()) == {
        "embed.weight": "embed.weight",
        "lm_head.weight": "embed.weight",
        "scale": "scale",
        "again": "scale",
    }


def test_wrappers_are_not_part_of_a_name() -> None:
    wrapped = nn.Module()
    wrapped.add_module("_fsdp_wrapped_module", Tied())
    assert canonical_names(wrapped)["_fsdp_wrapped_module.lm_head.weight"] == "embed.weight"
    name = "_orig_mod.blocks.0._fsdp_wrapped_module._checkpoint_wrapped_module.lin.weight"
    assert clean_name(name) == "blocks.0.lin.weight"
