"""The `launch` fixture: a module-level function on fresh ranks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from shardproof._conversation import exit_asked
from shardproof._report import death, ended_late, fold, fold_alike, hang, say_ranks
from shardproof.errors import RankFailure, RankOutcome

if TYPE_CHECKING:
    from shardproof._controller import Controller
    from shardproof._conversation import Ending

T = TypeVar("T")


class Launch:
    """Runs functions on fresh ranks; what the `launch` fixture gives."""

    def __init__(self, controller: Controller, nodeid: str) -> None:
        self._controller = controller
        self._nodeid = nodeid
        self._count = 0

    def __call__(
        self,
        function: Callable[..., T],
        *args: Any,
        world_size: int | None = None,
        backend: str | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[T]:
        """Run a function on fresh ranks that share one default process group.

        Each call starts new processes, so several launches in one test share nothing but the
        disk. Inside, `shardproof.current_world()` tells the rank.

        Args:
            function: A function of an importable module or of the test's module.
            *args: Its arguments; anything that can be pickled.
            world_size: How many ranks; by default `--nproc`, else all GPUs, else 4.
            backend: `gloo`, `nccl` or `cpu:gloo,cuda:nccl`; by default what is set.
            timeout: Seconds from when the ranks are ready; by default `--ranks-timeout`.
            **kwargs: Its keyword arguments.

        Returns:
            What each rank returned, in rank order.

        Raises:
            RankFailure: It did not return on every rank.
            StartError: The ranks did not come up.
            TypeError: The function or an argument can't be pickled.
        """
        __tracebackhide__ = True
        controller = self._controller
        size = world_size or controller.settings.most(controller.start().facts["gpus"])
        refusal = controller.refusal(size, backend)
        if refusal:
            (pytest.fail if controller.settings.strict else pytest.skip)(refusal)
        payload = _pickled(function, args, kwargs)
        limit = timeout or controller.settings.timeout
        name = f"{self._nodeid}/{self._count}"
        ranks = controller.new_ranks(size, backend, name)
        self._count += 1
        try:
            endings = ranks.run(name, "call", {}, limit, payload)
        finally:
            ranks.finish(limit) if ranks.whole else ranks.kill()
        if asked := exit_asked(endings):
            pytest.exit(*asked)
        outcomes = tuple(_outcome(ending) for ending in endings)
        if any(outcome.kind != "returned" for outcome in outcomes):
            name = getattr(function, "__qualname__", repr(function))
            raise RankFailure(_failure(name, endings, outcomes, limit), outcomes)
        return [_result(ending, outcomes) for ending in endings]


def _pickled(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    __tracebackhide__ = True
    try:
        return pickle.dumps((function, args, kwargs))
    except Exception as error:
        raise TypeError(
            f"launch sends the function and its arguments to other processes, and this can't be "
            f"pickled: {error}. Use a function at module level and plain arguments."
        ) from None


def _result(ending: Ending, outcomes: tuple[RankOutcome, ...]) -> Any:
    assert ending.done is not None
    try:
        return pickle.loads(ending.done.payload)
    except Exception as error:
        text = f"what rank {ending.rank} returned can't be unpickled: {error}"
        raise RankFailure(text, outcomes) from error


def _outcome(ending: Ending) -> RankOutcome:
    if ending.killed == "deadline":
        return RankOutcome(ending.rank, "timeout", "did not end in time")
    if ending.killed:
        return RankOutcome(ending.rank, "woken", ended_late(ending))
    if ending.death:
        return RankOutcome(ending.rank, "died", ending.death, detail=death(ending))
    assert ending.done is not None
    error = ending.done.fields.get("error")
    if error is None:
        return RankOutcome(ending.rank, "returned")
    if ending.lost_peer:
        error = {**error, "message": f"lost a peer ({ending.lost_peer})"}
    return RankOutcome(ending.rank, "woken" if ending.lost_peer else "raised", **error)


def _failure(
    name: str, endings: Sequence[Ending], outcomes: Sequence[RankOutcome], timeout: float
) -> str:
    """Return the report: the first cause, other causes, what followed, the output."""
    at = {ending.rank: ending.failed_at or 0.0 for ending in endings}
    failed = sorted((o for o in outcomes if o.kind != "returned"), key=lambda o: at[o.rank])
    causes = [o for o in failed if o.kind != "woken"] or failed[:1]
    followed = [o for o in failed if o not in causes]
    lines = []
    if any(outcome.kind == "timeout" for outcome in causes):
        lines.append(hang(endings, timeout, name))
    for kind, verb in (("raised", "failed"), ("woken", "failed"), ("died", "ended")):
        told = [(o.rank, o.detail or o.message) for o in causes if o.kind == kind]
        for ranks, text in fold_alike(told):
            lines += [f"{name} {verb} on {say_ranks(ranks)} of {len(endings)}:", text.rstrip()]
    for ranks, text in fold((o.rank, o.message) for o in followed):
        lines.append(f"followed on {say_ranks(ranks)}: {text}")
    for ranks, text in fold((e.rank, e.output.rstrip()) for e in endings if e.output.strip()):
        lines += [f"{say_ranks(ranks)} printed:", text]
    return "\n".join(lines)
