"""Import strings: what works, and what the errors say of what doesn't."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardproof_suites.implementation import Ref
from shardproof_suites.importing import ImplementationNotFound, absolute, load_implementation

REFERENCE = "shardproof_suites.implementations.reference:Reference"
ADAPTER = """
class Mine:
    name = "mine"
    version = "1"
    capabilities = frozenset()

    def __init__(self, cell): ...
    def prepare(self, module, make_optimizer, resume=None): ...
    def save(self, state, root, step): ...

class Half:
    name = "half"

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "adapter.py"
    path.write_text(ADAPTER)
    return path


def test_a_class_of_a_module() -> None:
    assert load_implementation(REFERENCE).name == "reference"


def test_a_class_of_a_file_is_the_same_each_time(file: Path) -> None:
    found = load_implementation(f"{file}:Mine")
    assert found.name == "mine"
    assert load_implementation(f"{file}:Mine") is found


def test_files_of_one_name_are_told_apart(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "adapter.py"
    other.parent.mkdir()
    other.write_text(ADAPTER.replace('"mine"', '"theirs"'))
    names = [load_implementation(f"{one}:Mine").name for one in (file, other)]
    assert names == ["mine", "theirs"]


def test_a_relative_path_is_taken_from_a_folder(tmp_path: Path) -> None:
    assert absolute("sub/adapter.py:Mine", tmp_path) == f"{tmp_path}/sub/adapter.py:Mine"
    assert absolute("../adapter.py:Mine", tmp_path / "sub") == f"{tmp_path}/adapter.py:Mine"
    assert absolute(REFERENCE, tmp_path) == REFERENCE


@pytest.mark.parametrize("text", ["", "Mine", "adapter:", ":Mine", "adapter:Mi ne"])
def test_a_string_of_another_form_is_shown_the_right_one(text: str) -> None:
    with pytest.raises(ImplementationNotFound, match=r"expected package\.module:Class"):
        load_implementation(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_package.adapter:Mine", "no module named 'no_such_package'"),
        ("shardproof_suites.nothing:Mine", "no module named 'shardproof_suites.nothing'"),
        ("adapter.py:Mine", "relative"),
        ("/no/such/adapter.py:Mine", "no file /no/such/adapter.py"),
        (
            "shardproof_suites.implementations.reference:Referenz",
            "has no Referenz; implementations there: Reference",
        ),
    ],
)
def test_the_error_names_the_part_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ImplementationNotFound, match=message):
        load_implementation(text)


def test_what_a_class_lacks_is_listed(file: Path) -> None:
    with pytest.raises(ImplementationNotFound, match="lacks version, capabilities, prepare, save"):
        load_implementation(f"{file}:Half")
    with pytest.raises(ImplementationNotFound, match="is no class"):
        load_implementation(f"{file}:number")


def test_an_error_in_the_adapter_is_not_hidden(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import no_such_dependency\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
            load_implementation(f"{file}:Mine")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../elsewhere", "a/../../b"])
def test_a_ref_stays_below_its_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="below its root"):
        Ref(tmp_path, name)
    assert Ref(tmp_path, "a/b").path == tmp_path / "a" / "b"
