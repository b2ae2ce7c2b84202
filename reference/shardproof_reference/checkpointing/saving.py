"""Save a model and its optimizer, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed.fsdp import StateDictType

from shardproof_reference.checkpointing._collective import agree
from shardproof_reference.checkpointing._full import FILES, save_full
from shardproof_reference.checkpointing._live import Live
from shardproof_reference.checkpointing._publish import publish
from shardproof_reference.checkpointing._sharded import save_sharded
from shardproof_reference.errors import SaveError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: Optimizer, state_dict_type: StateDictType
) -> None:
    """Write one folder; collective.

    It is built beside its final name and renamed when it is complete and synced, so a folder of
    that name is whole. The live model and optimizer aren't changed.

    Args:
        folder: Must not exist; its parent may. Seen by all ranks.
        model: Wrapped with FSDP1 or `fully_shard`, outside of a step.
        optimizer: Of the wrapped model, with any state or none.
        state_dict_type: SHARDED_STATE_DICT: each rank writes what it holds, into a DCP folder.
            FULL_STATE_DICT: rank 0 gathers everything in CPU memory and writes two files.

    Raises:
        SaveError: On every rank; nothing is left behind.
    """
    live = Live((model,), optimizer)

    def write(building: list[Path]) -> None:
        entries = agree(live.entries, SaveError)
        if state_dict_type is StateDictType.SHARDED_STATE_DICT:
            save_sharded(building[0], entries)
        elif state_dict_type is StateDictType.FULL_STATE_DICT:
            save_full({name: building[0] / file for name, file in FILES.items()}, entries)
        else:
            raise SaveError(f"{state_dict_type.name} is not supported; use SHARDED or FULL")

    publish([folder], write)
