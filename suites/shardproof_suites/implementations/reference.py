"""The reference of this project."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from shardproof import current_world
from shardproof_reference import (
    FullyShardedDataParallelPlugin,
    load_checkpoint,
    save_checkpoint,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import StateDictType as TorchStateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from shardproof_suites.capability import DEFAULT_CAPABILITIES, Capability
from shardproof_suites.cell import Cell, StateDictType
from shardproof_suites.implementation import LoadResult, Ref, TrainState, Unsupported
from shardproof_suites.models import unit_classes

if TYPE_CHECKING:
    from torch import nn

    from shardproof_suites.implementation import MakeOptimizer


class Reference:
    """Adapter of `shardproof_reference`."""

    name = "reference"
    version = version("shardproof")
    capabilities = DEFAULT_CAPABILITIES

    def __init__(self, cell: Cell) -> None:
        if cell.state_dict_type is StateDictType.LOCAL:
            raise Unsupported(Capability.LOCAL, "the reference has no LOCAL state dict yet")
        self.cell = cell
        self.state_dict_type = TorchStateDictType[f"{cell.state_dict_type.name}_STATE_DICT"]

    def prepare(
        self, module: nn.Module, make_optimizer: MakeOptimizer, resume: Ref | None = None
    ) -> TrainState:
        """Wrap on the rank's device; loads later, in place."""
        model = self.wrap(module)
        state = TrainState((model,), (make_optimizer(model.named_parameters()),))
        if resume is not None:
            self.load_(state, resume)
        return state

    def wrap(self, module: nn.Module) -> nn.Module:
        """Shard a model as the cell says."""
        cell, version = self.cell, self.cell.strategy.fsdp_version
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=version,
            sharding_strategy=cell.strategy.name if version == 1 else None,
            auto_wrap_policy=ModuleWrapPolicy(set(unit_classes(module))),
            state_dict_type=self.state_dict_type,
            use_orig_params=cell.use_orig_params,
        )
        return plugin.wrap(module, _mesh(cell))

    def save(self, state: TrainState, root: Path, step: int) -> Ref:
        """Save model and optimizer as one folder."""
        ref = Ref(root, f"step-{step}")
        save_checkpoint(ref.path, state.modules[0], state.optimizers[0], self.state_dict_type)
        return ref

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load model and optimizer; always strict."""
        load_checkpoint(ref.path, state.modules[0], state.optimizers[0], self.state_dict_type)
        return LoadResult()


def _mesh(cell: Cell) -> DeviceMesh | None:
    if cell.mesh is None:
        return None
    names = ("replicate", "shard")[-len(cell.mesh) :]
    return init_device_mesh(current_world().device.type, cell.mesh, mesh_dim_names=names)
