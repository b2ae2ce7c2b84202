"""How outcomes are written, read and merged, and how findings are told."""

from __future__ import annotations

import pytest
from shardproof._report import say_ranks
from shardproof_suites.message import describe
from shardproof_suites.outcome import Kind, Outcome, worst
from shardproof_suites.violation import Code, Violation


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("detail", ["", "wrong-value", "needs 4 ranks (--nproc allows 2)"])
def test_an_outcome_survives_being_written(kind: Kind, detail: str) -> None:
    outcome = Outcome(kind, detail)
    assert Outcome.parse(str(outcome)) == outcome


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="fine"):
        Outcome.parse("fine(really)")


def test_the_worst_outcome_wins() -> None:
    ordered = [Outcome(kind) for kind in Kind]
    for place, outcome in enumerate(ordered):
        assert worst(ordered[: place + 1]) == outcome
        assert worst(reversed(ordered[: place + 1])) == outcome


def test_of_equally_bad_outcomes_the_first_wins() -> None:
    first, second = Outcome(Kind.VIOLATION, "missing"), Outcome(Kind.VIOLATION, "wrong-value")
    assert worst([Outcome(Kind.PASS), first, second]) == first


def test_nothing_run_is_an_error_of_the_harness() -> None:
    assert worst([]) == Outcome(Kind.HARNESS_ERROR, "nothing was run")


def test_only_what_the_run_or_the_implementation_is_to_blame_for_has_failed() -> None:
    passed = {kind for kind in Kind if not Outcome(kind).failed}
    assert passed == {Kind.PASS, Kind.NOT_RUN, Kind.UNSUPPORTED}


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([2], "rank 2"), ([0, 1, 2, 3], "ranks 0-3"), ([3, 0, 1], "ranks 0-1, 3")],
)
def test_ranks_are_written_as_people_do(ranks: list[int], text: str) -> None:
    assert say_ranks(ranks) == text


def _violation(item: str, *details: str) -> Violation:
    return Violation("loading.1", Code.WRONG_VALUE, item, details)


def test_equal_findings_of_several_ranks_are_told_once() -> None:
    found = [[_violation("step of a", "wanted 3", "found 99")]] * 3
    assert describe([*found, []]) == (
        "violation(wrong-value) of clause loading.1\n"
        "  step of a, on ranks 0-2 of 4\n"
        "    wanted 3\n"
        "    found 99"
    )


def test_of_findings_that_differ_the_first_is_told_with_the_other_ranks() -> None:
    found = [[_violation("param of a", f"first at [{rank},0]")] for rank in range(3)]
    assert describe(found) == (
        "violation(wrong-value) of clause loading.1\n"
        "  param of a, on rank 0 of 3; in other elements also on ranks 1-2\n"
        "    first at [0,0]"
    )


def test_of_many_items_a_few_are_told() -> None:
    text = describe([[_violation(f"param of {name}") for name in "abcdefgh"]])
    assert text.splitlines()[1:] == [
        "  param of a, on rank 0 of 1",
        "  param of b, on rank 0 of 1",
        "  param of c, on rank 0 of 1",
        "  and 5 more: param of d, param of e, param of f, ...",
    ]


def test_each_kind_of_violation_is_told() -> None:
    missing = Violation("loading.1", Code.MISSING, "exp_avg of a")
    text = describe([[_violation("param of a")], [missing]])
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "violation(wrong-value) of clause loading.1",
        "violation(missing) of clause loading.1",
    ]
