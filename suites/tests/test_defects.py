"""Each defect is caught by the cases that it lists, with its code, and by no other probe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from shardproof import Launch
from shardproof_suites import _preload  # noqa: F401
from shardproof_suites.case import Case
from shardproof_suites.cases import all_cases
from shardproof_suites.defects import DEFECTS, PROBES, Defect
from shardproof_suites.importing import load_implementation
from shardproof_suites.outcome import Kind, Outcome
from shardproof_suites.running import Run, judge

CASES = {case.id: case for case in all_cases()}
REFERENCE = "shardproof_suites.implementations.reference:Reference"

# Imported before ranks are forked, as a door does it.
for _text in (REFERENCE, *(defect.implementation for defect in DEFECTS)):
    load_implementation(_text)


def _outcomes(implementation: str, launch: Launch, folder: Path) -> dict[str, Outcome]:
    outcomes = {}
    for number, name in enumerate(PROBES):
        root = folder / str(number)
        root.mkdir()
        outcomes[name] = judge(CASES[name], Run(launch, implementation, root)).outcome
    return outcomes


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_fails_exactly_its_probes(defect: Defect, launch: Launch, tmp_path: Path) -> None:
    outcomes = _outcomes(defect.implementation, launch, tmp_path)
    failed = {name: str(outcome) for name, outcome in outcomes.items() if outcome.failed}
    assert failed == {name: f"violation({code.value})" for name, code in defect.fails.items()}


def test_the_reference_fails_no_probe(launch: Launch, tmp_path: Path) -> None:
    outcomes = _outcomes(REFERENCE, launch, tmp_path)
    kinds = Counter(outcome.kind for outcome in outcomes.values())
    assert kinds == {Kind.PASS: len(PROBES) - 1, Kind.UNSUPPORTED: 1}


def test_no_two_defects_fail_the_same_probes() -> None:
    sets = [frozenset(defect.fails) for defect in DEFECTS]
    assert len(set(sets)) == len(sets)
    assert all(sets)


def _behaviour(case: Case) -> tuple[str, str]:
    area, behaviour, *_ = case.id.split("/")
    return area, behaviour


def test_every_behaviour_is_failed_by_some_defect() -> None:
    failed = {_behaviour(CASES[name]) for defect in DEFECTS for name in defect.fails}
    assert failed == {_behaviour(case) for case in CASES.values()}
