"""Tell what the ranks found in one text: equal findings once, a few items of each kind."""

from __future__ import annotations

from collections.abc import Sequence

from shardproof._report import say_ranks

from shardproof_suites.violation import Code, Violation

_MOST_ITEMS = 3


def describe(found: Sequence[Sequence[Violation]]) -> str:
    """Tell each kind of violation, in the order in which it was found.

    Args:
        found: What each rank found.
    """
    kinds: dict[tuple[str, Code], dict[str, dict[tuple[str, ...], list[int]]]] = {}
    for rank, violations in enumerate(found):
        for one in violations:
            items = kinds.setdefault((one.clause, one.code), {})
            items.setdefault(one.item, {}).setdefault(one.details, []).append(rank)
    lines: list[str] = []
    for (clause, code), items in kinds.items():
        lines.append(f"violation({code.value}) of clause {clause}")
        listed = list(items.items())
        for item, variants in listed[:_MOST_ITEMS]:
            lines += _describe_item(item, variants, len(found))
        rest = [item for item, _ in listed[_MOST_ITEMS:]]
        if rest:
            more = ", ".join(rest[:_MOST_ITEMS]) + (", ..." if len(rest) > _MOST_ITEMS else "")
            lines.append(f"  and {len(rest)} more: {more}")
    return "\n".join(lines)


def _describe_item(
    item: str, variants: dict[tuple[str, ...], list[int]], world_size: int
) -> list[str]:
    """Tell one item; where the ranks differ, as the first of them saw it."""
    details, ranks = next(iter(variants.items()))
    others = [rank for one in list(variants.values())[1:] for rank in one]
    also = f"; in other elements also on {say_ranks(others)}" if others else ""
    head = f"  {item}, on {say_ranks(ranks)} of {world_size}{also}"
    return [head, *(f"    {line}" for line in details)]
