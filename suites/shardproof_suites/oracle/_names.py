"""Which name of a tensor its values are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")


def clean_name(name: str) -> str:
    """Drop what FSDP1, torch.compile and activation checkpointing put into a name."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Tell the name that decides each tensor's values (RECIPE.md, 'Tied parameters').

    Args:
        module: Any module. FSDP1 without original parameters hides them: ask before wrapping.

    Returns:
        Every name of every parameter and buffer, as the module gives it, to the tensor's first
        name in `named_parameters()` or `named_buffers()` order, as in the unwrapped model.
    """
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    first: dict[int, str] = {}
    for name, tensor in named:
        first.setdefault(id(tensor), clean_name(name))
    return {name: first[id(tensor)] for name, tensor in named}
