"""What the reference refuses, in the order of a checkpoint's life.

`PluginError`: a setting of the FSDP plugin that can't be, found when it is built or set.
`WrapError`: the model can't be sharded as asked; the caller's settings.
`SaveError`: state that can't be stored, or a target that can't be written; nothing is left behind.
`LoadError`: files that are missing or don't fit the model; nothing of the target was changed. Files
that prove damaged only while they are read can leave it changed in part.

Saving and loading are collective, and so are their errors: a rank that found nothing wrong itself
raises what the first rank with an error found.
"""

from __future__ import annotations


class CheckpointError(Exception):
    """Base of the errors that the reference raises itself.

    Attributes:
        message: What is wrong.
        rank: The first rank that found it, once all of them know.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message, rank)
        self.message = message
        self.rank = rank

    def __str__(self) -> str:
        return self.message if self.rank is None else f"rank {self.rank}: {self.message}"


class PluginError(CheckpointError, ValueError):
    """A setting has a value that it can't have, or two settings can't work together."""


class WrapError(CheckpointError):
    """The model can't be sharded as asked."""


class SaveError(CheckpointError):
    """The checkpoint could not be written."""


class LoadError(CheckpointError):
    """The checkpoint can't be read, or doesn't fit the model and optimizer."""
