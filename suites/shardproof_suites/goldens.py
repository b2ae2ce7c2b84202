"""Checkpoints written by real releases, frozen; what they are is in golden/README.md.

`golden/SHA256SUMS` has the hash of each manifest, and each manifest those of its files, so a
golden that is changed, lost or half copied is an error and never a skipped case (the contract's
Goldens). Both are checked before anything is parsed. Loads neither torch nor numpy.

The frozen data is never edited. After adding a folder, and only then, in golden/:
`{ ls *.md; find * -name manifest.json; } | LC_ALL=C sort | xargs sha256sum > SHA256SUMS`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

GOLDEN_ROOT = Path(__file__).parent / "golden"

_SUMS = "SHA256SUMS"
_MANIFEST = "manifest.json"
_CHUNK = 2**20
# Manifest fields that keep their names.
_FIELDS = (
    "producer",
    "versions",
    "layout",
    "model",
    "dtype",
    "buffer_dtype",
    "seed",
    "world_size",
    "strategy",
    "use_orig_params",
    "fsdp_version",
    "optimizer",
    "scheduler",
)


class GoldenError(Exception):
    """A golden isn't what was frozen: restore the folder from version control."""


@dataclass(frozen=True, slots=True)
class GoldenFile:
    """One frozen file.

    Attributes:
        path: Relative to the golden's folder, with slashes.
        sha256: Lower-case hexadecimal.
        size: Bytes.
    """

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class KnownProblem:
    """What is known to be wrong with a golden.

    Attributes:
        where: `file` if the values in it are wrong, `loader` if only its producer can't read it.
        what: The problem.
        how_known: How that was established.
    """

    where: str
    what: str
    how_known: str


@dataclass(frozen=True, slots=True)
class Golden:
    """One frozen checkpoint; all but the first three come from its manifest.

    Attributes:
        id: Path below the golden root: producer and versions, layout, model.
        path: The folder.
        manifest_sha256: Hash of the manifest, from SHA256SUMS.
        producer: accelerate, modalities or torch.
        versions: Package name to version; `producer` is the producer's own.
        layout: See README.md.
        model: `uneven` or `tied`.
        dtype: Dtype of parameters and optimizer state, as torch names it.
        buffer_dtype: Dtype of buffers, None where the model has none.
        seed: Seed of recipe 1.
        world_size: Ranks that wrote it.
        strategy: FSDP1's sharding strategy, or None.
        use_orig_params: Of FSDP1, or None.
        fsdp_version: 1 or 2.
        optimizer: Class, hyper-parameters and step; None where only the model was saved.
        scheduler: Class, arguments, steps and state; None where there is none.
        files: Everything in the folder but the manifest.
        known_problems: Empty where there are none.
        manifest: All of it.
    """

    id: str
    path: Path
    manifest_sha256: str
    producer: str
    versions: Mapping[str, str]
    layout: str
    model: str
    dtype: str
    buffer_dtype: str | None
    seed: int
    world_size: int
    strategy: str | None
    use_orig_params: bool | None
    fsdp_version: int | None
    optimizer: Mapping[str, Any] | None
    scheduler: Mapping[str, Any] | None
    files: tuple[GoldenFile, ...]
    known_problems: tuple[KnownProblem, ...]
    manifest: Mapping[str, Any]


def goldens(root: Path = GOLDEN_ROOT) -> tuple[Golden, ...]:
    """List the goldens in order of their ids, without reading their files.

    Raises:
        GoldenError: There is none, one that is listed is missing, one isn't listed, or a manifest
            was changed.
    """
    listed = _read_sums(root)
    _refuse_unlisted(root, listed)
    found = tuple(
        _read_golden(root, name.removesuffix(f"/{_MANIFEST}"), sha256)
        for name, sha256 in sorted(listed.items())
        if name.endswith(f"/{_MANIFEST}")
    )
    if not found:
        raise GoldenError(f"{root / _SUMS} lists no golden")
    return found


def verify(golden: Golden) -> None:
    """Check every size and hash; nothing of a golden may be interpreted before.

    Raises:
        GoldenError: A file is missing, changed, a link, or not in the manifest; it names them all.
    """
    wanted = {file.path: file for file in golden.files}
    found = {path.relative_to(golden.path).as_posix() for path in _files(golden.path)}
    extra = sorted(found - wanted.keys() - {_MANIFEST})
    problems = [f"{name}: found a file, wanted none" for name in extra]
    problems += [f"{name}: found none, wanted it" for name in sorted(wanted.keys() - found)]
    for name in sorted(wanted.keys() & found):
        problems += _compare(golden.path / name, wanted[name])
    problems += _compare_hash(golden.path / _MANIFEST, _MANIFEST, golden.manifest_sha256)
    if problems:
        raise GoldenError("\n".join([f"golden {golden.id} was changed:", *problems]))


def _read_sums(root: Path) -> dict[str, str]:
    """Give path to hash, from a file as sha256sum writes it."""
    path = root / _SUMS
    if not path.is_file():
        raise GoldenError(f"{path}: found none, wanted the list of goldens")
    sums: dict[str, str] = {}
    for line in path.read_text("utf-8").splitlines():
        sha256, _, name = line.partition("  ")
        sums[_inside(name, path)] = sha256
    return sums


def _refuse_unlisted(root: Path, listed: Mapping[str, str]) -> None:
    folders = {name.removesuffix(_MANIFEST) for name in listed if name.endswith(_MANIFEST)}
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        known = name in listed or name == _SUMS
        if not known and not any(name.startswith(folder) for folder in folders):
            raise GoldenError(f"{path}: found a file, wanted none; {_SUMS} doesn't list its folder")


def _read_golden(root: Path, name: str, sha256: str) -> Golden:
    path = root / name / _MANIFEST
    problems = _compare_hash(path, path.as_posix(), sha256)
    if problems:
        raise GoldenError(f"golden {name}: {problems[0]}")
    manifest = json.loads(path.read_text("utf-8"))
    own = {key: manifest[key] for key in _FIELDS}
    return Golden(
        id=name,
        path=root / name,
        manifest_sha256=sha256,
        files=tuple(
            GoldenFile(_inside(file["path"], path), file["sha256"], file["size"])
            for file in manifest["files"]
        ),
        known_problems=tuple(
            KnownProblem(problem["in"], problem["what"], problem["how_known"])
            for problem in manifest["known_problem"] or ()
        ),
        manifest=manifest,
        **own,
    )


def _inside(name: str, source: Path) -> str:
    """Refuse a path that leads out of the folder it is listed for."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise GoldenError(f"{source}: found path {name!r}, wanted one inside the folder")
    return path.as_posix()


def _files(root: Path) -> Iterator[Path]:
    """Walk all that isn't a folder; a link to a folder counts as a file."""
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path


def _compare(path: Path, wanted: GoldenFile) -> list[str]:
    if path.is_symlink():
        return [f"{wanted.path}: found a link, wanted a file"]
    size = path.stat().st_size
    if size != wanted.size:
        return [f"{wanted.path}: found {size} bytes, wanted {wanted.size}"]
    return _compare_hash(path, wanted.path, wanted.sha256)


def _compare_hash(path: Path, name: str, wanted: str) -> list[str]:
    if not path.is_file():
        return [f"{name}: found none, wanted it"]
    found = _sha256(path)
    return [] if found == wanted else [f"{name}: found SHA-256 {found}, wanted {wanted}"]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
