"""Which modules of a model become units: each is sharded, gathered and freed by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

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


def also(chosen: Collection[nn.Module], decide: Policy | None) -> Policy | None:
    """Return a policy that makes units of some modules, too."""
    if not chosen:
        return decide

    def both(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        theirs = {"module": module, "recurse": recurse, "nonwrapped_numel": nonwrapped_numel}
        return recurse or module in chosen or (decide is not None and decide(**theirs))

    return both


def _classes(model: nn.Module, class_names: Iterable[str] | None) -> set[type[nn.Module]]:
    found: dict[str, set[type[nn.Module]]] = {}
    for module in model.modules():
        found.setdefault(type(module).__name__, set()).add(type(module))
    # A model names the classes of all its variants.
    own = getattr(model, "_no_split_modules", None) or ()
    names = class_names or [name for name in own if name in found]
    if not names:
        raise WrapError(
            f"{TRANSFORMER} needs transformer_cls_names_to_wrap, as {type(model).__name__} names "
            "no classes that it has in _no_split_modules"
        )
    missing = [name for name in names if name not in found]
    if missing:
        raise WrapError(
            f"transformer_cls_names_to_wrap has {missing[0]}, but the model has no such module; "
            f"it has {', '.join(sorted(found))}"
        )
    return set().union(*(found[name] for name in names))


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


class Placed(NamedTuple):
    """A parameter under one of its names, with the unit and the module that it lies in."""

    name: str
    parameter: nn.Parameter
    unit: nn.Module
    module: nn.Module


def placed(
    module: nn.Module, inner: Collection[nn.Module], unit: nn.Module, name: str = ""
) -> Iterator[Placed]:
    """Yield each parameter that a module holds, under each of its names.

    Args:
        module: The module.
        inner: The units, without the model.
        unit: The unit that the module is in if it is none itself: the model, at first.
        name: The module's name.
    """
    unit = module if module in inner else unit
    prefix = f"{name}." if name else ""
    for own, parameter in module._parameters.items():
        if parameter is not None:
            yield Placed(prefix + own, parameter, unit, module)
    for own, child in module._modules.items():
        if child is not None:
            yield from placed(child, inner, unit, prefix + own)
