"""Named broken implementations: the suites are tested by what they must find.

Each is the reference with one thing wrong, seeded from a public bug or from what one suggests. Of
`PROBES` it fails exactly the cases that it lists, with the code beside each. A defect counts only
if no other one fails the same cases, and a case that no defect fails is no case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardproof_suites.violation import Code

ORIGINAL_SHARDED = "roundtrip/4-to-4/full-shard-orig-float32-sharded/uneven-fresh"
FLAT_FULL_TIED = "roundtrip/4-to-4/full-shard-flat-float32-full/tied-fresh"
STEPPED = "roundtrip/4-to-4/fully-shard-float32-full/uneven-stepped"
RESHARD = "reshard/4-to-2/hybrid-shard-orig-bfloat16-sharded/tied-fresh"
LIVE = "really-sharded/live/fully-shard-2d-float32/uneven-w4"
FILES = "really-sharded/files/shard-grad-op-flat-float32/uneven-w4"
UNTOUCHED = "roundtrip/untouched/hybrid-shard-zero2-orig-float32-full/tied"
CAST = "dtype/refused/full-shard-orig-float32-full/uneven-as-bfloat16"
UNCLAIMED = "refusing/unclaimed/full-shard-flat-float32-local/uneven-fresh"

PROBES = (
    ORIGINAL_SHARDED,
    FLAT_FULL_TIED,
    STEPPED,
    RESHARD,
    LIVE,
    FILES,
    UNTOUCHED,
    CAST,
    UNCLAIMED,
)


@dataclass(frozen=True, slots=True)
class Defect:
    """One broken implementation.

    Attributes:
        name: Its module here, and its class in camel case.
        seed: The bug that it comes from.
        fails: The probes that it fails, each with the code of the first violation.
    """

    name: str
    seed: str
    fails: Mapping[str, Code]

    @property
    def implementation(self) -> str:
        """Its import string."""
        words = self.name.split("_")
        return f"{__name__}.{self.name}:{''.join(word.capitalize() for word in words)}"


def _all(code: Code, *cases: str) -> dict[str, Code]:
    return dict.fromkeys(cases, code)


DEFECTS = (
    Defect(
        "bare_module",
        "`wrap` returns the module as it is, as FSDP settings that are ignored on a CPU",
        _all(
            Code.NOT_WRAPPED,
            *(case for case in PROBES if case != UNCLAIMED),
        ),
    ),
    Defect(
        "swapped_shards",
        "two parameters of one shape change places (B17, B18)",
        _all(Code.WRONG_VALUE, ORIGINAL_SHARDED, STEPPED),
    ),
    Defect(
        "zeroed_state",
        "the first moment comes back as zeros (B51)",
        _all(Code.WRONG_VALUE, ORIGINAL_SHARDED, FLAT_FULL_TIED, STEPPED, RESHARD),
    ),
    Defect(
        "cast_state",
        "a state comes back in a smaller dtype (B37, B81)",
        _all(Code.WRONG_DTYPE, ORIGINAL_SHARDED, FLAT_FULL_TIED, STEPPED),
    ),
    Defect(
        "lost_state",
        "an optimizer without state gets none (L01)",
        _all(Code.MISSING, ORIGINAL_SHARDED, FLAT_FULL_TIED, RESHARD),
    ),
    Defect(
        "swapped_groups",
        "a checkpoint gives parameters the options of another group (B86 is its kind)",
        _all(Code.WRONG_OPTION, ORIGINAL_SHARDED, RESHARD),
    ),
    Defect(
        "cast_step",
        "`step` comes back in a dtype that can't count on (B96: it keeps its kind)",
        _all(Code.WRONG_DTYPE, FLAT_FULL_TIED, STEPPED),
    ),
    Defect(
        "gathered_shards",
        "SHARDED is gathered on rank 0 and written there (B73)",
        _all(Code.WROTE_TOO_MUCH, ORIGINAL_SHARDED, RESHARD, FILES),
    ),
    Defect(
        "disturbing_save",
        "a save overwrites the live first moment with the second one (M02)",
        _all(
            Code.WRONG_VALUE,
            *(case for case in PROBES if case not in (LIVE, UNCLAIMED)),
        ),
    ),
    Defect(
        "lenient_load",
        "a checkpoint of another dtype is taken without an error (B81)",
        _all(Code.NOT_REFUSED, CAST),
    ),
    Defect(
        "quiet_fallback",
        "LOCAL is asked for and something else is stored, without a word (B67)",
        _all(Code.NOT_REFUSED, UNCLAIMED),
    ),
)
