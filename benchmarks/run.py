"""Runs every benchmark, each in a process of its own: `python -m benchmarks.run [NAME ...]`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("checkpoints", "engine", "faults", "oracle")


def main() -> None:
    """Run the named benchmarks, or all, and exit with the worst of their exit statuses."""
    parser = argparse.ArgumentParser(
        description="Other options are passed on to each benchmark.",
        epilog=f"benchmarks: {', '.join(BENCHMARKS)}",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a benchmark; without one, all")
    options, rest = parser.parse_known_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {BENCHMARKS}")
    sys.exit(max(run(name, rest) for name in options.names or BENCHMARKS))


def run(name: str, options: list[str]) -> int:
    """Run one benchmark and return its exit status."""
    print(f"\n== {name}", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    return subprocess.run(
        command, cwd=Path(__file__).resolve().parent.parent, check=False
    ).returncode


if __name__ == "__main__":
    main()
