"""
The seed and the size of a proof.

The same cases each time, unless the environment asks for others.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Final

SEED: Final = "ONCEWARD_SEED"
TODAY: Final = "today"
FIXED: Final = 20_261_122
"""Seed of a run that asks for none."""
PROOF: Final = "ONCEWARD_PROOF"
SAMPLE: Final = "sample"


def proof_seed() -> int:
    """Return ONCEWARD_SEED as a number, the date (UTC) for `today`, else the fixed seed."""
    asked = os.environ.get(SEED, "")
    if asked == TODAY:
        return int(f"{datetime.now(UTC):%Y%m%d}")
    return int(asked or FIXED)


def sampled() -> bool:
    """Return whether ONCEWARD_PROOF asks for the sample that a change can afford."""
    return os.environ.get(PROOF) == SAMPLE


def size(full: int, sample: int, name: str = "") -> int:
    """
    Return the number of cases.

    The environment variable *name*, *sample* of a sampled proof, else *full*.
    """
    asked = os.environ.get(name) if name else None
    return int(asked or (sample if sampled() else full))
