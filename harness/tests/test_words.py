"""Words about ranks: who they are, which say the same, what they were doing, how they ended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed
from shardproof import _evidence, _linux
from shardproof._evidence import main_stack
from shardproof._report import fold, fold_alike, lost_peer, say_ranks


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([1], "rank 1"),
        ([0, 1], "ranks 0-1"),
        ([0, 2], "ranks 0, 2"),
        ([3, 0, 2], "ranks 0, 2-3"),
        ([0, 1, 2, 5, 7, 8], "ranks 0-2, 5, 7-8"),
        (range(128), "ranks 0-127"),
    ],
)
def test_say_ranks(ranks: list[int], says: str) -> None:
    assert say_ranks(ranks) == says


def test_fold_keeps_the_order_of_the_first() -> None:
    texts = [(2, "b"), (0, "a"), (1, "b"), (3, "A")]
    assert fold(texts) == [([2, 1], "b"), ([0], "a"), ([3], "A")]
    assert fold([]) == []


@pytest.mark.parametrize(
    "text",
    [
        "rank {rank} has 3",
        "<object at 0x7f12ab{rank}0cd{rank}> differs",
        "connect to 127.0.0.1:4010{rank} failed",
        "base/rank{rank}/test_it0/file",
        "rank {rank}, in a function that 'gathers results on rank 1'",
    ],
)
def test_ranks_that_differ_in_what_is_incidental_are_folded(text: str) -> None:
    texts = [(rank, text.format(rank=rank)) for rank in (1, 2, 3)]
    assert fold_alike(texts) == [([1, 2, 3], text.format(rank=1))]


@pytest.mark.parametrize(
    "text",
    ["got {rank}", "assert {rank}.5 == 7", "waits for rank {other}", "line {line} in test_it"],
)
def test_ranks_that_say_different_things_are_not(text: str) -> None:
    texts = [(rank, text.format(rank=rank, other=5 + rank, line=10 + rank)) for rank in (1, 2)]
    assert [ranks for ranks, _ in fold_alike(texts)] == [[1], [2]]


def test_line_numbers_are_not_taken_for_ports() -> None:
    texts = [(0, "test_it.py:12: ValueError"), (1, "test_it.py:19: ValueError")]
    assert [ranks for ranks, _ in fold_alike(texts)] == [[0], [1]]


def test_lost_peer_looks_at_causes() -> None:
    cause = RuntimeError("[../gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:2000")
    wrapped = ValueError("step failed")
    wrapped.__cause__ = cause
    assert lost_peer(cause) == lost_peer(wrapped) == "Connection closed by peer"
    assert lost_peer(ValueError("mine")) == ""
    assert lost_peer(None) == ""


def test_lost_peer_survives_a_cycle_and_words_that_raise() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    first, second = Odd(), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert lost_peer(first) == ""


def test_own_error_of_a_connection_is_no_lost_peer() -> None:
    # A test's own download or database, say.
    assert lost_peer(BrokenPipeError(32, "Broken pipe")) == ""
    assert lost_peer(ConnectionResetError(104, "Connection reset by peer")) == ""
    assert lost_peer(AssertionError("Regex: 'Connection closed by peer'")) == ""


def test_group_of_exceptions_lost_a_peer_if_each_of_them_did() -> None:
    class Group(Exception):
        exceptions: tuple[Exception, ...] = ()

    group = Group()
    group.exceptions = (RuntimeError("Connection reset by peer"), RuntimeError("Broken pipe"))
    assert lost_peer(group) == "Connection reset by peer"
    group.exceptions += (ValueError("mine"),)
    assert lost_peer(group) == ""


def test_what_torch_says_without_a_group_follows_from_leaving_it() -> None:
    with pytest.raises(AssertionError) as raised:
        torch.distributed.destroy_process_group()
    assert lost_peer(raised.value) == ""
    assert lost_peer(raised.value, dropped=True) == "their group is gone"


# The package whose frames are left out is the one that is installed.
PACKAGE = str(Path(_evidence.__file__).parent)

DUMP = """\
Thread 0x00007f01 (most recent call first):
  File "/site/shardproof/_evidence.py", line 9 in _answer

Thread 0x00007f02 (most recent call first):
  File "/site/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/you/test_it.py", line 5 in test_it
  File "/site/_pytest/python.py", line 166 in pytest_pyfunc_call
""".replace("/site/shardproof", PACKAGE)


def test_main_stack_is_the_last_thread_without_layers() -> None:
    assert main_stack(DUMP) == '  File "/home/you/test_it.py", line 5 in test_it'
    assert main_stack("") == main_stack("nothing of a thread\n") == ""


def test_main_stack_ends_at_the_loop_of_the_rank_and_not_before() -> None:
    dump = """\
Current thread 0x00007f02 (most recent call first):
  File "/site/shardproof/_channel.py", line 86 in _read
  File "/site/shardproof/_rank.py", line 124 in _reform
  File "/site/shardproof/_world.py", line 83 in subworld
  File "/home/you/test_it.py", line 5 in test_it
  File "/site/shardproof/_rank.py", line 102 in serve
  File "/site/bin/tool", line 1 in <module>
""".replace("/site/shardproof", PACKAGE)
    assert main_stack(dump) == '  File "/home/you/test_it.py", line 5 in test_it'


def test_main_stack_of_a_fatal_signal_is_the_thread_that_took_it() -> None:
    dump = "Fatal Python error: Segmentation fault\n\n" + DUMP.replace(
        "Thread 0x00007f01", "Current thread 0x00007f01"
    ).replace(f"{PACKAGE}/_evidence.py", "/home/you/native.py")
    assert main_stack(dump) == '  File "/home/you/native.py", line 9 in _answer'


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (9, "was killed by SIGKILL (signal 9)"),
        (11 | 128, "was killed by SIGSEGV (signal 11)"),
        (50, "was killed by signal 50"),
        (3 << 8, "ended with exit code 3"),
        (0, "ended with exit code 0"),
    ],
)
def test_describe_exit(status: int, says: str) -> None:
    assert _linux.describe_exit(status) == says
