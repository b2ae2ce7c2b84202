"""Generates the soak's test files, and what must come of each test."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardproof._report import say_ranks

TESTS_A_FILE = 100
SHORT = 2.0  # seconds that a test may take which never ends by itself
LONG = 10.0  # seconds that any other may take, on a busy machine

Style = Literal["warm", "isolate", "launch"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, on some ranks of a test.

    Attributes:
        name: Its name, a part of the test's.
        statement: What the chosen ranks do; another rank goes on to a collective.
        outcome: What JUnit's XML then has for the test.
        told: A regular expression for the failure's text, with `{rank}` for what the chosen
            ranks are called and `{world}` for the world size.
        launched: The same where a launched function does it; without one it is not launched.
        chosen: `one` rank does it, `some` do or `all`. Where ranks leave by it, the first one may
            wake the next before that has come to it, so only one or all can be told for sure.
        ends: It ends before the deadline.
        place: Where it is done.
    """

    name: str
    statement: str
    told: str
    launched: str = ""
    outcome: str = "failure"
    chosen: Literal["one", "some", "all"] = "one"
    ends: bool = True
    place: str = "call"


_RAISED = r"failed on {rank} of {world}:[\s\S]*^\S*"
_HUNG = "did not end within 2 s on ranks 0-{last}"

