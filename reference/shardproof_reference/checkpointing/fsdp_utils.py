"""Accelerate's four functions: the model or its optimizer, into a folder and back, by the plugin.

Its layout: `pytorch_model_fsdp.bin` and `optimizer.bin` of FULL_STATE_DICT, the DCP folders
`pytorch_model_fsdp_0` and `optimizer_0` of SHARDED_STATE_DICT; the number is the index.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed.fsdp import StateDictType

from shardproof_reference.checkpointing._collective import agree
from shardproof_reference.checkpointing._entries import Entries
from shardproof_reference.checkpointing._full import FullSource, save_full
from shardproof_reference.checkpointing._live import Live
from shardproof_reference.checkpointing._publish import publish
from shardproof_reference.checkpointing._sharded import ShardedSource, save_sharded
from shardproof_reference.checkpointing.loading import Misfits, Source, load
from shardproof_reference.checkpointing.pending import Pending
from shardproof_reference.errors import LoadError, SaveError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from shardproof_reference.fsdp.plugin import FullyShardedDataParallelPlugin

_NAMES = {"model": "pytorch_model_fsdp", "optimizer": "optimizer"}


def save_fsdp_model(
    fsdp_plugin: FullyShardedDataParallelPlugin,
    accelerator: object,
    model: nn.Module,
    output_dir: str | Path,
    model_index: int = 0,
    *,
    asynchronous: bool = False,
) -> Pending | None:
    """Save a model as the plugin's state-dict type says; collective.

    Args:
        fsdp_plugin: With which the model was wrapped. It isn't changed.
        accelerator: Not looked at; Accelerate's function has it.
        model: Wrapped with FSDP1 or `fully_shard`. It isn't changed.
        output_dir: Seen by all ranks; made if it isn't there.
        model_index: Part of the name, where there are several.
        asynchronous: Whether only a snapshot is made now, in each rank's CPU memory.

    Returns:
        Of an asynchronous save what to wait for; it raises the errors of writing then.

    Raises:
        SaveError: On every rank; nothing is left behind. What exists is not overwritten.
    """
    return _save(fsdp_plugin, "model", model_index, output_dir, Live((model,)), asynchronous)


def load_fsdp_model(
    fsdp_plugin: FullyShardedDataParallelPlugin,
    accelerator: object,
    model: nn.Module,
    input_dir: str | Path,
    model_index: int = 0,
    *,
    strict: bool = True,
) -> Misfits:
    """Load a model in place; collective. World size and strategy may be others than in the save.

    Args:
        fsdp_plugin: Its state-dict type is that of the save.
        accelerator: Not looked at.
        model: Wrapped.
        input_dir: The folder given to the save, or of SHARDED_STATE_DICT the one within.
        model_index: As in the save.
        strict: Whether names that only one side has are refused, or only told.

    Returns:
        The names that the checkpoint hasn't, and those that the model hasn't.

    Raises:
        LoadError: On every rank. If the checkpoint doesn't fit, nothing was changed.
    """
    source = agree(lambda: _open(fsdp_plugin, "model", model_index, input_dir), LoadError)
    return load(source, Live((model,)), strict=strict)


def save_fsdp_optimizer(
    fsdp_plugin: FullyShardedDataParallelPlugin,
    accelerator: object,
    optimizer: Optimizer,
    model: nn.Module,
    output_dir: str | Path,
    optimizer_index: int = 0,
    *,
    asynchronous: bool = False,
) -> Pending | None:
    """Save an optimizer's state under the model's names; collective.

    Args:
        fsdp_plugin: With which the model was wrapped. It isn't changed.
        accelerator: Not looked at.
        optimizer: Of the wrapped model, with any state or none. It isn't changed.
        model: Wrapped.
        output_dir: Seen by all ranks; made if it isn't there.
        optimizer_index: Part of the name, where there are several.
        asynchronous: Whether only a snapshot is made now, in each rank's CPU memory.

    Returns:
        Of an asynchronous save what to wait for; it raises the errors of writing then.

    Raises:
        SaveError: On every rank; nothing is left behind. What exists is not overwritten.
    """
    live = Live((model,), optimizer, with_model=False)
    return _save(fsdp_plugin, "optimizer", optimizer_index, output_dir, live, asynchronous)


def load_fsdp_optimizer(
    fsdp_plugin: FullyShardedDataParallelPlugin,
    accelerator: object,
    optimizer: Optimizer,
    model: nn.Module,
    input_dir: str | Path,
    optimizer_index: int = 0,
) -> None:
    """Load an optimizer's state in place; collective.

    Args:
        fsdp_plugin: Its state-dict type is that of the save.
        accelerator: Not looked at.
        optimizer: Of the wrapped model, with any state or none.
        model: Wrapped.
        input_dir: The folder given to the save, or of SHARDED_STATE_DICT the one within.
        optimizer_index: As in the save.

    Raises:
        LoadError: On every rank. If the state doesn't fit, nothing was changed.
    """
    source = agree(lambda: _open(fsdp_plugin, "optimizer", optimizer_index, input_dir), LoadError)
    load(source, Live((model,), optimizer, with_model=False))


def _save(
    plugin: FullyShardedDataParallelPlugin,
    entity: str,
    index: int,
    folder: str | Path,
    live: Live,
    asynchronous: bool,
) -> Pending | None:
    def prepare() -> tuple[Path, Entries]:
        path = _path(plugin, entity, index, Path(folder), SaveError)
        entries = live.entries()
        return path, entries.snapshot() if asynchronous else entries

    target, entries = agree(prepare, SaveError)

    def write(building: list[Path]) -> None:
        if target.suffix:
            save_full({entity: building[0]}, entries)
        else:
            save_sharded(building[0], entries)

    if asynchronous:
        return Pending(lambda: publish([target], write))
    publish([target], write)
    return None


def _open(
    plugin: FullyShardedDataParallelPlugin, entity: str, index: int, folder: str | Path
) -> Source:
    path = _path(plugin, entity, index, Path(folder), LoadError)
    if path.suffix:
        return FullSource({entity: path})
    return ShardedSource(path.parent if path.parent.name == path.name else path)


def _path(
    plugin: FullyShardedDataParallelPlugin,
    entity: str,
    index: int,
    folder: Path,
    error: type[SaveError] | type[LoadError],
) -> Path:
    """Return what Accelerate calls it: a file with a suffix, or a folder without."""
    if plugin.state_dict_type is StateDictType.FULL_STATE_DICT:
        return folder / f"{_NAMES[entity]}{f'_{index}' if index else ''}.bin"
    if plugin.state_dict_type is StateDictType.SHARDED_STATE_DICT:
        return folder / f"{_NAMES[entity]}_{index}"
    raise error("LOCAL_STATE_DICT is not supported; use SHARDED_STATE_DICT or FULL_STATE_DICT")
