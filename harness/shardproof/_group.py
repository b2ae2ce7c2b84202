"""The default process group of a rank: form it, see whether it is whole, drop it.

torch is imported by the functions: the pytest process itself never needs it.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardproof import _linux
from shardproof._settings import needs_gpus

if TYPE_CHECKING:
    import torch.distributed as dist

LOOPBACK = "127.0.0.1"
_LEAVE = 2.0  # seconds that each step of leaving a group of NCCL may take


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands: its rank, the world size, its backend and its device's name."""

    rank: int
    world_size: int
    backend: str
    device: str

    def resized(self, world_size: int) -> Place:
        """Return the same place in a world of another size."""
        return replace(self, world_size=world_size)


def form(place: Place, store: str, timeout: float) -> None:
    """Form the default process group with a store of its own; collective.

    The store is a file. A TCPStore asks the name service who each client is; where that is slow
    to answer for the loopback, one group in ten takes 5 s to form (torch 2.13).

    Args:
        place: This rank's place.
        store: Path of the store, the same on all ranks, and new.
        timeout: Seconds that the rendezvous may take.

    Raises:
        RuntimeError: From torch, when the peers don't come in time.
    """
    import torch
    import torch.distributed as dist

    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world_size))
    os.environ.update(LOCAL_RANK=str(place.rank), LOCAL_WORLD_SIZE=str(place.world_size))
    if not dist.is_initialized():
        # A formation that failed half way has counted a group, and groups find each other in
        # the store by that count.
        dist.distributed_c10d._world.group_count = 0
    device = torch.device(place.device)
    file_store = dist.FileStore(store, place.world_size)  # type: ignore[attr-defined]
    file_store.set_timeout(timedelta(seconds=timeout))
    dist.init_process_group(
        place.backend,
        store=file_store,
        rank=place.rank,
        world_size=place.world_size,
        device_id=device if device.type != "cpu" else None,
    )


def export(port: int, backend: str) -> None:
    """Set what code that forms a group by `env://`, or gloo itself, looks for.

    Args:
        port: A free port, for a group that a test forms itself.
        backend: The backend of the default group.
    """
    os.environ.update(GROUP_RANK="0", MASTER_ADDR=LOOPBACK, MASTER_PORT=str(port))
    # Gloo otherwise resolves the host's name, which may be slow or lead outside.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    if needs_gpus(backend):
        # Its watchdog would end a process whose peer has left; torch before 2.9 records nothing
        # unless it is told to.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:
            os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")


def default() -> dist.ProcessGroup | None:
    """Return the default process group, or None."""
    import torch.distributed as dist

    return dist.group.WORLD if dist.is_initialized() else None


def reference() -> weakref.ref[Any] | None:
    """Return a weak reference to the default group, to know it by later."""
    group = default()
    return None if group is None else weakref.ref(group)


def is_whole(known: weakref.ref[Any] | None) -> bool:
    """Say whether the default group still is the one that `reference` gave."""
    return known is not None and known() is not None and known() is default()


def all_groups() -> dict[int, Any]:
    """Return every process group of this rank by its id, the default one included."""
    from torch.distributed.distributed_c10d import _world

    return {id(group): group for group in _world.pg_map}


def destroy_since(known: set[int]) -> None:
    """Destroy the groups that are not in `known`, the youngest first; not collective on gloo."""
    import torch.distributed as dist

    gone = [group for key, group in all_groups().items() if key not in known]
    for group in reversed(gone):
        if group is not default():
            dist.destroy_process_group(group)
    if gone:
        _forget_meshes()


def _forget_meshes() -> None:
    """Empty DTensor's caches: they hold meshes that equal later ones, of groups that are gone."""
    redistribute = sys.modules.get("torch.distributed.tensor._redistribute")
    if redistribute is None:
        return
    import torch
    from torch.distributed.tensor import DTensor

    redistribute._gen_transform_infos.cache_clear()
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", lambda: None)()


def counts() -> dict[str, int]:
    """Return how many collectives and transfers each group has begun, by the group's name."""
    from torch.distributed.distributed_c10d import _world

    groups: list[Any] = list(_world.pg_map)
    return {_world.pg_names[group]: group._get_sequence_number_for_group() for group in groups}


def connected_sockets() -> set[int]:
    """Return the inodes of this process's internet sockets that have a peer."""
    return {inode for inode, _ in _connections()}


def drop(keep: set[int], store: str) -> None:
    """Leave all process groups so that peers waiting in a collective wake with an error.

    Destroying a group closes its connections only when nothing refers to it any more, and a
    traceback or a wrapped model may. So the connections are shut first; that also ends the
    collectives of this rank's own that are under way, for which destroying would wait.

    Args:
        keep: Inodes of sockets that belong to something else.
        store: Path of the default group's store.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    on_gpus = needs_gpus(dist.get_backend())
    if on_gpus:
        _within_deadline(dist.distributed_c10d._abort_process_group)
    cut(keep, store)
    if dist.is_initialized():
        if on_gpus:
            _within_deadline(dist.destroy_process_group)
        else:
            _leave(dist.destroy_process_group)
    _forget_meshes()


def _within_deadline(leave: Callable[[], None]) -> None:
    """Leave groups of NCCL, or give up: a stuck GPU may hold it up, and this rank is to report.

    A rank that has not left can't form the next group; then the whole set is started anew.
    """
    thread = threading.Thread(target=_leave, args=(leave,), name="shardproof-leave", daemon=True)
    thread.start()
    thread.join(_LEAVE)


def _leave(leave: Callable[[], None]) -> None:
    with suppress(RuntimeError, ValueError, AssertionError, AttributeError):
        leave()


def cut(keep: set[int], store: str) -> None:
    """Shut this rank's connections to its peers, and break their store; safe from any thread.

    Whatever waits for a peer, on either side, then wakes with an error.

    Args:
        keep: Inodes of sockets that belong to something else.
        store: Path of the store.
    """
    for inode, descriptor in _connections():
        if inode not in keep:
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
                sock.shutdown(socket.SHUT_RDWR)
    # A FileStore that waits for a key opens its file again and again. A link to itself makes
    # that fail (ELOOP), while the store's destructor takes the file for gone.
    with suppress(OSError):
        loop = Path(f"{store}.{os.getpid()}")
        loop.symlink_to(store)
        loop.replace(store)


def _connections() -> list[tuple[int, int]]:
    """List (inode, descriptor) of the stream sockets that are connected over the internet."""
    found = []
    for descriptor in _linux.open_descriptors():
        with suppress(OSError):
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getpeername():
                    found.append((status.st_ino, descriptor))
    return found
