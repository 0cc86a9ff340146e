"""The busy agent: what it prints, and what its files say afterwards."""

import os
import subprocess
import sys
from pathlib import Path

from onceward import Postbox

CHAT = Path(__file__).parents[2] / "examples" / "busy_agent" / "chat.py"
TOLD = """\
user:   write me a parser
coder:  read the code: done, and safe
coder:  write regular expressions: done, and safe
user:   not with regular expressions: use ast
coder:  stopped after ['read the code', 'write regular expressions']; \
now: 'not with regular expressions: use ast'
user:   hears 'rewritten, and given to the tester'
tester: testing what 3 steps made
coder:  the tester says '12 passed'
user:   hears 'done, and tested'
file:   a run of 1 in mode steer: aborted
file:   a run of 2 in mode steer: done
file:   a run of 1 in mode steer: done
"""


def test_it_tells_the_same_story_every_time(tmp_path: Path) -> None:
    """
    Steered, a run goes on from its checkpoint.

    What the ended run said without a commit is never sent.
    """
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(CHAT), str(tmp_path)],
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # else a line and its end are two writes
        capture_output=True,
        text=True,
        check=True,
    )

    lines = ran.stdout.splitlines()
    order = sorted(lines, key=TOLD.splitlines().index)
    assert TOLD.splitlines() == order
    assert [line for line in TOLD.splitlines() if line[:5] in {"coder", "file:"}] == [
        line for line in lines if line[:5] in {"coder", "file:"}
    ]
    for name in ("coder", "tester", "user"):
        with Postbox(tmp_path / f"{name}.db", start=False) as box:
            assert [] == box.file.check()
