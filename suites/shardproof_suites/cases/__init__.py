"""The cases, one module an area. A module has `CASES`; this list is the registry."""

from __future__ import annotations

from shardproof_suites.case import Case
from shardproof_suites.cases import dtype, really_sharded, refusing, reshard, roundtrip

AREAS = (roundtrip, reshard, really_sharded, dtype, refusing)


def all_cases() -> tuple[Case, ...]:
    """List every case, in the order of the areas."""
    return tuple(case for area in AREAS for case in area.CASES)
