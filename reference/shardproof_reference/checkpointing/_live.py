"""What is saved and loaded: model parts, their optimizer and their scheduler, as they are now.

A path begins with `model`, `optimizer` or `lr_scheduler`, whatever the layout of the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from shardproof_reference.checkpointing._entries import Entries, model_entries
from shardproof_reference.checkpointing._optimizer import group_names, optimizer_entries
from shardproof_reference.checkpointing._parameters import Parameter, parameters
from shardproof_reference.checkpointing._scheduler import scheduler_entries
from shardproof_reference.errors import CheckpointError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


_WRAPPED = (FullyShardedDataParallel, FSDPModule)


@dataclass(frozen=True)
class Live:
    """A model, or several parts of one, with what trains it.

    Attributes:
        parts: Wrapped modules; none of their names is another's.
        optimizer: Of the parameters of all parts, or None where it is no matter.
        scheduler: Of the optimizer, or None.
        with_model: Whether the parts are stored themselves, or only name the optimizer's state.
        without: Names of the model's tensors that are left out.
    """

    parts: tuple[nn.Module, ...]
    optimizer: Optimizer | None = None
    scheduler: LRScheduler | None = None
    with_model: bool = True
    without: frozenset[str] = frozenset()

    def refuse_unwrapped(self) -> None:
        """Refuse a part of which every rank has all: which rank's it is would be left to chance.

        Raises:
            CheckpointError: Naming its class.
        """
        for part in self.parts:
            if not any(isinstance(one, _WRAPPED) for one in part.modules()):
                raise CheckpointError(
                    f"the {type(part).__name__} isn't wrapped; give the model that FSDP has wrapped"
                )

    def parameters(self) -> list[Parameter]:
        """List the parameters of all parts, in the same order on every rank."""
        return [parameter for part in self.parts for parameter in parameters(part)]

    def groups(self) -> list[list[str]]:
        """Name the parameters of each of the optimizer's groups."""
        known = self.parameters()
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return [group_names(group, known) for group in groups]

    def model_entries(self) -> Entries:
        """List parameters and persistent buffers of all parts.

        Raises:
            CheckpointError: Two parts have a name in common.
        """
        found = Entries()
        for part in self.parts if self.with_model else ():
            own = model_entries(part, parameters(part))
            if twice := sorted(own.pieces.keys() & found.pieces.keys()):
                raise CheckpointError(f"two model parts have the name {twice[0][-1]}")
            found.add(own)
        return found.without({("model", name) for name in self.without})

    def entries(self) -> Entries:
        """List everything that is stored.

        Raises:
            CheckpointError: The model isn't wrapped, or there is state that can't be stored.
        """
        self.refuse_unwrapped()
        found = self.model_entries()
        if self.optimizer is not None:
            found.add(optimizer_entries(self.optimizer, self.parameters()))
        if self.scheduler is not None:
            found.add(scheduler_entries(self.scheduler))
        return found
