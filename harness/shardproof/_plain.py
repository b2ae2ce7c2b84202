"""Values that can be sent as they are."""

from __future__ import annotations

from json import dumps  # a test may patch the module's own


def plain(value: object) -> object:
    """Return a value that JSON can hold as it is, else its representation."""
    try:
        dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value
