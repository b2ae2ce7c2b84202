"""Words about ranks that several reports share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardproof._conversation import Ending

# What a lost peer reads like: gloo's words, the broken store's, NCCL's, then ours. An error of
# Python's own about a connection is the test's, and an assertion may be about such words.
_OWN_ERRORS = (OSError, AssertionError)
_BROKEN_STORE = "Too many levels of symbolic links"
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    _BROKEN_STORE,
    "NCCL communicator was aborted",
    "remote process exited",
    "another rank failed",
)

# What differs between ranks that say the same: addresses in memory, and ports.
_INCIDENTAL = re.compile(r"0x[0-9a-f]{6,}|(?<=:)\d{2,5}\b(?!:)")
_SOME_RANK = re.compile(r"(?<=\brank )(\d+)\b|(?<=/rank)(\d+)(?=/)")  # the latter in tmp_path


def say_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 1`, or `ranks 0, 2-3`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank {text}" if len(spans) == 1 and spans[0][0] == spans[0][1] else f"ranks {text}"


def fold(texts: Iterable[tuple[int, str]]) -> list[tuple[list[int], str]]:
    """Group ranks that say the same thing, in the order of their first."""
    groups: dict[str, list[int]] = {}
    for rank, text in texts:
        groups.setdefault(text, []).append(rank)
    return [(ranks, text) for text, ranks in groups.items()]


def fold_alike(texts: Iterable[tuple[int, str]]) -> list[tuple[list[int], str]]:
    """Group ranks that say the same but for their own rank, addresses and ports."""
    groups: list[tuple[list[int], str]] = []
    for ranks, text in fold(texts):
        for members, first in groups:
            if _alike((members[0], first), (ranks[0], text)):
                members.extend(ranks)
                break
        else:
            groups.append((ranks, text))
    return groups


def _alike(one: tuple[int, str], other: tuple[int, str]) -> bool:
    """Say whether two texts are the same where each names the rank that it is of."""
    pair = [_SOME_RANK.split(_INCIDENTAL.sub("", text)) for _, text in (one, other)]
    if len(pair[0]) != len(pair[1]):
        return False
    own = (str(one[0]), str(other[0]))
    return all(mine == its or (mine, its) == own for mine, its in zip(*pair, strict=True))


def hang(
    endings: Sequence[Ending], seconds: float, what: str, how: str = "did not end within"
) -> str:
    """Tell which ranks did not end in time, what they waited for and who never came.

    Args:
        endings: All ranks' endings.
        seconds: The deadline that passed, or how long it took.
        what: `the test` or the function's name.
        how: What it did after these seconds.
    """
    stuck = [ending for ending in endings if ending.killed]
    head = f"{what} {how} {seconds:g} s on {say_ranks(e.rank for e in stuck)}"
    finished = [ending for ending in endings if ending.done is not None]
    facts = _who_waits(stuck)
    for ranks, collective in fold(_counterparts(endings)):
        facts.append(f"{say_ranks(ranks)} had begun {collective}")
    if finished:
        facts.append(f"{say_ranks(e.rank for e in finished)} had finished {what}")
    return "\n".join([head, *(f"  {fact}" for fact in facts), "", *_stacks(stuck)]).rstrip()


def _who_waits(stuck: Sequence[Ending]) -> list[str]:
    """Return a line for each collective that ranks wait in, and who has not entered it."""
    waiting = [
        (e.rank, e.evidence.waiting[-1], e.evidence.numbers[-1])
        for e in stuck
        if e.evidence and e.evidence.waiting
    ]
    lines = [
        f"{say_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {collective}"
        for ranks, collective in fold((rank, text) for rank, text, _ in waiting)
    ]
    if waiting:
        number = max(number for _, _, number in waiting)
        absent = [e.rank for e in stuck if not (e.evidence and e.evidence.waiting)]
        if absent:
            lines.append(f"{say_ranks(absent)} never came to #{number}")
    notes = fold((e.rank, e.evidence.note) for e in stuck if e.evidence and e.evidence.note)
    return lines + [f"{say_ranks(ranks)}: {note}" for ranks, note in notes]


def _counterparts(endings: Sequence[Ending]) -> Iterator[tuple[int, str]]:
    """Yield what the other ranks did as the collectives that some wait in."""
    waiting = {e.rank: e.evidence.waiting[-1] for e in endings if e.evidence and e.evidence.waiting}
    wanted = set(map(_place, waiting.values()))
    for ending in endings:
        for collective in (text for of_group in ending.begun.values() for text in of_group):
            if _place(collective) in wanted and collective != waiting.get(ending.rank):
                yield ending.rank, collective


def _place(collective: str) -> tuple[str, str]:
    """Return the sequence number and the group of a described collective."""
    number = collective.partition("#")[2].partition(" ")[0]
    return number, collective.partition(" in group ")[2]


def _stacks(stuck: Sequence[Ending]) -> list[str]:
    lines = []
    for ranks, stack in fold((e.rank, _stack(e)) for e in stuck):
        lines += [f"{say_ranks(ranks)} {stack}", ""]
    return lines


def _stack(ending: Ending) -> str:
    evidence = ending.evidence
    if evidence is None:
        return "gave no evidence"
    state = f"[{evidence.kernel}]"
    if not evidence.stack:
        return f"{state} gave no stack"
    return f"{state}, the innermost call first:\n{evidence.stack}"


def ended_late(ending: Ending) -> str:
    """Tell why a rank was ended after another one had failed, without naming it."""
    waiting = ending.evidence and ending.evidence.stuck_in
    if waiting:
        return f"lost a peer (and did not wake from {waiting})"
    return "went on after another rank had failed, and was ended"


def death(ending: Ending) -> str:
    """Tell how a rank died, with the stack of a fatal signal where there is one."""
    text = f"rank {ending.rank} {ending.death}"
    if ending.evidence is not None and ending.evidence.stack:
        text += f", the innermost call first:\n{ending.evidence.stack}"
    return text


def late_death(rank: int, how: str, name: str, output: str) -> str:
    """Tell of a rank that died when its work had ended."""
    text = f"rank {rank} {how} after {name} had ended"
    words = output.strip()
    return f"{text}; it printed:\n{words}" if words else text


def unmatched(
    begun: Mapping[int, Mapping[str, Sequence[str]]], members: Mapping[str, Sequence[int]]
) -> tuple[str, set[int]]:
    """Tell of collectives to which not all ranks of their group came, and which ranks began them.

    Args:
        begun: For each rank, the collectives that it has begun, by their group's name.
        members: For each group's name, its ranks.
    """
    lines = []
    all_ahead: set[int] = set()
    for name, ranks in members.items():
        mine = {rank: begun[rank].get(name, ()) for rank in ranks}
        least = min(map(len, mine.values()))
        ahead = {rank for rank in ranks if len(mine[rank]) > least}
        behind = say_ranks(set(ranks) - ahead)
        for some, collective in fold((rank, mine[rank][least]) for rank in sorted(ahead)):
            lines.append(f"{say_ranks(some)} began {collective}, to which {behind} never came")
        all_ahead |= ahead
    return "\n".join(lines), all_ahead


_OF_GROUPS = ("torch.distributed.distributed_c10d", "torch.distributed.device_mesh")
_NO_GROUP = "Default process group has not been initialized"


def _raised_in(error: BaseException) -> str:
    """Return the name of the module that has raised an exception."""
    traceback = error.__traceback__
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return str(traceback.tb_frame.f_globals.get("__name__", ""))


def lost_peer(error: BaseException | None, dropped: bool = False) -> str:
    """Return the words by which an exception, or its cause, tells of a peer that left.

    A group of exceptions does so if each of them does.

    Args:
        error: The exception.
        dropped: This rank has left its group before, so that it has none is no news.
    """
    several = getattr(error, "exceptions", ())
    if several:
        found = [lost_peer(one, dropped) for one in several]
        return found[0] if all(found) else ""
    words_of_loss = (*_LOST_PEER, _NO_GROUP) if dropped else _LOST_PEER
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        try:
            text = str(error)
        except Exception:
            text = ""
        for words in words_of_loss:
            if words in text and not isinstance(error, _OWN_ERRORS):
                return "it left their store" if words == _BROKEN_STORE else words
        if dropped and _raised_in(error) in _OF_GROUPS:
            return "their group is gone"
        error = error.__cause__ or error.__context__
    return ""
