"""The two recipes of golden/RECIPE.md: what is hashed, and what a role changes."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

_NON_NEGATIVE_1 = frozenset({"exp_avg_sq", "max_exp_avg_sq"})
_NON_NEGATIVE_2 = _NON_NEGATIVE_1 | {"sum", "square_avg", "acc_delta"}
_GOLDEN_STEP = 3
_STEP_RANGE = 61


class Recipe(enum.Enum):
    """Which rules turn a hash into a value.

    ONE is frozen: the goldens were written with it. TWO is for new cases; it also sees damage
    that small integers and short mantissas hide.
    """

    ONE = 1
    TWO = 2


class Kind(enum.Enum):
    """What floating point values look like; integers and bool are the same in every kind.

    VALUE: evenly spaced in [-1, 1), exact in the dtype.
    BITS: any bit pattern, with signed zeros, subnormals, infinities and NaN payloads, for cases
    that compute nothing. TRAINING: as VALUE, but non-negative roles hold (1 + |v|) / 2, so that
    optimizer steps taken from them stay finite. Only recipe 2 has BITS and TRAINING.
    """

    VALUE = "value"
    BITS = "bits"
    TRAINING = "training"


@dataclass(frozen=True, slots=True)
class Oracle:
    """Everything but the name, the role and the index that a value depends on.

    Attributes:
        seed: Tells checkpoints apart that hold the same tensors.
        recipe: Rules of golden/RECIPE.md.
        kind: Look of floating point values.

    Raises:
        ValueError: The recipe doesn't have that kind.
    """

    seed: int = 0
    recipe: Recipe = Recipe.TWO
    kind: Kind = Kind.VALUE

    def __post_init__(self) -> None:
        if self.recipe is Recipe.ONE and self.kind is not Kind.VALUE:
            raise ValueError(f"recipe 1 has no kind {self.kind.value!r}; use recipe 2")

    def non_negative(self, role: str) -> bool:
        """Say whether the role's values carry no sign (RECIPE.md, 'Non-negative roles')."""
        return role in (_NON_NEGATIVE_1 if self.recipe is Recipe.ONE else _NON_NEGATIVE_2)


def fingerprint(fqn: str, role: str, seed: int) -> int:
    """Hash a tensor's identity to `h`, 0 <= h < 2**64 (RECIPE.md, 'The fingerprint').

    Args:
        fqn: Name in the unwrapped model; for tied parameters the first one.
        role: `param`, `buffer` or the optimizer's own key.
        seed: Seed of the oracle.
    """
    digest = hashlib.sha256(f"{seed}/{role}/{fqn}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def step_value(fqn: str, oracle: Oracle) -> int:
    """Give the optimizer's `step` for one parameter: 3, or in recipe 2 3 + h mod 61.

    The caller stores it in the form that its optimizer keeps (a number, a 0-dim float32 tensor).
    """
    if oracle.recipe is Recipe.ONE:
        return _GOLDEN_STEP
    return _GOLDEN_STEP + fingerprint(fqn, "step", oracle.seed) % _STEP_RANGE
