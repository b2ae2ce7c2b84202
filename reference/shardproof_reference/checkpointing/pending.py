"""A save that goes on beside the training."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import torch.distributed as dist

from shardproof_reference.checkpointing._collective import over


class Pending:
    """What has begun to be saved: a snapshot, so that training may go on.

    Nothing is saved before `wait` has returned. It is collective, so all ranks call it in the same
    order among their saves.
    """

    def __init__(self, write: Callable[[], None]) -> None:
        """Begin; collective.

        Args:
            write: Saves, in a thread and over a gloo group of its own.
        """
        self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo")
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, args=(write, self._group), name="shardproof-save")
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether this rank's part has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until it is saved; collective.

        Raises:
            SaveError: On every rank; nothing is left behind.
        """
        self._thread.join()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None
        if self._error is not None:
            raise self._error

    def _run(self, write: Callable[[], None], group: dist.ProcessGroup) -> None:
        try:
            with over(group):
                write()
        except Exception as error:
            self._error = error  # for `wait` to raise
