"""How ranks are started: forked, forked from a clean process, or spawned."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from shardproof import _blueprint, _capture, _workers
from shardproof._blueprint import Blueprint
from shardproof._clean import Dirt
from shardproof._zygote import RankMain, Unclean, Zygote, ZygoteMain, serve

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_IMPORT = 120.0  # seconds that importing torch may take on a busy machine
_COLLECT = 300.0  # and collecting, too


@dataclass(frozen=True, slots=True)
class Started:
    """A zygote, and how ranks come from it.

    Attributes:
        zygote: The zygote.
        how: The words for it.
        form_timeout: Seconds that the start of a set of ranks and of their group may take.
    """

    zygote: Zygote
    how: str
    form_timeout: float = 60.0


def start(session: pytest.Session, basetemp: Path, method: str, dirt: Dirt | None) -> Started:
    """Start a zygote.

    Args:
        session: The collected session.
        basetemp: The base temporary folder.
        method: `fork` or `spawn`.
        dirt: Why this process can't be forked, or None.

    Raises:
        StartError: It did not come up.
    """
    _fill_standard_descriptors()
    if method == "fork" and dirt is None:
        return Started(_forking(session), "fork")
    if method == "fork" and dirt is not None and dirt.curable:
        try:
            zygote = _with_blueprint(session, basetemp, _clean)
        except Unclean:
            pass  # such work, and it sets the number of threads itself
        else:
            return Started(zygote, f"fork from a clean process ({dirt.text})")
    how = "spawn" if dirt is None else f"spawn ({dirt.text})"
    return Started(_with_blueprint(session, basetemp, partial(_spawning, session)), how, _COLLECT)


def _fill_standard_descriptors() -> None:
    """Open those of 0 to 2 that are closed, so that no socket is taken for a standard stream."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _with_blueprint(
    session: pytest.Session, basetemp: Path, start_zygote: Callable[[int], Zygote]
) -> Zygote:
    blueprint = Blueprint.of(session, basetemp).file()
    try:
        return start_zygote(blueprint)
    finally:
        os.close(blueprint)


def _forking(session: pytest.Session) -> Zygote:
    def rank_main(spec: dict[str, Any], descriptors: list[int]) -> NoReturn:
        from shardproof import _rank

        _rank.main(session, spec, descriptors)

    return Zygote(_serving(session, rank_main), _IMPORT)


def _serving(session: pytest.Session, rank_main: RankMain) -> ZygoteMain:
    return lambda control, scratch: serve(control, scratch, rank_main, partial(facts, session))


def _clean(blueprint: int) -> Zygote:
    return Zygote(partial(_blueprint.become_zygote, blueprint), _COLLECT)


def _spawning(session: pytest.Session, blueprint: int) -> Zygote:
    rank_main = partial(_blueprint.become_rank, blueprint)
    return Zygote(_serving(session, rank_main), _IMPORT)


def facts(session: pytest.Session) -> dict[str, Any]:
    """In the zygote: import torch and learn what there is."""
    _capture.leave_inherited(session.config)
    _fill_standard_descriptors()  # pytest closes again what was closed
    import torch
    import torch.distributed as dist

    # Here, so that not every rank imports it.
    from shardproof import _rank  # noqa: F401

    slot, slots = _workers.place(session.config)
    if slots > 1:
        # In the environment, so that also what a test makes of LOCAL_RANK is this worker's own.
        os.environ[_VISIBLE] = _workers.gpus_of(
            slot, slots, torch.cuda.device_count(), os.environ.get(_VISIBLE)
        )
    nccl = dist.is_available() and dist.is_nccl_available()
    return {"gpus": torch.cuda.device_count(), "nccl": nccl}
