"""The registry: ids, clauses, cells, and what the matrix must cover."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from shardproof_suites.case import Case, lint
from shardproof_suites.cases import all_cases
from shardproof_suites.cell import Dtype, StateDictType, Strategy
from shardproof_suites.legality import legal
from shardproof_suites.violation import Code

CASES = all_cases()
CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"
PACKAGE = Path(__file__).parents[1] / "shardproof_suites"


def _clauses() -> dict[str, str]:
    found = re.findall(r"^\*\*([a-z]+\.\d+)\*\* (MUST|MAY) ", CONTRACT.read_text(), re.MULTILINE)
    assert len(dict(found)) == len(found)
    return dict(found)


def test_ids_follow_the_grammar_and_are_unique() -> None:
    assert list(lint(CASES)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("roundtrip/4-to-4/full", None),
        ("roundtrip/4-to-4/full/uneven", None),
        ("roundtrip/4-to-4", "is no area"),
        ("roundtrip/4-to-4/full/uneven/more", "is no area"),
        ("Roundtrip/4-to-4/full", "is no area"),
        ("roundtrip/4_to_4/full", "is no area"),
        ("roundtrip/-4/full", "is no area"),
        ("roundtrip//full", "is no area"),
    ],
)
def test_lint_finds_ids_that_break_the_grammar(text: str, problem: str | None) -> None:
    problems = list(lint([replace(CASES[0], id=text)]))
    assert [problem in one for one in problems if problem] == ([True] if problem else [])


def test_lint_finds_ids_that_are_used_twice() -> None:
    assert list(lint([CASES[0], CASES[0]])) == [f"{CASES[0].id!r} is used 2 times"]


def test_every_clause_that_a_case_cites_is_in_the_contract() -> None:
    assert {case.clause for case in CASES} <= _clauses().keys()


def test_every_must_has_a_case() -> None:
    musts = {clause for clause, word in _clauses().items() if word == "MUST"}
    assert musts == {case.clause for case in CASES}


def test_every_clause_and_code_in_the_source_exists() -> None:
    source = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    cited = set(re.findall(r'"((?:sharding|saving|loading|refusing)\.\d+)"', source))
    assert cited <= _clauses().keys()
    unused = [code.name for code in Code if f"Code.{code.name}" not in source]
    assert unused == []


def test_every_clause_has_a_reason() -> None:
    paragraphs = re.split(r"\n\n", CONTRACT.read_text())
    clauses = [one for one in paragraphs if one.startswith("**")]
    assert len(clauses) == len(_clauses())
    assert [one for one in clauses if "\n*Reason: " not in one] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_cells_are_legal(case: Case) -> None:
    assert [legal(cell) for cell in case.cells] == [None] * len(case.cells)


def test_both_world_pairs_cover_every_strategy_dtype_and_type() -> None:
    round_trips = {
        (
            tuple(cell.world_size for cell in case.cells),
            *(getattr(case.cells[0], name) for name in ("strategy", "dtype", "state_dict_type")),
            case.cells[0].use_orig_params,
        )
        for case in CASES
        if case.area in ("roundtrip", "reshard")
    }
    wanted = {
        (worlds, strategy, dtype, kind, original)
        for worlds, strategy, dtype, kind in product(
            ((4, 4), (4, 2)),
            Strategy,
            Dtype,
            (StateDictType.FULL, StateDictType.SHARDED),
        )
        for original in ((False, True) if strategy.fsdp_version == 1 else (None,))
    }
    assert wanted <= round_trips
