"""Builds the sdist and the wheel, installs the wheel in a fresh environment and uses it there.

The fresh environment gets the wheel without its dependencies. Those come from this interpreter's
own site-packages, whose `.pth` files (our editable install is one) are not read from there: what
the wheel lacks can't be found in the checkout.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "shardproof": ROOT / "harness",
    "shardproof_reference": ROOT / "reference",
    "shardproof_suites": ROOT / "suites",
}
RANK_TEST = """\
import pytest
import torch
import torch.distributed as dist


@pytest.mark.ranks(2)
def test_sum(world):
    value = torch.ones(1, device=world.device)
    dist.all_reduce(value)
    assert value.item() == 2
"""


def main() -> None:
    """Check the package, or exit with what is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        check_contents(wheel)
        python = install(wheel, folder / "environment")
        check_imports(python, folder)
        check_pytest(python, folder)
    print(f"{wheel.name}: built, complete, installed and used")


def build_wheel(folder: Path) -> Path:
    """Build the sdist from the checkout, and the wheel from the unpacked sdist."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder / "sdist", filter="data")
    (source,) = (folder / "sdist").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Hold the wheel against the checkout: every file of the packages is in it, dot files too."""
    with zipfile.ZipFile(wheel) as files:
        packed = {name for name in files.namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(root).as_posix()
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if packed != sources:
        sys.exit(
            f"{wheel.name} differs from the checkout\n"
            f"  missing: {sorted(sources - packed) or 'nothing'}\n"
            f"  not in the checkout: {sorted(packed - sources) or 'nothing'}"
        )


def install(wheel: Path, environment: Path) -> Path:
    """Install the wheel in a new environment and return its interpreter."""
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    site_packages = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).strip()
    path_file = Path(site_packages) / "dependencies.pth"
    path_file.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def check_imports(python: Path, folder: Path) -> None:
    """Import the three packages, each from the new environment."""
    for package in PACKAGES:
        found = run(python, "-c", f"import {package}; print({package}.__file__)", cwd=folder)
        if (folder / "environment") not in Path(found.strip()).parents:
            sys.exit(f"import {package} found {found.strip()}, not what the wheel installed")


def check_pytest(python: Path, folder: Path) -> None:
    """See that pytest finds the plugin, and run one test on two ranks."""
    if "--nproc" not in run(python, "-m", "pytest", "--help", cwd=folder):
        sys.exit("pytest --help does not show --nproc: the pytest11 entry points are missing")
    (folder / "test_installed.py").write_text(RANK_TEST, encoding="utf-8")
    print(run(python, "-m", "pytest", "--nproc", "2", "test_installed.py", cwd=folder))


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return what it printed; exit with all of it where it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        line = " ".join(map(str, command))
        sys.exit(f"{line}\n{done.stdout}{done.stderr}exit status {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
