"""One cell of the matrix: how a model is sharded, and how its checkpoint is stored.

Loads no torch: reports and command lines name cells too.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Strategy(enum.Enum):
    """FSDP1's five sharding strategies, and `fully_shard` on a 1-D and a 2-D mesh."""

    FULL_SHARD = "full-shard"
    SHARD_GRAD_OP = "shard-grad-op"
    NO_SHARD = "no-shard"
    HYBRID_SHARD = "hybrid-shard"
    HYBRID_SHARD_ZERO2 = "hybrid-shard-zero2"
    FULLY_SHARD = "fully-shard"
    FULLY_SHARD_2D = "fully-shard-2d"

    @property
    def fsdp_version(self) -> int:
        """1 is `FullyShardedDataParallel`, 2 is `fully_shard`."""
        return 2 if self in (Strategy.FULLY_SHARD, Strategy.FULLY_SHARD_2D) else 1

    @property
    def mesh_dimensions(self) -> int:
        """How many dimensions its device mesh has; 0 is no mesh, all ranks are one group."""
        return _MESH_DIMENSIONS[self]


_MESH_DIMENSIONS = {
    Strategy.FULL_SHARD: 0,
    Strategy.SHARD_GRAD_OP: 0,
    Strategy.NO_SHARD: 0,
    Strategy.HYBRID_SHARD: 2,
    Strategy.HYBRID_SHARD_ZERO2: 2,
    Strategy.FULLY_SHARD: 1,
    Strategy.FULLY_SHARD_2D: 2,
}


class StateDictType(enum.Enum):
    """What torch calls the state-dict type."""

    FULL = "full"
    SHARDED = "sharded"
    LOCAL = "local"


class Dtype(enum.Enum):
    """Dtype of the parameters and of the optimizer state; buffers and `step` stay float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to shard and to store; what an implementation is constructed with.

    Attributes:
        strategy: Sharding strategy.
        dtype: Dtype of the parameters.
        state_dict_type: How the checkpoint is stored.
        world_size: Number of ranks.
        use_orig_params: FSDP1 keeps the original parameters; None for `fully_shard`.
        mesh: Shape of the device mesh, (shard,) or (replicate, shard); None is all ranks.
    """

    strategy: Strategy
    dtype: Dtype
    state_dict_type: StateDictType
    world_size: int
    use_orig_params: bool | None = None
    mesh: tuple[int, ...] | None = None

    @property
    def shard_group_size(self) -> int:
        """Over how many ranks each tensor is cut."""
        if self.strategy is Strategy.NO_SHARD:
            return 1
        return self.world_size if self.mesh is None else self.mesh[-1]

    @property
    def name(self) -> str:
        """Name it in ids: strategy, parameters of FSDP1, dtype and state-dict type."""
        return f"{self.model_name}-{self.state_dict_type.value}"

    @property
    def model_name(self) -> str:
        """Name it without what matters only to files."""
        kept = {None: [], False: ["flat"], True: ["orig"]}[self.use_orig_params]
        return "-".join([self.strategy.value, *kept, self.dtype.value])

    @property
    def row(self) -> str:
        """Name its row of the matrix."""
        return f"{self.strategy.value} {self.dtype.value}"

    def at(self, world_size: int) -> Cell:
        """Give the same cell at another world size, on the mesh that it usually has there."""
        mesh = default_mesh(self.strategy, world_size)
        return replace(self, world_size=world_size, mesh=mesh)


def default_mesh(strategy: Strategy, world_size: int) -> tuple[int, ...] | None:
    """Choose a mesh: two replicas where that leaves groups of two or more ranks, else one."""
    replicas = 2 if world_size % 2 == 0 and world_size > 2 else 1
    shapes = {0: None, 1: (world_size,), 2: (replicas, world_size // replicas)}
    return shapes[strategy.mesh_dimensions]
