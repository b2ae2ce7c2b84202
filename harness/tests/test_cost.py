"""A session that uses no ranks pays nothing for the plugin."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ._inner import Inner

ORDINARY = """
import os
import sys

def test_nothing_is_loaded():
    loaded = {"torch", "numpy", "hypothesis", "safetensors"} & set(sys.modules)
    assert not loaded
    ours = {name for name in sys.modules if name.startswith("shardproof.")}
    light = ("plugin", "_settings", "_clean", "_linux")
    assert ours == {f"shardproof.{name}" for name in light}

def test_nothing_is_started():
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    assert children == []
    assert len(os.listdir("/proc/self/task")) == 1
"""


def test_session_without_ranks(inner: Inner) -> None:
    (inner.path / "test_plain.py").write_text(ORDINARY)
    # hypothesis has a plugin of its own, which loads a part of it
    session = inner.run(None, "-p", "no:hypothesispytest", "-p", "no:xdist")
    session.result.assert_outcomes(passed=2)
    session.stdout.no_fnmatch_line("ranks:*")


@pytest.mark.parametrize("module", ["shardproof", "shardproof.plugin", "shardproof.errors"])
def test_import_is_light(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} "
        "& {'torch', 'numpy', 'hypothesis', 'safetensors', 'xdist', 'multiprocessing'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_public_names_are_there() -> None:
    code = (
        "import shardproof\n"
        "for name in shardproof.__all__:\n"
        "    assert getattr(shardproof, name).__name__ == name\n"
        "try:\n"
        "    shardproof.nothing\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "module 'shardproof' has no attribute 'nothing'"


def test_pytest_process_of_a_ranked_session_needs_no_torch(inner: Inner) -> None:
    (inner.path / "test_plain.py").write_text(
        """
import sys
import pytest

@pytest.mark.ranks(2)
def test_on_ranks(world):
    import torch
    assert world.gather(torch.ones(1).item()) == [1.0, 1.0]

def test_here():
    assert "torch" not in sys.modules
"""
    )
    inner.run(None).result.assert_outcomes(passed=2)
