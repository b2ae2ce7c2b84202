"""How a case ends for implementations that can do less, or say less."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardproof import Launch, RankFailure, RankOutcome
from shardproof_suites import _preload  # noqa: F401
from shardproof_suites.capability import DEFAULT_CAPABILITIES, Capability
from shardproof_suites.cases import all_cases
from shardproof_suites.cell import Cell
from shardproof_suites.implementation import LoadResult, Ref, TrainState, Unsupported
from shardproof_suites.implementations.reference import Reference
from shardproof_suites.importing import load_implementation
from shardproof_suites.outcome import Kind, Outcome
from shardproof_suites.running import Run, judge

CASES = {case.id: case for case in all_cases()}
FRESH = "roundtrip/4-to-4/hybrid-shard-orig-bfloat16-sharded/uneven-fresh"
STEPPED = "roundtrip/4-to-4/full-shard-flat-float32-full/uneven-stepped"
CAST = "dtype/refused/fully-shard-float32-sharded/uneven-as-bfloat16"


class LoadsInPrepare(Reference):
    """Can't load into a model that is wrapped."""

    name = "loads-in-prepare"
    capabilities = DEFAULT_CAPABILITIES - {Capability.LOAD}

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self._preparing = False

    def prepare(self, module, make_optimizer, resume=None):  # type: ignore[no-untyped-def]
        self._preparing = resume is not None
        return super().prepare(module, make_optimizer, resume)

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        if not self._preparing:
            raise Unsupported(Capability.LOAD, "load in prepare")
        return super().load_(state, ref, strict=strict)


class IgnoresResume(LoadsInPrepare):
    """Takes a checkpoint to resume from and starts anew."""

    def load_(self, state: TrainState, ref: Ref, *, strict: bool = True) -> LoadResult:
        return LoadResult()


def _end(name: str, case: str, launch: Launch, folder: Path) -> str:
    text = f"{__file__}:{name}"
    load_implementation(text)
    return str(judge(CASES[case], Run(launch, text, folder)).outcome)


@pytest.mark.parametrize(
    ("name", "case", "outcome"),
    [
        ("LoadsInPrepare", FRESH, "pass"),
        ("LoadsInPrepare", CAST, "pass"),
        (
            "LoadsInPrepare",
            STEPPED,
            "unsupported(loads-in-prepare doesn't claim 'load', which loads into a model that is "
            "already sharded, in place)",
        ),
        ("IgnoresResume", FRESH, "violation(missing)"),
        ("IgnoresResume", CAST, "violation(not-refused)"),
    ],
)
def test_an_implementation_may_load_while_it_wraps(
    name: str, case: str, outcome: str, launch: Launch, tmp_path: Path
) -> None:
    assert _end(name, case, launch, tmp_path) == outcome


def test_a_failure_that_no_rank_explains_is_the_harnesss(tmp_path: Path) -> None:
    def launch(*_: object, **__: object) -> None:
        outcomes = tuple(RankOutcome(rank, "woken", "lost a peer") for rank in range(2))
        raise RankFailure("followed on ranks 0-1", outcomes)

    run = Run(launch, f"{Reference.__module__}:Reference", tmp_path)  # type: ignore[arg-type]
    verdict = judge(CASES[FRESH], run)
    assert verdict.outcome == Outcome(Kind.HARNESS_ERROR, "no rank says why it failed")
    assert verdict.text == "followed on ranks 0-1"
