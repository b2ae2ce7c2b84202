"""Compare what one rank holds of a model and its optimizer with the closed form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from shardproof_suites.live import (
    LiveParameter,
    buffer_shards,
    live_parameters,
    optimizer_numbers,
    optimizer_shards,
    parameter_shards,
)
from shardproof_suites.oracle import Difference, Entry, LocalShard, check, step_value
from shardproof_suites.training import STATES, STEP_KIND, group_of
from shardproof_suites.violation import Code, Violation

if TYPE_CHECKING:
    from shardproof_suites.expectation import Expectation
    from shardproof_suites.implementation import TrainState


def value_violations(state: TrainState, expected: Expectation, clause: str) -> list[Violation]:
    """Compare names, then dtypes, shapes and bits, then numbers and options; local to a rank.

    Args:
        state: What `prepare` returned.
        expected: What the unwrapped model has.
        clause: The clause that a violation breaks.
    """
    parameters = live_parameters(state.modules)
    shards = [
        *parameter_shards(parameters),
        *buffer_shards(state.modules),
        *optimizer_shards(state.optimizers, parameters),
    ]
    found = [
        *_names(shards, parameters, expected),
        *_ties(parameters, expected),
        *_tensors(shards, expected),
        *_steps(state, parameters, expected),
        *_options(state, expected),
        *_members(state, parameters),
    ]
    return [Violation(clause, code, item, details) for code, item, details in found]


_Found = Iterator[tuple[Code, str, tuple[str, ...]]]


def _names(
    shards: Iterable[LocalShard], parameters: Iterable[LiveParameter], expected: Expectation
) -> _Found:
    """Compare which tensors there are; state of a shard without elements may be absent."""
    live = {(shard.role, shard.fqn) for shard in shards}
    wanted = {(entry.role, entry.fqn) for entry in expected.catalogue}
    empty = {one.shard.fqn for one in parameters if one.shard.tensor.numel() == 0}
    for role, fqn in sorted(wanted - live):
        if role not in STATES or fqn not in empty:
            yield Code.MISSING, f"{role} of {fqn}", ("wanted by the model, not there",)
    for role, fqn in sorted(live - wanted):
        yield Code.UNEXPECTED, f"{role} of {fqn}", ("there, not in the model",)


def _ties(parameters: Iterable[LiveParameter], expected: Expectation) -> _Found:
    """Compare the names of tied parameters."""
    live = {one.names[0]: one.names for one in parameters}
    for fqn, names in expected.names.items():
        if fqn in live and set(live[fqn]) != set(names):
            details = f"wanted one tensor for {', '.join(names)}", f"found {', '.join(live[fqn])}"
            yield Code.TIE_BROKEN, f"param of {fqn}", details


def _tensors(shards: Iterable[LocalShard], expected: Expectation) -> _Found:
    """Compare dtype, shape and bits of each tensor that the model has."""
    entries: dict[tuple[str, str], Entry] = {
        (entry.role, entry.fqn): entry for entry in expected.catalogue
    }
    for shard in shards:
        entry = entries.get((shard.role, shard.fqn))
        if entry is None:
            continue
        if shard.global_shape != entry.shape:
            details = f"wanted shape {entry.shape}", f"found {shard.global_shape}"
            yield Code.WRONG_SHAPE, f"{shard.role} of {shard.fqn}", details
            continue
        wanted = replace(shard, dtype=entry.dtype)
        difference = check(wanted, expected.oracle, catalogue=expected.catalogue)
        if difference is not None:
            yield _of_difference(difference)


def _of_difference(found: Difference) -> tuple[Code, str, tuple[str, ...]]:
    details = [
        f"wanted {found.expected_dtype}, local shape {found.expected_shape}",
        f"found {found.found_dtype}, local shape {found.found_shape}",
    ]
    code = Code.WRONG_VALUE
    if found.expected_dtype is not found.found_dtype:
        code = Code.WRONG_DTYPE
    elif found.index is None:
        code = Code.WRONG_SHAPE
        details += [found.reason] if found.reason else []
    else:
        place = ",".join(map(str, found.index))
        total = math.prod(found.found_shape)
        details.append(f"{found.wrong} of {total} elements are wrong, the first at [{place}]")
        details.append(f"there wanted {found.expected}, found {found.found}")
    details += [f"origin: {found.origin}"] if found.origin else []
    return code, f"{found.role} of {found.fqn}", tuple(details)


def _steps(state: TrainState, parameters: list[LiveParameter], expected: Expectation) -> _Found:
    """Compare the optimizer's counters, which a flat parameter has one of for several names."""
    numbers = optimizer_numbers(state.optimizers, parameters)
    counted = {fqn for number in numbers if number.name == "step" for fqn in number.fqns}
    for one in parameters:
        if one.shard.tensor.numel() and one.names[0] not in counted:
            details = ("wanted by the optimizer, not there",)
            yield Code.MISSING, f"step of {one.names[0]}", details
    for number in numbers:
        wanted = step_value(number.fqns[0], expected.oracle)
        if number.kind != STEP_KIND:
            kinds = f"wanted {STEP_KIND}", f"found {number.kind}"
            yield Code.WRONG_DTYPE, f"{number.name} of {number.fqns[0]}", kinds
        elif number.get() != wanted:
            wrong = f"wanted {wanted}", f"found {number.get():g}"
            yield Code.WRONG_VALUE, f"{number.name} of {number.fqns[0]}", wrong


def _options(state: TrainState, expected: Expectation) -> _Found:
    """Compare each group's options, types included."""
    groups = [group for optimizer in state.optimizers for group in optimizer.param_groups]
    if len(groups) != len(expected.options):
        details = f"wanted {len(expected.options)}", f"found {len(groups)}"
        yield Code.WRONG_OPTION, "number of parameter groups", details
    for index, (group, wanted) in enumerate(zip(groups, expected.options, strict=False)):
        for option, value in wanted.items():
            found = group.get(option)
            if type(found) is not type(value) or found != value:
                details = f"wanted {value!r}", f"found {found!r}"
                yield Code.WRONG_OPTION, f"{option} of parameter group {index}", details


def _members(state: TrainState, parameters: Iterable[LiveParameter]) -> _Found:
    """Compare which parameters each group trains; they must be the model's own tensors."""
    groups = [group for optimizer in state.optimizers for group in optimizer.param_groups]
    trained = [{id(tensor) for tensor in group["params"]} for group in groups]
    for one in parameters:
        found = [index for index, ids in enumerate(trained) if id(one.optimized) in ids]
        wanted = group_of(one.names[0])
        if found != [wanted]:
            details = f"wanted in parameter group {wanted}", f"found in {found or 'none'}"
            yield Code.WRONG_OPTION, f"param of {one.names[0]}", details
