"""The door and the matrix, in sessions of pytest inside of a test."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from shardproof_suites.cases import all_cases

pytest_plugins = ["pytester"]

REFERENCE = "shardproof_suites.implementations.reference:Reference"
FULL = "roundtrip/untouched/full-shard-orig-float32-full/tied"
SHARDED = "roundtrip/untouched/full-shard-orig-float32-sharded/tied"
FOUR = "roundtrip/4-to-4/full-shard-orig-float32-sharded/tied-fresh"
CAST = "dtype/refused/full-shard-orig-float32-full/uneven-as-bfloat16"

THREE_LINES = f"""\
from shardproof_suites import conformance

test_conformance = conformance("{REFERENCE}")
"""

UNNAMED = "from shardproof_suites import conformance\n\ntest_a = conformance()\n"

ADAPTERS = """\
import os, time
from shardproof_suites import Capability, TrainState, Unsupported
from shardproof_suites.implementations.reference import Reference

class Mine(Reference):
    name = "mine"

class Raises(Reference):
    def save(self, state, root, step):
        raise OSError("disk full")

class Refuses(Reference):
    def save(self, state, root, step):
        raise Unsupported(Capability.FULL, "not today")

class Unable(Refuses):
    capabilities = frozenset({Capability.LOAD})

class Dies(Reference):
    def save(self, state, root, step):
        os._exit(3)

class Hangs(Reference):
    def save(self, state, root, step):
        time.sleep(600)

class Wrong(Reference):
    def prepare(self, module, make_optimizer, resume=None):
        return None

class Confusing(Reference):
    def prepare(self, module, make_optimizer, resume=None):
        return TrainState((None,), ())
