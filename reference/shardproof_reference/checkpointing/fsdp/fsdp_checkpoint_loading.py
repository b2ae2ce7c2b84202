"""Modalities' two ways of loading: two full files through rank 0, or one folder by all ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import ShardingStrategy

from shardproof_reference.checkpointing._app_layout import from_app
from shardproof_reference.checkpointing._collective import agree, wire_device
from shardproof_reference.checkpointing._full import FullSource
from shardproof_reference.checkpointing._live import Live
from shardproof_reference.checkpointing._sharded import ShardedSource
from shardproof_reference.checkpointing.fsdp.mixed_precision import MixedPrecisionSettings
from shardproof_reference.checkpointing.interfaces import (
    DistributedCheckpointLoadingIF,
    FSDP1CheckpointLoadingIF,
)
from shardproof_reference.checkpointing.loading import load, refuse_misfit
from shardproof_reference.errors import LoadError
from shardproof_reference.fsdp.plugin import FullyShardedDataParallelPlugin

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from shardproof_reference.checkpointing.app_state import AppState


class FSDP1CheckpointLoading(FSDP1CheckpointLoadingIF):
    """Loads what `FSDP1CheckpointSaving` has saved, on CPUs too.

    Args:
        global_rank: This process's rank.
        block_names: Classes of modules that become units.
        mixed_precision_settings: What FSDP1 computes in.
        sharding_strategy: How it shards. HYBRID replicates over hosts, of `LOCAL_WORLD_SIZE` ranks.
    """

    def __init__(
        self,
        global_rank: int,
        block_names: Sequence[str],
        mixed_precision_settings: MixedPrecisionSettings,
        sharding_strategy: ShardingStrategy,
    ) -> None:
        self.global_rank = global_rank
        self.block_names = block_names
        self.mixed_precision_settings = mixed_precision_settings
        self.sharding_strategy = sharding_strategy

    def load_model_checkpoint(self, model: nn.Module, file_path: Path) -> nn.Module:
        """Read the full state on rank 0, wrap the model, and shard both over the ranks; collective.

        Args:
            model: Not wrapped; of ranks above 0 it may be on the meta device.
            file_path: The model's file.

        Returns:
            The wrapped model.

        Raises:
            LoadError: On every rank. If the state doesn't fit, the model isn't changed.
            WrapError: On every rank: it can't be sharded so.
        """
        agree(lambda: _refuse_rank(self.global_rank), LoadError)
        source = FullSource({"model": Path(file_path)})
        agree(lambda: refuse_misfit(source.stored, Live((model,))), LoadError)
        plugin = FullyShardedDataParallelPlugin(
            sharding_strategy=self.sharding_strategy,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=self.block_names,
            mixed_precision_policy=self.mixed_precision_settings.value,
            sync_module_states=True,
            use_orig_params=True,
        )
        wrapped = plugin.wrap(model, self._mesh())
        load(source, Live((wrapped,)))
        return wrapped

    def load_optimizer_checkpoint_(
        self, optimizer: Optimizer, model: nn.Module, file_path: Path
    ) -> None:
        """Read the full state of the optimizer on rank 0, and give each rank its part; collective.

        Args:
            optimizer: Of the wrapped model, with any state or none.
            model: Wrapped, as `load_model_checkpoint` returns it.
            file_path: The optimizer's file.

        Raises:
            LoadError: On every rank. If the state doesn't fit, nothing was changed.
        """
        agree(lambda: _refuse_rank(self.global_rank), LoadError)
        source = FullSource({"optimizer": Path(file_path)})
        load(source, Live((model,), optimizer, with_model=False))

    def _mesh(self) -> DeviceMesh | None:
        if "HYBRID" not in self.sharding_strategy.name:
            return None
        ranks = dist.get_world_size()
        local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
        shape, names = (ranks // local, local), ("replicate", "shard")
        return init_device_mesh(wire_device().type, shape, mesh_dim_names=names)


class DCPCheckpointLoading(DistributedCheckpointLoadingIF):
    """Loads what `DCPCheckpointSaving` has saved, at any world size.

    Args:
        global_rank: This process's rank.
    """

    def __init__(self, global_rank: int) -> None:
        self._global_rank = global_rank

    def load_checkpoint_(self, app_state: AppState, checkpoint_dir_path: Path) -> AppState:
        """Let each rank read its own part, in place; collective.

        Args:
            app_state: With a wrapped model; nothing was loaded into it before.
            checkpoint_dir_path: The folder.

        Returns:
            The same object.

        Raises:
            LoadError: On every rank. If the checkpoint doesn't fit, nothing was changed.
        """

        def open_source() -> ShardedSource:
            _refuse_rank(self._global_rank)
            source = ShardedSource(Path(checkpoint_dir_path))
            groups = app_state.live().groups()
            source.rename(*from_app(source.stored, groups, source.value))
            return source

        app_state.load(agree(open_source, LoadError))
        return app_state


def _refuse_rank(rank: int) -> None:
    if rank != dist.get_rank():
        raise LoadError(f"global_rank={rank}, but this is rank {dist.get_rank()}")
