"""A state-dict type that isn't supported becomes another one, without a word."""

from __future__ import annotations

from dataclasses import replace

from shardproof_suites.cell import Cell, StateDictType
from shardproof_suites.implementations.reference import Reference


class QuietFallback(Reference):
    """Takes LOCAL for SHARDED."""

    name = "quiet-fallback"

    def __init__(self, cell: Cell) -> None:
        if cell.state_dict_type is StateDictType.LOCAL:
            cell = replace(cell, state_dict_type=StateDictType.SHARDED)
        super().__init__(cell)
