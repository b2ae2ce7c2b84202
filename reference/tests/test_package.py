"""What importing the reference costs, and what it must not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "shardproof_reference"


def test_the_reference_imports_neither_harness_nor_suites() -> None:
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        assert "shardproof_suites" not in text
        assert "import shardproof\n" not in text
        assert "from shardproof " not in text
        assert "from shardproof." not in text


def test_importing_the_reference_loads_no_torch() -> None:
    code = "import sys, shardproof_reference; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
