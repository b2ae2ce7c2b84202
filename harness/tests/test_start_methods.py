"""Ranks that can't be forked from the pytest process are started otherwise, and work the same."""

from __future__ import annotations

from ._inner import Inner

# Leaves a pool of OpenMP's threads in the process, with which no fork can work in parallel.
DIRT = "DIRT = torch.ones(200, 200) @ torch.ones(200, 200)\n"
PARALLEL = """
@ranks(2)
def test_in_parallel(world):
    torch.set_num_threads(2)
    try:
        assert torch.ones(2_000_000).add_(1).sum() == 4_000_000
        value = torch.ones(200_000, requires_grad=True)
        (value * 2).sum().backward()
        assert reduce() == [2.0] * 4
    finally:
        torch.set_num_threads(1)
"""


def line(how: str) -> str:
    """Return the pattern of the line that tells what ranks run on."""
    return f"ranks: world 4, gloo, {how}, cpu, torch *"


def test_clean_session_is_forked(inner: Inner) -> None:
    session = inner.run("import numpy\n\nSMALL = torch.ones(3).sum()\n" + PARALLEL)
    session.stdout.fnmatch_lines([line("fork")])
    session.result.assert_outcomes(passed=1)


def test_module_that_ran_tensor_work_is_named(inner: Inner) -> None:
    inner.write(test_a="import numpy\n" + PARALLEL, test_b=DIRT + PARALLEL, test_c=DIRT)
    session = inner.run(None, timeout=60)
    how = "fork from a clean process (test_b.py ran tensor work during collection)"
    session.stdout.fnmatch_lines([line(how)])
    session.result.assert_outcomes(passed=2)


def test_clean_process_has_what_the_pytest_process_has(inner: Inner) -> None:
    inner.write(conftest="import torch\n" + DIRT)
    kept = inner.path / "kept.log"
    session = inner.run(
        """
import numbers_of_mine

@ranks(2)
def test_settings(world, tmp_path, request):
    assert "OMP_NUM_THREADS" not in os.environ
    assert os.environ["MKL_NUM_THREADS"] == "7"
    assert tmp_path.parent.name == f"rank{world.rank}"
    assert sys.flags.optimize == 0
    assert numbers_of_mine.ONE == 1
    assert Path.cwd() == Path(os.environ["HOME"])
    assert request.config.getoption("verbose") == 2
    print("printed", world.rank)
    assert world.rank == 1
""".replace("import numbers_of_mine", "os.environ['MKL_NUM_THREADS'] = '7'\nimport numbers_of_mine")
        if (inner.path / "numbers_of_mine.py").write_text("ONE = 1\n")
        else None,
        "-vv",
        f"--log-file={kept}",
        "--log-file-level=INFO",
        "--junitxml=report.xml",
    )
    how = "fork from a clean process (conftest.py ran tensor work during collection)"
    session.stdout.fnmatch_lines([line(how)])
    session.match_failure(
        "test_settings",
        "___* test_settings (rank 0 of 2) _*",
        ">       assert world.rank == 1",
        "E       *assert 0 == 1*",
        "-* Captured stdout call (rank 0) -*",
        "printed 0",
    )
    assert "test_settings" in (inner.path / "report.xml").read_text()
    assert kept.exists()
