"""Reading a setting: a string in any case, a number as text, an enum, or the object itself."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

from shardproof_reference.errors import PluginError

E = TypeVar("E", bound=enum.Enum)

_TRUE = ("true", "1", "yes", "y", "t", "on")
_FALSE = ("false", "0", "no", "n", "f", "off")
_SHORT = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def refuse(field: str, value: object, allowed: str) -> PluginError:
    """Return the error of a value that a field can't have."""
    return PluginError(f"{field} is {allowed}, got {value!r}")


def flag(field: str, value: object) -> bool:
    """Read a bool, or a word for it as command lines and environments have it."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, str | int) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise refuse(field, value, "True or False")


def count(field: str, value: object, least: int) -> int:
    """Read a whole number, from text too."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refuse(field, value, f"a whole number from {least}")
    return value


def member(field: str, value: object, kind: type[E], names: Mapping[str, E]) -> E:
    """Read a member of one of torch's enums.

    Args:
        field: The setting's name.
        value: A name in any case, the member's number, as text too, or the member.
        kind: The enum.
        names: The members by the names that are allowed.
    """
    if isinstance(value, kind):
        return value
    word = str(value).strip() if isinstance(value, str | int) and value is not True else ""
    if word.upper() in names:
        return names[word.upper()]
    numbers = {str(one.value): one for one in names.values()}
    if word in numbers:
        return numbers[word]
    raise refuse(field, value, f"one of {', '.join(names)} (or its number)")


def dtype(field: str, value: object) -> torch.dtype | None:
    """Read a floating-point dtype: `bf16`, `bfloat16`, `torch.bfloat16`, or itself."""
    if value is None:
        return None
    found: Any = value
    if isinstance(value, str):
        word = value.strip().lower().removeprefix("torch.")
        found = _SHORT.get(word) or getattr(torch, word, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point or found.itemsize < 2:
        raise refuse(field, value, "a floating-point dtype from 16 bit, or fp32, fp16, bf16")
    return found


def names(field: str, value: object) -> tuple[str, ...]:
    """Read names, from text separated by commas too."""
    parts: Iterable[object] = value.split(",") if isinstance(value, str) else ()
    if isinstance(value, Iterable) and not isinstance(value, str):
        parts = value
    found = tuple(part.strip() if isinstance(part, str) else "" for part in parts)
    if not found or not all(found):
        raise refuse(field, value, "a list of names, or names separated by commas")
    return found


def function(field: str, value: object) -> Callable[..., Any]:
    """Read a function."""
    if not callable(value):
        raise refuse(field, value, "a function")
    return value
