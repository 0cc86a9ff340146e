"""Measure what the library costs on this machine: ``python -m tests.bench CASE [--json]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.cases import CASES, SPARK_CASES
from tests.bench.command import run


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Measure what the library costs on this machine."
    )
    parser.add_argument("case", choices=[*CASES, *SPARK_CASES, "report"])
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument(
        "--seconds", type=float, help="length of one lap; short ones shrink the sizes too"
    )
    parser.add_argument("--size", type=int, help="number of messages, where a case has one")
    parser.add_argument(
        "--folder", type=Path, help="where the files lie: the disk under it is measured"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the rows into docs/reference/benchmarks.md"
    )
    asked = parser.parse_args()
    return run(
        asked.case,
        json=asked.json,
        seconds=asked.seconds,
        size=asked.size,
        folder=asked.folder,
        page=asked.page,
    )


if __name__ == "__main__":
    sys.exit(main())
