"""Flip bits by command: ``python -m tests.proof.bit_flips --bits 100000``."""

from __future__ import annotations

import argparse
import sys

from tests.proof.bit_flips.flips import PATIENCE, flip
from tests.proof.seed import proof_seed


def main() -> int:
    """Flip, print what came of it and the first violations, and fail if there is any."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.bit_flips", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=proof_seed(), help="default: ONCEWARD_SEED, or a fixed one"
    )
    parser.add_argument("--bits", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=PATIENCE)
    parser.add_argument("--only", type=int, help="one bit, as an earlier run numbered it")
    named = parser.parse_args()
    found = flip(named.seed, bits=named.bits, seconds=named.seconds, only=named.only)
    sys.stdout.write("".join(f"{line}\n" for line in (found, *found.violations[:20])))
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
