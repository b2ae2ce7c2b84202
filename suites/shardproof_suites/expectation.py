"""What a model and its optimizer must hold, in closed form; made from the unwrapped model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardproof_suites.models import unit_classes
from shardproof_suites.oracle import Entry, Kind, Oracle
from shardproof_suites.training import SAVED_OPTIONS, STATES, full_options

if TYPE_CHECKING:
    from torch import nn

# Round trips compute nothing, so any bits will do; those of bfloat16 then show all of them.
ORACLE = Oracle(kind=Kind.BITS)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Everything that is known of a model before it is sharded.

    Attributes:
        catalogue: Every tensor of model and optimizer, tied ones once.
        names: All names of each parameter, by its first.
        units: Number of FSDP units.
        options: Options of each parameter group.
        oracle: What the values are made from.
    """

    catalogue: tuple[Entry, ...]
    names: dict[str, tuple[str, ...]]
    units: int
    options: list[dict[str, Any]]
    oracle: Oracle = ORACLE

    @classmethod
    def of(cls, model: nn.Module) -> Expectation:
        """Describe an unwrapped model, trained with AdamW."""
        names: dict[int, list[str]] = {}
        entries: list[Entry] = []
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
            if len(names[id(parameter)]) == 1:
                shape, dtype = tuple(parameter.shape), parameter.dtype
                entries += [Entry(name, role, shape, dtype) for role in ("param", *STATES)]
        persistent = model.state_dict().keys()
        entries += [
            Entry(name, "buffer", tuple(buffer.shape), buffer.dtype)
            for name, buffer in model.named_buffers()
            if name in persistent
        ]
        classes = unit_classes(model)
        units = 1 + sum(isinstance(child, classes) for child in model.modules())
        listed = {one[0]: tuple(one) for one in names.values()}
        return cls(tuple(entries), listed, units, full_options(SAVED_OPTIONS))
