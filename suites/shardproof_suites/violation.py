"""What can be wrong with a checkpoint, and how one finding is told."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Code(enum.Enum):
    """The kind of a violation; expected failures name it, so a code is never given a new meaning.

    The first five concern the live model, the next ones the stored or restored state, the last
    ones a call that should or shouldn't have raised.
    """

    NOT_WRAPPED = "not-wrapped"
    WRONG_UNITS = "wrong-units"
    WRONG_STRATEGY = "wrong-strategy"
    WRONG_GROUP = "wrong-group"
    WRONG_LOCAL_SIZE = "wrong-local-size"
    WROTE_TOO_MUCH = "wrote-too-much"
    MISSING = "missing"
    UNEXPECTED = "unexpected"
    WRONG_DTYPE = "wrong-dtype"
    WRONG_SHAPE = "wrong-shape"
    WRONG_VALUE = "wrong-value"
    WRONG_OPTION = "wrong-option"
    TIE_BROKEN = "tie-broken"
    PREPARE_RAISED = "prepare-raised"
    SAVE_RAISED = "save-raised"
    LOAD_RAISED = "load-raised"
    NOT_REFUSED = "not-refused"
    CLAIM_REFUSED = "claim-refused"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that one rank found.

    Attributes:
        clause: Clause of docs/contract.md that it breaks.
        code: Kind of the violation.
        item: What is wrong: a tensor with its role, a file, a unit.
        details: Lines that say what was wanted and what was found.
    """

    clause: str
    code: Code
    item: str
    details: tuple[str, ...] = ()
