"""``python -m tests.proof.liveness``: what the slowest verb took beside each thing that is held."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.proof.liveness.holds import HOLDS
from tests.proof.liveness.judge import Waited, judged


def main() -> int:
    """Print a line for each thing that is held; return 1 if a verb waited for one."""
    late: list[Waited] = []
    for held in HOLDS:
        with tempfile.TemporaryDirectory() as folder:
            told = judged(held, Path(folder))
        slowest, verb = told.slowest
        print(f"{held:40} {told.verbs:4} verbs, slowest {1000 * slowest:6.1f} ms: {verb}")
        late += told.waited
    print(*late, sep="\n")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
