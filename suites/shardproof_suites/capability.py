"""What an implementation may be able to do: one name, one sentence, one default each."""

from __future__ import annotations

import enum


class Capability(enum.Enum):
    """Something that cases ask for; its value is what ids and reports call it.

    Attributes:
        sentence: What an implementation that has it does.
        default: Whether it is taken for granted unless an implementation says otherwise.
    """

    sentence: str
    default: bool

    FULL = "full", "stores a full state dict", True
    SHARDED = "sharded", "stores a sharded state dict, to which each rank writes its own part", True
    LOCAL = "local", "stores each rank's flat parameters as they are", False
    LOAD = "load", "loads into a model that is already sharded, in place", True
    RESHARD = "reshard", "loads at another world size than it was saved at", True

    def __new__(cls, name: str, sentence: str, default: bool) -> Capability:
        """Make the name the member's value."""
        member = object.__new__(cls)
        member._value_ = name
        member.sentence = sentence
        member.default = default
        return member

    @classmethod
    def named(cls, name: str) -> Capability:
        """Find a capability by its value."""
        return next(one for one in cls if one.value == name)

    def missing(self, implementation: str) -> str:
        """Say why a case that needs it is unsupported."""
        return f"{implementation} doesn't claim {self.value!r}, which {self.sentence}"


DEFAULT_CAPABILITIES = frozenset(one for one in Capability if one.default)
