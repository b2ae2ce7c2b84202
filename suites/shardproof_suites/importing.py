"""Find an implementation by its import string; every rank imports it again by the same one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from shardproof_suites.implementation import Implementation

_MEMBERS = ("name", "version", "capabilities", "prepare", "save")


class ImplementationNotFound(Exception):
    """An import string leads to no usable class; usually a typing error of who gave it."""


def absolute(text: str, folder: Path) -> str:
    """Make the file of a `path/file.py:Class` absolute, so that it means the same everywhere.

    Args:
        text: `pkg.mod:Class` or `path/file.py:Class`.
        folder: What a relative path is relative to.
    """
    place, colon, name = text.rpartition(":")
    if not place.endswith(".py"):
        return text
    return f"{(folder / place).resolve()}{colon}{name}"


def load_implementation(text: str) -> type[Implementation]:
    """Import a class.

    Args:
        text: `pkg.mod:Class`, or `/path/file.py:Class` with an absolute path.

    Raises:
        ImplementationNotFound: It says which part of the string is wrong, and how.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise ImplementationNotFound(
            f"{text!r} names no implementation: expected package.module:Class or path/file.py:Class"
        )
    module = _module(place)
    found = getattr(module, name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if _is_implementation(value)]
        known = ", ".join(classes) or "none"
        raise ImplementationNotFound(f"{place} has no {name}; implementations there: {known}")
    if not _is_implementation(found):
        lacks = [member for member in _MEMBERS if not hasattr(found, member)]
        what = f"lacks {', '.join(lacks)}" if isinstance(found, type) else "is no class"
        raise ImplementationNotFound(f"{text} is no implementation: it {what}")
    return found  # type: ignore[no-any-return]


def _is_implementation(value: Any) -> bool:
    return (
        isinstance(value, type)
        and value is not Implementation
        and all(hasattr(value, member) for member in _MEMBERS)
    )


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        return _module_of_file(Path(place))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise ImplementationNotFound(
            f"no module named {error.name!r} ({place}): nothing on sys.path has it; run "
            "`python -m pytest`, set pythonpath in the ini file, or name a file: path/file.py:Class"
        ) from None


def _module_of_file(file: Path) -> ModuleType:
    """Import a file under a name made from its path, once a process."""
    if not file.is_absolute():
        raise ImplementationNotFound(f"{file} is relative; ranks need an absolute path")
    name = f"_conformance_{file.stem}_{sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    specification = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or specification is None or specification.loader is None:
        raise ImplementationNotFound(f"no file {file}")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
