"""The reference of this project."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from shardproof import current_world
from shardproof_reference import load_checkpoint, save_checkpoint, wrap_fsdp1, wrap_fully_shard
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp import StateDictType as TorchStateDictType

from shardproof_suites.capability import DEFAULT_CAPABILITIES, Capability
from shardproof_suites.cell import Cell, StateDictType, Strategy
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
        model = self.wrap(module.to(current_world().device))
        state = TrainState((model,), (make_optimizer(model.named_parameters()),))
        if resume is not None:
            self.load_(state, resume)
        return state

    def wrap(self, module: nn.Module) -> nn.Module:
        """Shard a model as the cell says."""
        blocks, cell = unit_classes(module), self.cell
        if cell.strategy.fsdp_version == 2:
            mesh = _mesh(cell)
            assert mesh is not None
            return wrap_fully_shard(module, blocks=blocks, device_mesh=mesh)
        return wrap_fsdp1(
            module,
            _strategy(cell.strategy),
            blocks=blocks,
            device=current_world().device,
            device_mesh=_mesh(cell),
            use_orig_params=bool(cell.use_orig_params),
        )

    def save(self, state: TrainState, root: Path, step: int) -> Ref:
        """Save model and optimizer as one folder."""
        ref = Ref(root, f"step-{step}")
        save_checkpoint(ref.path, state.modules[0], state.optimizers[0], self.state_dict_type)
        return ref

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load model and optimizer; always strict."""
        load_checkpoint(ref.path, state.modules[0], state.optimizers[0], self.state_dict_type)
        return LoadResult()


def _strategy(strategy: Strategy) -> ShardingStrategy:
    if strategy is Strategy.HYBRID_SHARD_ZERO2:
        return ShardingStrategy._HYBRID_SHARD_ZERO2
    return ShardingStrategy[strategy.name]


def _mesh(cell: Cell) -> DeviceMesh | None:
    if cell.mesh is None:
        return None
    names = ("replicate", "shard")[-len(cell.mesh) :]
    return init_device_mesh(current_world().device.type, cell.mesh, mesh_dim_names=names)
