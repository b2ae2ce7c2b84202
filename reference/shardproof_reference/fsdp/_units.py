"""Which modules of a model become units: each is sharded, gathered and freed by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from shardproof_reference.errors import WrapError
from shardproof_reference.fsdp._reading import SIZE, TRANSFORMER

Policy = Callable[..., Any]


def policy(
    model: nn.Module,
    chosen: str | Policy | None,
    class_names: Iterable[str] | None,
    min_num_params: int | None,
) -> Policy | None:
    """Return the function that decides about a module; torch's own for the named policies.

    Raises:
        WrapError: A class name that no module has, or no class name at all.
    """
    if chosen == TRANSFORMER:
        classes = _classes(model, class_names)
        return partial(transformer_auto_wrap_policy, transformer_layer_cls=classes)
    if chosen == SIZE:
        assert min_num_params is not None
        return partial(size_based_auto_wrap_policy, min_num_params=min_num_params)
    assert not isinstance(chosen, str)
    return chosen


def _classes(model: nn.Module, class_names: Iterable[str] | None) -> set[type[nn.Module]]:
    names = class_names or getattr(model, "_no_split_modules", None)
    if not names:
        raise WrapError(
            f"{TRANSFORMER} needs transformer_cls_names_to_wrap, as {type(model).__name__} names "
            "no classes in _no_split_modules"
        )
    found = {type(module).__name__: type(module) for module in model.modules()}
    missing = [name for name in names if name not in found]
    if missing:
        raise WrapError(
            f"transformer_cls_names_to_wrap has {missing[0]}, but the model has no such module; "
            f"it has {', '.join(sorted(found))}"
        )
    return {found[name] for name in names}


def ignored(model: nn.Module, chosen: str | Iterable[nn.Module] | None) -> set[nn.Module]:
    """Return the modules that a setting ignores, with all that they hold.

    Raises:
        WrapError: An expression that matches nothing, or a module that is not of the model.
    """
    if chosen is None:
        return set()
    if isinstance(chosen, str):
        named = dict(model.named_modules())
        roots = [module for name, module in named.items() if name and re.fullmatch(chosen, name)]
        if not roots:
            raise WrapError(f"ignored_modules={chosen!r} matches no module's name in full")
    else:
        roots = list(chosen)
        own = set(model.modules())
        foreign = [type(root).__name__ for root in roots if root not in own or root is model]
        if foreign:
            raise WrapError(f"ignored_modules has a {foreign[0]} that is no module of the model")
    return {module for root in roots for module in root.modules()}


def units(model: nn.Module, decide: Policy | None, leave: Collection[nn.Module]) -> list[nn.Module]:
    """Return the modules that become units, inner ones first, without the model itself.

    They are those that torch's own auto-wrapping finds: a module is asked about once its children
    are decided on, with the number of parameters that are in no unit yet.

    Args:
        model: The model.
        decide: The policy, or None for no units.
        leave: Modules that are ignored.
    """
    if decide is None:
        return []
    left = {parameter for module in leave for parameter in module.parameters()}
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> int:
        """Decide on a module and what it holds; return how many parameters are in units."""
        numel = sum(p.numel() for p in module.parameters() if p not in left)
        if decide(module=module, recurse=True, nonwrapped_numel=numel):
            inside = sum(visit(child) for child in module.children() if child not in leave)
            rest = numel - inside
            chosen = decide(module=module, recurse=False, nonwrapped_numel=rest)
            if module is not model and chosen:
                found.append(module)
                return numel
            return inside
        return 0

    visit(model)
    return list(dict.fromkeys(found))


def refuse_ties_across(model: nn.Module, inner: Collection[nn.Module]) -> None:
    """Refuse a parameter that would lie in two units; each unit would train its own copy.

    Raises:
        WrapError: Naming both places.
    """
    seen: dict[int, tuple[str, str, nn.Module]] = {}
    for name, unit_name, unit, parameter in _placed(model, "", "", model, set(inner)):
        first, first_unit_name, first_unit = seen.setdefault(id(parameter), (name, unit_name, unit))
        if unit is not first_unit:
            raise WrapError(
                f"{first} and {name} are one parameter, but lie in the units "
                f"{first_unit_name or 'root'} and {unit_name or 'root'}; wrap both in one unit"
            )


def _placed(
    module: nn.Module, name: str, unit_name: str, unit: nn.Module, inner: set[nn.Module]
) -> Iterator[tuple[str, str, nn.Module, nn.Parameter]]:
    """Yield each parameter with its name, and with the unit that it lies in and its name."""
    if module in inner:
        unit_name, unit = name, module
    prefix = f"{name}." if name else ""
    for own, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + own, unit_name, unit, parameter
    for own, child in module._modules.items():
        if child is not None:
            yield from _placed(child, prefix + own, unit_name, unit, inner)
