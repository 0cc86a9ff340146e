"""
Let the disk fail by command.

``python -m tests.proof.disk_failures`` goes through every operation.
"""

from __future__ import annotations

import argparse
import sys

from tests.proof.disk_failures.sweep import PATIENCE, sweep
from tests.proof.power_cut.pair import Terms
from tests.proof.seed import proof_seed


def main() -> int:
    """Sweep, print what was found and the first violations, and fail if there is any."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.disk_failures", description=__doc__
    )
    parser.add_argument(
        "--seed", type=int, default=proof_seed(), help="default: ONCEWARD_SEED, or a fixed one"
    )
    parser.add_argument("--faults", type=int, default=10**9, help="default: all")
    parser.add_argument("--transport", choices=("memory", "file"), default="memory")
    parser.add_argument("--seconds", type=float, default=PATIENCE)
    parser.add_argument("--only", default="", help="one failure, as an earlier run named it")
    named = parser.parse_args()
    terms = Terms(seed=named.seed, transport=named.transport, busy_timeout=0.0)
    found = sweep(terms, faults=named.faults, seconds=named.seconds, only=named.only)
    sys.stdout.write("".join(f"{line}\n" for line in (found, *found.violations[:20])))
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
