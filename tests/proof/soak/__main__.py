"""
``python -m tests.proof.soak --seconds 3600 --svg soak.svg``.

What grows while 1,000 messages a second pass; ``--mixed``: what grows or goes wrong while all kinds
of work are done, processes are killed, files are restored and the clock jumps.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.proof.soak.mixed import mixed
from tests.proof.soak.picture import picture
from tests.proof.soak.run import soak


def main(arguments: list[str]) -> int:
    """Soak as asked; print the figures as JSON, and draw them."""
    parser = ArgumentParser(prog="python -m tests.proof.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--mixed", action="store_true", help="all kinds of work, and faults")
    parser.add_argument("--rate", type=float, help="messages in a second: 1,000, mixed 10")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two samples")
    parser.add_argument("--svg", type=Path, help="where the picture goes")
    chosen = parser.parse_args(arguments)
    if chosen.mixed:
        with TemporaryDirectory(prefix="onceward-soak-") as folder:
            rate = chosen.rate or 10.0
            course, told = mixed(Path(folder), seconds=chosen.seconds, rate=rate)
    else:
        course = soak(seconds=chosen.seconds, rate=chosen.rate or 1000.0, every=chosen.every)
        told = course.told()
    sys.stdout.write(json.dumps(told, indent=2) + "\n")
    if chosen.svg is not None:
        chosen.svg.write_text(picture(course), encoding="utf-8")
    return 1 if told.get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
