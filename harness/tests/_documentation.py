"""Reads the code blocks of a Markdown document, and runs them as a reader would.

CONTRIBUTING.md has the convention. In short: a block whose first line names a file is written to
a folder, a console block is executed there and compared, and whatever else looks like something
to execute needs a comment that says why it is not.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 180
CONSOLE = "console"
EXECUTABLE = frozenset(
    {CONSOLE, "bash", "sh", "shell", "shell-session", "zsh", "python", "py", "pycon", "python3"}
)
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
NOT_RUN = re.compile(r"^\s*<!--\s*not run:(?P<reason>.*?)-->\s*$")
FILE_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)*\.\w+$")
EXIT_STATUS = re.compile(r"^exit=(?P<status>\d+)$")

# What differs from run to run and from machine to machine, and what is compared in its place.
_DIFFERS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<![\w.])(?:/[\w.+-]+)+/?", "<path>"),
        (r"\b\d+(?:\.\d+){2,}[\w.+]*", "<version>"),
        (r"\b\d+(?:\.\d+)? ?(?:s|ms|seconds)\b(?: \(\d+:\d+:\d+\))?", "<duration>"),
        (r"\b(pid|process) \d+", r"\1 <number>"),
        (r"\b0x[0-9a-f]+", "<address>"),
        # what pytest fills a line with depends on the length of what it left out
        (r"([=_-])\1{2,}", r"\1\1\1"),
        (r" {2,}\[", " ["),
    )
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block.

    Attributes:
        line: Line of the opening fence, from 1.
        language: First word after the fence, or "".
        file: The file it is the content of, or None.
        status: The exit status that the last command of a console block must have.
        reason: Why it is not run, or None where it is.
        text: What is between the fences, its common indentation removed.
    """

    line: int
    language: str
    file: str | None
    status: int
    reason: str | None
    text: str


class BadDocument(Exception):
    """A document breaks the convention, or shows what is not so."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


def check(document: str, folder: Path) -> None:
    """Write and run every block of a document, in order, in one folder.

    Raises:
        BadDocument: A block is neither run nor marked, a command ends with another exit status,
            or prints something else than is shown.
    """
    for block in parse(document):
        if block.reason is not None:
            continue
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == CONSOLE:
            check_console(block, folder)
        elif block.language in EXECUTABLE:
            raise BadDocument(
                block.line,
                f"a {block.language} block must name a file, be a console block, "
                "or follow a comment <!-- not run: reason -->",
            )


def parse(document: str) -> Iterator[Block]:
    """Yield the fenced blocks of a document.

    Raises:
        BadDocument: A fence is not closed, names no language or more than is known, or a marker
            has no reason or no block.
    """
    lines = document.splitlines()
    marker: tuple[int, str] | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if fence := FENCE.match(line):
            end = _closing(lines, number, fence["fence"])
            text = textwrap.dedent("\n".join(lines[number:end]) + "\n")
            yield _block(number, fence["info"].split(), marker and marker[1], text)
            marker, number = None, end + 1
        elif found := NOT_RUN.match(line):
            if not found["reason"].strip():
                raise BadDocument(number, "a block that is not run needs a reason")
            marker = (number, found["reason"].strip())
        elif line.strip() and marker:
            break
    if marker:
        raise BadDocument(marker[0], "no block follows this comment")


def _closing(lines: Sequence[str], start: int, fence: str) -> int:
    """Return the index of the line that closes a fence."""
    closing = re.compile(rf"^ *{fence[0]}{{{len(fence)},}} *$")
    for index in range(start, len(lines)):
        if closing.match(lines[index]):
            return index
    raise BadDocument(start, "this block is not closed")


def _block(line: int, info: Sequence[str], reason: str | None, text: str) -> Block:
    """Make a block of what stands after its fence: a language, then a file or an exit status."""
    if not info:
        raise BadDocument(line, "this block names no language; plain text is `text`")
    language, *rest = info
    file, status = None, 0
    for word in rest:
        if found := EXIT_STATUS.match(word):
            status = int(found["status"])
        elif FILE_NAME.match(word) and ".." not in word:
            file = word
        else:
            raise BadDocument(line, f"{word!r} is neither a file name nor exit=NUMBER")
    if language == CONSOLE and file:
        raise BadDocument(line, "a console block is run, not written to a file")
    return Block(line, language, file, status, reason, text)


def check_console(block: Block, folder: Path) -> None:
    """Run the commands of a console block and compare what they print with what it shows."""
    commands = list(_commands(block))
    for index, (line, command, shown) in enumerate(commands):
        status, printed = run(command, folder)
        wanted = block.status if index == len(commands) - 1 else 0
        if status != wanted:
            raise BadDocument(
                line, f"$ {command}\nexit status {status}, {wanted} is expected\n{printed}"
            )
        actual = normalise(printed, folder)
        if not matches(normalise(shown, folder), actual):
            difference = difflib.unified_diff(
                normalise(shown, folder), actual, "shown", "printed", lineterm=""
            )
            raise BadDocument(line, f"$ {command}\n" + "\n".join(difference))


def _commands(block: Block) -> Iterator[tuple[int, str, str]]:
    """Yield line, command and shown output of each `$` of a console block."""
    if not block.text.startswith("$ "):
        raise BadDocument(block.line, "a console block begins with `$ ` and a command")
    line = block.line + 1
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield line, command, shown
        line += part.count("\n")


def run(command: str, folder: Path) -> tuple[int, str]:
    """Run a command in a folder and return its exit status and all that it printed."""
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            printed += f"still running after {TIMEOUT} s\n"
    return process.returncode, printed


def _environment() -> dict[str, str]:
    """Return the environment of a reader with this interpreter's commands and a plain terminal."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return inherited | {"PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}


def normalise(text: str, folder: Path) -> list[str]:
    """Return the lines of a text as they are compared, with `folder` as an ordinary path."""
    for name in {str(folder.resolve()), str(folder)}:
        text = text.replace(name, "/folder")
    for pattern, replacement in _DIFFERS:
        text = pattern.sub(replacement, text)
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def matches(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Say whether lines are as shown, where a shown line `...` stands for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None
