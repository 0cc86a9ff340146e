"""Processes that tests start lose none of their words."""

from __future__ import annotations

import signal

from tests.children import PYTHON, Child

COUNTS = """
import sys
print(*range(5000), sep="\\n", flush=True)
print("all", file=sys.stderr, flush=True)
input()
"""


def test_what_was_not_heard_is_told_at_the_end() -> None:
    """Some lines are heard, the others come with the end: none is lost or cut between."""
    with Child([*PYTHON, "-c", COUNTS], "stdin", "stdout", "stderr") as child:
        heard = [child.hear() for _ in range(3000)]
        assert "all\n" == child.read()
        rest, _ = child.stop(signal.SIGKILL)

    assert [*map(str, range(5000))] == heard + rest.splitlines()
