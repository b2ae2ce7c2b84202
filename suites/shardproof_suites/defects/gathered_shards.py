"""What is called SHARDED is the full state, gathered and written by rank 0."""

from __future__ import annotations

from torch.distributed.fsdp import StateDictType

from shardproof_suites.cell import Cell
from shardproof_suites.implementations.reference import Reference


class GatheredShards(Reference):
    """Stores FULL, whatever is asked for."""

    name = "gathered-shards"

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.state_dict_type = StateDictType.FULL_STATE_DICT
