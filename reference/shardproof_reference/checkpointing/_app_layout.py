"""The names that Modalities gives a DCP folder: everything under `app`, the optimizer flattened.

It stores the options of a parameter group once for each parameter, under the parameter's name, so
which parameters are one group is the optimizer's own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from shardproof_reference.checkpointing._entries import Entries, Path, key_of
from shardproof_reference.checkpointing._optimizer import GROUPS, STATE, group_path
from shardproof_reference.errors import LoadError

_OPTIMIZER: Path = ("app", "optimizer")

Groups = Sequence[Sequence[str]]


def to_app(entries: Entries, groups: Groups) -> Entries:
    """Return entries under the names that Modalities stores them with.

    Args:
        entries: What is to be saved.
        groups: The names of each parameter group's parameters.
    """
    found = Entries()
    for path, piece in entries.pieces.items():
        for stored in _stored(path, groups):
            found.pieces[stored] = piece
    for path, value in entries.objects.items():
        for stored in _stored(path, groups):
            found.objects[stored] = value
    return found


def from_app(
    stored: Mapping[Path, object], groups: Groups, value_of: Callable[[Path], object]
) -> tuple[dict[Path, object], dict[Path, Path]]:
    """Return what a folder holds under our names, and where it is stored.

    Args:
        stored: What it holds, under its own.
        groups: The names of each parameter group's parameters, in the optimizer that is to have it.
        value_of: Reads what is stored under a path: an option may be a tensor.

    Raises:
        LoadError: A name that Modalities doesn't give, or parameters of one group whose options
            differ.
    """
    found: dict[Path, object] = {}
    places: dict[Path, Path] = {}
    options: dict[str, dict[str, Path]] = {}
    for path, value in stored.items():
        if path[:1] != ("app",):
            raise LoadError(f"{key_of(path)} isn't under app, as all that Modalities stores")
        ours = path[1:]
        if path[:2] == _OPTIMIZER:
            kind, _, rest = str(path[2]).partition(".")
            name, _, last = rest.rpartition(".")
            if kind == GROUPS[-1]:
                options.setdefault(name, {})[last] = path
                continue
            ours = (*STATE, name, last)
        found[ours], places[ours] = value, path
    for index, members in enumerate(groups):
        held = [name for name in members if name in options]
        found[group_path(index, "params")] = held
        for name in held:
            for option, path in options.pop(name).items():
                ours = group_path(index, option)
                first = places.setdefault(ours, path)
                found[ours] = stored[first]
                if value_of(first) != value_of(path):
                    raise LoadError(
                        f"{key_of(path)} is {value_of(path)!r} in the checkpoint, but {held[0]}, "
                        f"which is in the same parameter group here, has {value_of(first)!r}"
                    )
    for number, (name, own) in enumerate(options.items(), start=len(groups)):
        found[group_path(number, "params")] = [name]
        found |= {group_path(number, option): stored[path] for option, path in own.items()}
    return found, places


def _stored(path: Path, groups: Groups) -> Iterator[Path]:
    """Yield the paths under which one of ours is stored."""
    if path[:2] == STATE:
        yield (*_OPTIMIZER, f"state.{path[2]}.{path[3]}")
    elif path[:2] != GROUPS:
        yield ("app", *path)
    elif path[3] != "params":
        _, _, index, option = path
        for name in groups[int(index)]:
            yield (*_OPTIMIZER, f"param_groups.{name}.{option}")
