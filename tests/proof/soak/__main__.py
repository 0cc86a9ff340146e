"""
``python -m tests.proof.soak --seconds 3600 --svg soak.svg``.

What grows while 1,000 messages a second pass.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path

from tests.proof.soak.picture import picture
from tests.proof.soak.run import soak


def main(arguments: list[str]) -> int:
    """Soak as asked; print the figures as JSON, and draw them."""
    parser = ArgumentParser(prog="python -m tests.proof.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="messages in a second")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two samples")
    parser.add_argument("--svg", type=Path, help="where the picture goes")
    chosen = parser.parse_args(arguments)
    course = soak(seconds=chosen.seconds, rate=chosen.rate, every=chosen.every)
    sys.stdout.write(json.dumps(course.told(), indent=2) + "\n")
    if chosen.svg is not None:
        chosen.svg.write_text(picture(course), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
