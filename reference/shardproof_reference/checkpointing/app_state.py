"""`AppState`: a model with what trains it, which takes one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from shardproof_reference.checkpointing._live import Live
from shardproof_reference.checkpointing.loading import Source, load
from shardproof_reference.errors import LoadError

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class AppState:
    """A wrapped model, its optimizer and maybe its scheduler.

    Args:
        model: Wrapped with FSDP1 or `fully_shard`; or parts of one, with different names.
        optimizer: Of all parts.
        lr_scheduler: Of the optimizer.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer,
        lr_scheduler: LRScheduler | None = None,
    ) -> None:
        self._model_parts = [model] if isinstance(model, nn.Module) else list(model)
        self._optimizer = optimizer
        self._lr_scheduler = lr_scheduler
        self._is_loaded = False

    @property
    def is_loaded(self) -> bool:
        """Whether a checkpoint was loaded into it; it takes no second one."""
        return self._is_loaded

    @property
    def model_parts(self) -> list[nn.Module]:
        """The model, as its parts."""
        return self._model_parts

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of all parts."""
        return self._optimizer

    @property
    def lr_scheduler(self) -> LRScheduler | None:
        """The scheduler, if there is one."""
        return self._lr_scheduler

    def live(self) -> Live:
        """Return all of it, as what is saved and loaded."""
        return Live(tuple(self._model_parts), self._optimizer, self._lr_scheduler)

    def load(self, source: Source) -> None:
        """Take what is stored; collective.

        Raises:
            LoadError: On every rank: it doesn't fit, or another was loaded before, of which what it
                doesn't have would remain.
        """
        if self._is_loaded:
            raise LoadError(
                "a checkpoint was loaded into this AppState already; make a new one to load again"
            )
        load(source, self.live())
        self._is_loaded = True
