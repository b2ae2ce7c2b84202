"""How a contiguous range of a tensor becomes boxes."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import pytest
import torch
from shardproof_reference.checkpointing._pieces import (
    BoxPlace,
    RangePlace,
    range_boxes,
    replicated,
)

SHAPES = [(), (1,), (7,), (3, 5), (1, 4), (4, 1), (2, 3, 4), (3, 1, 2), (2, 2, 2, 2)]


def _indices(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(math.prod(shape)).view(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_boxes_hold_the_range_in_order(shape: tuple[int, ...]) -> None:
    numbers = _indices(shape)
    for start, stop in combinations_with_replacement(range(math.prod(shape) + 1), 2):
        found: list[int] = []
        boxes = list(range_boxes(shape, start, stop))
        for offsets, sizes in boxes:
            box = numbers
            for dimension, (first, length) in enumerate(zip(offsets, sizes, strict=True)):
                box = box.narrow(dimension, first, length)
            found += box.flatten().tolist()
        assert found == list(range(start, stop))
        assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_the_parts_of_a_range_are_views_of_its_memory() -> None:
    local = torch.zeros(20)
    piece = RangePlace((3, 4), 3, slice(5, 11)).piece(local)
    for number, part in enumerate(piece.parts):
        part.tensor.fill_(number + 1)
    assert [part.box for part in piece.parts] == [
        ((0, 3), (1, 1)),
        ((1, 0), (1, 4)),
        ((2, 0), (1, 1)),
    ]
    assert local.tolist() == [0] * 5 + [1, 2, 2, 2, 2, 3] + [0] * 9


def test_an_empty_shard_has_no_part() -> None:
    assert RangePlace((3, 4), 0, slice(0, 0)).piece(torch.zeros(8)).parts == ()
    assert BoxPlace((3, 4), (3, 0)).piece(torch.zeros(0, 4)).parts == ()


def test_a_tensor_without_elements_is_stored_all_the_same() -> None:
    assert len(BoxPlace((0, 4), (0, 0)).piece(torch.zeros(0, 4)).parts) == 1


def test_a_replicated_number_is_one_part() -> None:
    (part,) = replicated(torch.tensor(3.0)).parts
    assert part.box == ((), ())
