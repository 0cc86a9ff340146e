"""The seed of the day: explorations look at other states every day, and at the same ones when they are asked to."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Final

SEED: Final = "ONCEWARD_SEED"


def seed_of_the_day() -> int:
    """Return ONCEWARD_SEED where it is set, else today's date (UTC) as a number."""
    return int(os.environ.get(SEED) or f"{datetime.now(UTC):%Y%m%d}")
