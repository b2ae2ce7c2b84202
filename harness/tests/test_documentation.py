"""Every command and example of the documents is executed, and the check itself is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from ._documentation import BadDocument, check, matches, normalise, parse

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_document_runs_as_printed(path: Path, tmp_path: Path) -> None:
    problem = None
    try:
        check(path.read_text(encoding="utf-8"), tmp_path)
    except BadDocument as found:
        problem = found
    if problem:
        pytest.fail(f"{path.relative_to(ROOT)}, {problem}", pytrace=False)


def test_file_and_console_blocks_are_used(tmp_path: Path) -> None:
    check(
        """\
Write a file:

```python greet.py
print("hello")
```

and run it:

```console
$ python greet.py
hello
$ echo two && echo lines
two
lines
```
""",
        tmp_path,
    )
    assert (tmp_path / "greet.py").read_text() == 'print("hello")\n'


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        pytest.param(
            "```console\n$ echo right\nwrong\n```\n",
            "line 2: $ echo right\n--- shown\n+++ printed\n@@ -1 +1 @@\n-wrong\n+right",
            id="another-output",
        ),
        pytest.param(
            "text\n\n```console\n$ echo one\n$ echo two\n```\n",
            "line 4: $ echo one",
            id="no-output",
        ),
        pytest.param("```console\n$ echo one\none\ntwo\n```\n", "-two", id="output-too-short"),
        pytest.param("```console\n$ false\n```\n", "exit status 1, 0 is expected", id="fails"),
        pytest.param(
            "```console exit=2\n$ true\n```\n", "exit status 0, 2 is expected", id="succeeds"
        ),
        pytest.param("```console exit=1\n$ false\n$ false\n```\n", "line 2", id="fails-too-early"),
        pytest.param("```console\necho one\n```\n", "begins with", id="no-command"),
        pytest.param("```bash\nmake test\n```\n", "must name a file", id="neither-run-nor-marked"),
        pytest.param("```python\nprint()\n```\n", "must name a file", id="python-without-a-file"),
        pytest.param("```\n$ make\n```\n", "names no language", id="no-language"),
        pytest.param("```python a b\n```\n", "'a' is neither", id="unknown-word"),
        pytest.param("```python ../a.py\n```\n", "'../a.py' is neither", id="file-outside"),
        pytest.param("```console\n$ true\n", "line 1: this block is not closed", id="not-closed"),
        pytest.param("<!-- not run: -->\n```bash\n```\n", "needs a reason", id="no-reason"),
        pytest.param("<!-- not run: a -->\ntext\n", "line 1: no block follows", id="no-block"),
        pytest.param("<!-- not run: a -->", "line 1: no block follows", id="marker-at-the-end"),
    ],
)
def test_a_bad_document_fails(document: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(BadDocument) as caught:
        check(document, tmp_path)
    assert problem in str(caught.value)


def test_a_marked_block_is_not_run(tmp_path: Path) -> None:
    check("<!-- not run: it would stop us -->\n\n```bash\nexit 1\n```\n", tmp_path)


def test_a_marker_is_for_one_block(tmp_path: Path) -> None:
    with pytest.raises(BadDocument, match="line 4"):
        check("<!-- not run: slow -->\n```bash\n```\n```bash\n```\n", tmp_path)


def test_a_block_of_data_is_left_alone(tmp_path: Path) -> None:
    check("```toml\nkey = 1\n```\n", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_block_in_a_list_loses_its_indentation() -> None:
    (block,) = parse("- item\n\n  ```python a.py\n  def f():\n      pass\n  ```\n")
    assert block.text == "def f():\n    pass\n"
    assert block.line == 3


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("=== 1 passed in 0.10s ===", "====== 1 passed in 12.34s ======"),
        ("rootdir: /home/you/project", "rootdir: /folder"),
        ("torch 2.13.0+cpu, pytest 9.2.0", "torch 2.14.1, pytest 8.4.2"),
        ("test_a.py ....   [100%]", "test_a.py .... [100%]"),
        ("killed process 17", "killed process 4242"),
        ("one\n...\ntwo", "one\nand\nmore\ntwo"),
        ("one\n...\ntwo", "one\ntwo"),
        ("...", ""),
    ],
)
def test_what_differs_from_run_to_run_is_equal(shown: str, printed: str, tmp_path: Path) -> None:
    assert matches(normalise(shown, tmp_path), normalise(printed, tmp_path))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("1 passed in 1s", "2 passed in 1s"),
        ("one\n...\ntwo", "one\nmore"),
        ("rank 0 of 4", "rank 1 of 4"),
        ("", "something"),
    ],
)
def test_what_matters_is_not_equal(shown: str, printed: str, tmp_path: Path) -> None:
    assert not matches(normalise(shown, tmp_path), normalise(printed, tmp_path))
