"""Where a piece lies in its global tensor, as contiguous runs of the flat index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Block:
    """Some neighbouring elements of a piece: `starts.size` runs of `length` elements each.

    Attributes:
        part: Their row-major positions in the piece.
        starts: Global flat index of each run's first element, uint64.
        length: Elements a run.
    """

    part: slice
    starts: npt.NDArray[np.uint64]
    length: int


@dataclass(frozen=True, slots=True)
class Box:
    """An axis-aligned piece of a row-major global tensor; all three have one int a dimension.

    Attributes:
        shape: Shape of the global tensor.
        offset: Index of the piece's first element.
        size: Shape of the piece; zeros are legal.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Count the piece's elements."""
        return math.prod(self.size)

    def misfit(self) -> str | None:
        """Say why the piece can't be part of the tensor, or None if it can."""
        if not len(self.shape) == len(self.offset) == len(self.size):
            return f"{len(self.size)}-D piece at {self.offset} of a {len(self.shape)}-D tensor"
        if any(start < 0 for start in self.offset):
            return f"negative offset {self.offset}"
        # An empty piece is nowhere: ranks past the last row give any offset for theirs.
        ends = [start + length for start, length in zip(self.offset, self.size, strict=True)]
        if self.numel and any(end > whole for end, whole in zip(ends, self.shape, strict=True)):
            return f"piece {self.size} at {self.offset} ends outside shape {self.shape}"
        return None

    def with_lanes(self, lanes: int) -> Box:
        """Add a last dimension for the parts of a complex number; `lanes` 1 changes nothing."""
        if lanes == 1:
            return self
        return Box((*self.shape, lanes), (*self.offset, 0), (*self.size, lanes))

    def flat(self, position: int) -> int:
        """Turn a row-major position in the piece into a flat index of the global tensor."""
        row, column = divmod(position, self.run())
        return int(self._starts(row, row + 1)[0]) + column

    def run(self) -> int:
        """Count the elements of one contiguous run; the piece is made of equal ones."""
        return math.prod(self.size[self._outer() :])

    def blocks(self, most: int) -> Iterator[Block]:
        """Walk the piece in row-major order, at most `most` elements at a time."""
        if self.numel == 0:
            return
        run = self.run()
        if run <= most:
            yield from self._whole_runs(run, most // run)
        else:
            yield from self._cut_runs(run, most)

    def _whole_runs(self, run: int, together: int) -> Iterator[Block]:
        rows = self.numel // run
        for row in range(0, rows, together):
            last = min(row + together, rows)
            yield Block(slice(row * run, last * run), self._starts(row, last), run)

    def _cut_runs(self, run: int, most: int) -> Iterator[Block]:
        for row in range(self.numel // run):
            start = self._starts(row, row + 1)
            for cut in range(0, run, most):
                length = min(most, run - cut)
                position = row * run + cut
                yield Block(slice(position, position + length), start + np.uint64(cut), length)

    def _outer(self) -> int:
        """Count the leading dimensions that a run doesn't reach across."""
        dim = len(self.size)
        while dim > 0:
            dim -= 1
            if self.size[dim] != self.shape[dim]:
                break
        return dim

    def _strides(self) -> list[int]:
        return [math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]

    def _starts(self, first: int, last: int) -> npt.NDArray[np.uint64]:
        strides = self._strides()
        base = sum(start * stride for start, stride in zip(self.offset, strides, strict=True))
        starts = np.full(last - first, base, np.uint64)
        rest = np.arange(first, last, dtype=np.uint64)
        for dim in reversed(range(self._outer())):
            rest, index = np.divmod(rest, np.uint64(self.size[dim]))
            starts += index * np.uint64(strides[dim])
        return starts
