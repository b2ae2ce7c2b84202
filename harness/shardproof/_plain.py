"""Values that can be sent as they are."""

from __future__ import annotations

from json import dumps  # a test may patch the module's own
from typing import Any


def plain(value: object) -> object:
    """Return a value that JSON can hold as it is, else its representation."""
    try:
        dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


def encodable(value: Any) -> Any:
    """Return a value of JSON's kinds with each lone surrogate in its texts as an escape.

    No encoding has them, and neither xdist nor a file of junitxml takes a text that holds one.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(item) for item in value]
    return value