"""


def _node(case: str, file: str = "test_mine.py", door: str = "test_conformance") -> str:
    return f"{file}::{door}[{case}]"


def _run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *args)


def test_three_lines_are_one_test_a_case(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=THREE_LINES)
    result = _run(pytester, "--collect-only", "-q", "test_mine.py")
    found = [line for line in result.outlines if "::" in line]
    assert found == [_node(case.id) for case in all_cases()]


def test_cases_pass_and_are_counted_in_the_matrix(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=THREE_LINES)
    result = _run(pytester, "-q", "--nproc", "2", _node(FULL), _node(SHARDED), _node(CAST))
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*= conformance =*",
            "                    FULL      SHARDED",
            "full-shard float32  pass 2/2  pass 1/1",
            "3 cases: 3 pass",
        ]
    )


def test_the_matrix_is_whole_under_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=THREE_LINES)
    args = ("-n", "2", "--nproc", "2", _node(FULL), _node(SHARDED), _node(FOUR))
    result = _run(pytester, *args)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "                    FULL      SHARDED",
            "full-shard float32  pass 1/1  not-run 1/2",
            "3 cases: 2 pass, 1 not-run",
        ]
    )


def test_a_violation_is_told_and_can_be_rerun(pytester: pytest.Pytester) -> None:
    door = 'conformance("shardproof_suites.defects.disturbing_save:DisturbingSave")'
    source = f"from shardproof_suites import conformance\n\ntest_conformance = {door}\n"
    folder = pytester.mkdir("sub")
    (folder / "test_mine.py").write_text(source)
    result = _run(pytester, "--nproc", "2", _node(SHARDED, "sub/test_mine.py"))
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "violation(wrong-value) of clause saving.2",
            "  exp_avg of embed.weight, on rank 0 of 2; in other elements also on rank 1",
            "    wanted torch.float32, local shape (33,)",
            "    found torch.float32, local shape (33,)",
            "    33 of 33 elements are wrong, the first at [[]0,0[]]",
            "    there wanted * (0x*), found * (0x*)",
            "    origin: *exp_avg_sq*",
            "  and 2 more: exp_avg of *",
            "rerun: *",
            "*= conformance =*",
            "full-shard float32  violation 1/1",
        ]
    )
    command = next(line for line in result.outlines if line.startswith("rerun: "))
    words = shlex.split(command.removeprefix("rerun: "))
    assert words[0] == "python"
    again = subprocess.run(
        [sys.executable, *words[1:]], cwd=pytester.path, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert "1 cases: 1 violation" in again.stdout


def test_nothing_run_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=THREE_LINES)
    result = _run(pytester, "--nproc", "2", "-rs", _node(FOUR))
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "full-shard float32  not-run 1/1",
            "1 cases: 1 not-run",
            "error: no case was run to its end",
            "SKIPPED * needs 4 ranks, --nproc allows 2",
        ]
    )


def test_other_tests_may_run_without_a_case(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=THREE_LINES, test_other="def test_other(): pass")
    result = _run(pytester, "-k", "test_other")
    assert result.ret == 0
    assert "conformance =" not in result.stdout.str()


def test_every_end_has_its_outcome(pytester: pytest.Pytester) -> None:
    names = ("Raises", "Refuses", "Unable", "Dies", "Hangs", "Wrong", "Confusing")
    doors = "".join(f'test_{name} = conformance("adapters.py:{name}")\n' for name in names)
    pytester.makepyfile(
        test_mine=f"from shardproof_suites import conformance\n{doors}", adapters=ADAPTERS
    )
    nodes = [_node(FULL, door=f"test_{name}") for name in names]
    result = _run(pytester, "-rs", "--nproc", "2", "--ranks-timeout", "10", *nodes)
    result.assert_outcomes(failed=6, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "violation(save-raised) of clause saving.2 on ranks 0-1 of 2: OSError: disk full",
            "*OSError: disk full*",
            "violation(claim-refused) of clause saving.2 on ranks 0-1 of 2: full: not today",
            "crash on ranks 0-1 of 2",
            "timeout on ranks 0-1 of 2",
            "violation(prepare-raised) *: TypeError: prepare returned NoneType, wanted TrainState",
            "harness-error on ranks 0-1 of 2: 'NoneType' object has no attribute *",
            "full-shard float32  harness-error 1/7",
            "7 cases: 1 unsupported, 3 violation, 1 timeout, 1 crash, 1 harness-error",
            "*unsupported(reference doesn't claim 'full', which stores a full state dict)*",
        ]
    )
    assert result.stdout.str().count("\nrerun: python -m pytest --nproc 2 ") == 6


@pytest.mark.parametrize("where", ["door", "option", "ini"])
def test_a_file_is_found_from_where_it_was_named(where: str, pytester: pytest.Pytester) -> None:
    named = '"adapters.py:Mine"' if where == "door" else ""
    source = f"from shardproof_suites import conformance\ntest_mine = conformance({named})\n"
    folder = pytester.mkdir("sub")
    (folder / "test_mine.py").write_text(source)
    home = pytester.path if where == "ini" else folder
    (home / "adapters.py").write_text(ADAPTERS)
    ini = "conformance_implementation = adapters.py:Mine" if where == "ini" else ""
    pytester.makeini(f"[pytest]\n{ini}\n")
    pytester.chdir()
    args = ("--implementation", "sub/adapters.py:Mine") if where == "option" else ()
    node = _node(FULL, "sub/test_mine.py", "test_mine")
    result = _run(pytester, "-q", "--nproc", "2", *args, node)
    assert result.ret == 0, result.stdout.str()


def test_no_implementation_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=UNNAMED)
    result = _run(pytester, "test_mine.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no implementation named: pass --implementation *"])
    result = _run(pytester, "-n", "1", "test_mine.py")
    assert result.ret not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
    result.stdout.fnmatch_lines(["no implementation named: pass --implementation *"])


def test_a_wrong_implementation_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=UNNAMED)
    result = _run(pytester, "--implementation", "adapters.py:Mine", "test_mine.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: no file {pytester.path}/adapters.py"])


def test_the_door_of_the_package_takes_the_option(pytester: pytest.Pytester) -> None:
    args = ("--pyargs", "shardproof_suites", "--implementation", REFERENCE, "--nproc", "2")
    result = _run(pytester, "-q", *args, "-k", FULL)
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["1 cases: 1 pass"])


def test_the_plugin_loads_neither_torch_nor_hypothesis(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_modules():
            assert "shardproof_suites.plugin" in sys.modules
            assert not {"torch", "numpy", "hypothesis"} & sys.modules.keys()
        """
    )
    _run(pytester, "-p", "no:hypothesispytest").assert_outcomes(passed=1)


def test_options_dont_clash_and_are_documented(pytester: pytest.Pytester) -> None:
    text = _run(pytester, "--help").stdout.str()
    assert re.search(r"--implementation=WHERE:CLASS", text)
    assert "conformance_implementation (string):" in text


def test_the_repository_has_a_door_of_its_own() -> None:
    door = Path(__file__).parents[1] / "shardproof_suites" / "test_conformance.py"
    assert "test_conformance = conformance()" in door.read_text()