KINDS = (
    Kind(
        "assert",
        "assert world.rank < 0, 'soak'",
        "^{rank}: AssertionError: soak",
        _RAISED + "AssertionError: soak",
    ),
    Kind(
        "assert_all",
        "assert 1 > 2, 'soak'",  # without a value that differs between the ranks
        "^{rank}: AssertionError: soak",
        _RAISED + "AssertionError: soak",
        chosen="all",
    ),
    Kind("exit", "os._exit(3)", "^{rank} ended with exit code 3", "^{rank} ended with exit code 3"),
    Kind(
        "sigkill",
        "os.kill(os.getpid(), signal.SIGKILL)",
        r"^{rank} was killed by SIGKILL \(signal 9\)",
        r"^{rank} was killed by SIGKILL \(signal 9\)",
    ),
    Kind(
        "sigsegv",
        "ctypes.string_at(0)",
        r"^{rank} was killed by SIGSEGV \(signal 11\)",
        r"^{rank} was killed by SIGSEGV \(signal 11\)",
    ),
    Kind(
        "sleep",
        "time.sleep(600)",
        _HUNG + "[\\s\\S]*^  {rank} never came to #",
        _HUNG + "[\\s\\S]*^  {rank} never came to #",
        chosen="some",
        ends=False,
    ),
    Kind(
        "spin",
        "re.match('(a+)+b', 'a' * 64)  # holds the interpreter's lock",
        _HUNG + r"[\s\S]*^  {rank} never came to #[\s\S]*^{rank} \[R \(running\)\]",
        chosen="some",
        ends=False,
    ),
    Kind(
        "skip",
        "pytest.skip('soak')",
        r"^the ranks disagree: (.*; )?{rank} skipped \(soak\)",
        chosen="some",
    ),
    Kind("sys_exit", "sys.exit(0)", "^{rank}: SystemExit: 0", _RAISED + "SystemExit: 0"),
    Kind(
        "unpicklable",
        "raise Unpicklable('soak')",
        r"^{rank}: \S*Unpicklable: soak",
        _RAISED + "Unpicklable: soak",
    ),
    Kind(
        "setup",
        "raise OSError('soak')",
        '^failed on setup with "{rank}: OSError: soak',
        outcome="error",
        place="setup",
    ),
    Kind(
        "teardown",
        "raise OSError('soak')",
        '^failed on teardown with "{rank}: OSError: soak',
        outcome="error",
        place="teardown",
    ),
    Kind(
        "mismatch",
        "dist.barrier()",
        _HUNG + r"[\s\S]*^  {rank} waits? in barrier #",
        chosen="some",
        ends=False,
    ),
    Kind(
        "grandchild",
        "leave_a_process(); os._exit(4)",
        "^{rank} ended with exit code 4",
        "^{rank} ended with exit code 4",
    ),
    Kind(
        "output",
        "print('x' * 1_000_000, 'the end'); assert world.rank < 0, 'soak'",
        r"^{rank}: AssertionError: soak[\s\S]*x the end$",
        _RAISED + "AssertionError: soak",
    ),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """One generated test.

    Attributes:
        name: Its function's name, unique in the soak.
        style: On warm ranks, on fresh ones, or a launched function.
        world: How many ranks.
        kind: The fault, or None for a test that passes.
        ranks: The ranks that do it.
    """

    name: str
    style: Style
    world: int
    kind: Kind | None
    ranks: tuple[int, ...]

    @property
    def outcome(self) -> str:
        """What JUnit's XML must have for it."""
        return self.kind.outcome if self.kind else "passed"

    @property
    def deadline(self) -> float:
        """Seconds that it may take."""
        return LONG if self.kind is None or self.kind.ends else SHORT

    @property
    def told(self) -> re.Pattern[str]:
        """What its failure's text must have."""
        if self.kind is None:
            return re.compile("")
        pattern = self.kind.launched if self.style == "launch" else self.kind.told
        words = {"rank": say_ranks(self.ranks), "world": self.world, "last": self.world - 1}
        return re.compile(pattern.format_map(words), re.MULTILINE)


HEAD = """\
import ctypes, os, re, signal, subprocess, sys, time
import pytest
import torch
import torch.distributed as dist
from shardproof import current_world


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("not to be pickled")


def leave_a_process():
    # in a session of its own, and its parent gone
    subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"], check=True)


def meet(world):
    value = torch.full((3,), float(world.rank + 1))
    dist.all_reduce(value)
    assert value.tolist() == [world.world_size * (world.world_size + 1) / 2] * 3

"""

_MARKED = """
@pytest.fixture
def around_{name}(world):
    {setup}
    yield
    {teardown}


@pytest.mark.ranks({world}, timeout={deadline:g}, isolate={isolate})
def {name}(world, around_{name}):
    meet(world)
    {call}
    meet(world)
    assert world.gather(world.rank) == list(range(world.world_size))

"""

_LAUNCHED = """
def in_{name}(value):
    world = current_world()
    meet(world)
    {call}
    meet(world)
    return value + world.rank


def {name}(launch):
    values = launch(in_{name}, 5, world_size={world}, timeout={deadline:g})
    assert values == [5 + rank for rank in range({world})]

"""


def plan(tests: int, seed: int) -> list[Planned]:
    """Draw the tests; one in each ten has a fault."""
    draw = random.Random(seed)
    planned: list[Planned] = []
    while len(planned) < tests:
        faulty = draw.randrange(10)
        for place in range(min(10, tests - len(planned))):
            planned.append(_draw(draw, len(planned), place == faulty))
    return planned


def _draw(draw: random.Random, index: int, faulty: bool) -> Planned:
    styles: tuple[Style, ...] = ("warm", "isolate", "launch")
    style = draw.choices(styles, (16, 3, 1))[0]
    world = draw.randint(2, 4)
    if not faulty:
        return Planned(f"test_{index:04}", style, world, None, ())
    kinds = [kind for kind in KINDS if kind.launched or style != "launch"]
    # those that end at the deadline are slow
    kind = draw.choices(kinds, [3 if kind.ends else 1 for kind in kinds])[0]
    count = {"one": 1, "some": draw.randint(1, world - 1), "all": world}[kind.chosen]
    ranks = tuple(sorted(draw.sample(range(world), count)))
    return Planned(f"test_{index:04}_{kind.name}", style, world, kind, ranks)


def write(planned: Sequence[Planned], folder: Path) -> None:
    """Write the tests into files."""
    for start in range(0, len(planned), TESTS_A_FILE):
        part = planned[start : start + TESTS_A_FILE]
        file = folder / f"test_{start // TESTS_A_FILE:02}.py"
        file.write_text(HEAD + "".join(_sources(part)), encoding="utf-8")


def _sources(planned: Sequence[Planned]) -> Iterator[str]:
    for one in planned:
        done = dict.fromkeys(("setup", "call", "teardown"), "pass")
        if one.kind is not None:
            done[one.kind.place] = f"if world.rank in {one.ranks}:\n        {one.kind.statement}"
        text = _LAUNCHED if one.style == "launch" else _MARKED
        isolate = one.style == "isolate"
        yield text.format(
            name=one.name, world=one.world, deadline=one.deadline, isolate=isolate, **done
        )
