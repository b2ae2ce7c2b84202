"""What a test or launched function knows of the ranks it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from shardproof._group import Place

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# Form a group of the first n ranks (None: of all); rank-side, set up by the rank's main loop.
Reform = Callable[[int | None], None]

_current: World | None = None


class World:
    """The ranks that run this test, and this rank's place among them.

    Attributes:
        rank: This process's rank, from 0.
        world_size: How many ranks there are.
        backend: `gloo`, `nccl` or `cpu:gloo,cuda:nccl`.
    """

    def __init__(self, place: Place, reform: Reform) -> None:
        self._place = place
        self._reform = reform
        self.rank = place.rank
        self.world_size = place.world_size
        self.backend = place.backend

    def __repr__(self) -> str:
        return f"<World rank {self.rank} of {self.world_size}, {self.backend}>"

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        import torch

        return torch.device(self._place.device)

    def barrier(self) -> None:
        """Wait for all ranks; collective."""
        import torch.distributed as dist

        dist.barrier()

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in rank order, on every rank; collective.

        Args:
            value: Anything that can be pickled.
        """
        import torch.distributed as dist

        values: list[T] = [value] * self.world_size
        dist.all_gather_object(values, value)
        return values

    @contextmanager
    def subworld(self, world_size: int) -> Iterator[World | None]:
        """Make the first ranks the default process group for a while; collective.

        Gives the smaller world on ranks below `world_size` and None on the others, which should
        do nothing collective and wait at the end of the block. Afterwards the default group is a
        new one of all ranks: groups and device meshes made before the block can't be used on.

        Args:
            world_size: Size of the smaller world, from 1 to this one's size.

        Raises:
            ValueError: `world_size` is outside that range.
        """
        global _current
        if not 1 <= world_size <= self.world_size:
            raise ValueError(f"a subworld of {self.world_size} ranks can't have {world_size}")
        self._reform(world_size)
        sub = None
        if self.rank < world_size:
            sub = _current = World(self._place.resized(world_size), self._reform)
        try:
            yield sub
        finally:
            _current = self
        self._reform(None)


def current_world() -> World:
    """Return the world of the rank that calls; for functions run by `launch`.

    Raises:
        RuntimeError: The caller doesn't run on a rank.
    """
    if _current is None:
        raise RuntimeError(
            "this process is no rank: use it in a test marked with "
            "@pytest.mark.ranks or in a function run by launch()"
        )
    return _current


def here() -> World | None:
    """Return the world of this process, or None where it is no rank."""
    return _current


def enter(place: Place, reform: Reform) -> World:
    """In a rank: make a world the current one."""
    global _current
    _current = World(place, reform)
    return _current
