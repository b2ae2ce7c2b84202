"""What the suites ask of an implementation under test, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from shardproof_suites.capability import Capability
from shardproof_suites.cell import Cell

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    MakeOptimizer: TypeAlias = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]


class Unsupported(Exception):
    """An implementation doesn't do what a case asks for; raised by it, on every rank.

    Args:
        capability: What it doesn't claim.
        reason: One sentence.
    """

    def __init__(self, capability: Capability, reason: str) -> None:
        super().__init__(capability, reason)
        self.capability = capability

    def __str__(self) -> str:
        capability, reason = self.args
        return f"{capability.value}: {reason}"


@dataclass(frozen=True, slots=True)
class Ref:
    """Names one saved checkpoint, in any process that sees the root.

    Attributes:
        root: The folder that `save` was given.
        name: Path of the checkpoint below it, with forward slashes; never leaves the root.

    Raises:
        ValueError: The name is absolute or leaves the root.
    """

    root: Path
    name: str

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if not self.name or path.is_absolute() or ".." in path.parts:
            raise ValueError(f"a checkpoint's name stays below its root, got {self.name!r}")

    @property
    def path(self) -> Path:
        """Where the checkpoint is."""
        return self.root / self.name


class Pending(Protocol):
    """A save that goes on in the background."""

    def wait(self) -> Ref:
        """Return when the checkpoint is complete; collective."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load found to differ; both empty after a strict one.

    Attributes:
        missing: Names that the target has and the checkpoint doesn't.
        unexpected: Names that the checkpoint has and the target doesn't.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


@dataclass(slots=True)
class TrainState:
    """Everything that a resumed run needs.

    Attributes:
        modules: The sharded model, or its parts.
        optimizers: One for all parts, or one for each.
        scheduler: Anything with `state_dict` and `load_state_dict`.
        progress: Steps and tokens seen, whatever the implementation counts.
        rng: Random number state, where the implementation keeps it.
        extra: Other stateful objects by name.
        native: The implementation's own object: an AppState, a Fabric, a manager.
    """

    modules: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    scheduler: Any = None
    progress: Any = None
    rng: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    native: Any = None


class Implementation(Protocol):
    """One way to shard, save and load; constructed on every rank and for every stage.

    Every method is collective. What a class doesn't do, it leaves out of `capabilities` and
    refuses with `Unsupported`.
    """

    name: str
    version: str
    capabilities: frozenset[Capability]

    def __init__(self, cell: Cell) -> None:
        """Take the strategy, state-dict type, dtype, mesh and world size."""

    def prepare(
        self, module: nn.Module, make_optimizer: MakeOptimizer, resume: Ref | None = None
    ) -> TrainState:
        """Shard a model as the cell says, and make its optimizer.

        Args:
            module: Unwrapped, on the CPU, in the cell's dtype. Its `_no_split_modules` names the
                classes whose instances become units of their own; one more unit is the rest.
            make_optimizer: Takes (name, parameter) pairs, names with or without wrapper words.
            resume: A checkpoint to load while wrapping, for implementations that can't later.
        """

    def save(self, state: TrainState, root: Path, step: int) -> Ref | Pending:
        """Write a checkpoint below a folder that exists and that all ranks see."""

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        """Load in place, whatever state the optimizer has; needs `Capability.LOAD`."""
