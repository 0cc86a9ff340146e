"""
A second SQLite library in the same process takes our locks away when it closes the file.

The standard library's is refused. A plain handle is not, and neither is ATTACH: one
that is opened and closed once loses no send that had returned, even when the process
is killed afterwards and another one opens and closes the file. Many of them may.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceward import Postbox

VICTIM = """
import json, os, signal, sqlite3, sys
from pathlib import Path
from onceward import Postbox
from onceward.errors import ForeignHandle

path, when = Path(sys.argv[1]), sys.argv[2]

def library():
    try:
        sqlite3.connect(path)
    except ForeignHandle:
        return
    raise AssertionError("not refused")

def attach():
    con = sqlite3.connect(":memory:")
    con.execute("ATTACH ? AS other", (str(path),))
    con.execute("SELECT count(*) FROM other.sqlite_master").fetchall()
    con.close()

def plain():
    with path.open("rb") as file:
        file.read(100)

def side():
    with Path(f"{path}-shm").open("rb") as file:
        file.read(100)

box = Postbox(path, agent="ann", start=False, hold_unknown=True)
kept = [box.send("bob", n) for n in range(5)]
{"library": library, "attach": attach, "read": plain, "shm": side}[when]()
refused = 0
for n in range(50):
    try:
        kept.append(box.send("bob", n))
    except Exception:
        refused += 1
print(json.dumps([kept, refused]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
PASSER_BY = """
import sqlite3, sys
con = sqlite3.connect(sys.argv[1])
con.execute("SELECT count(*) FROM sqlite_master").fetchall()
con.close()
"""


@pytest.mark.parametrize("hazard", ["library", "attach", "read", "shm"])
def test_no_acknowledged_send_is_lost(tmp_path: Path, hazard: str) -> None:
    """
    Foreign handles on the file or beside it are opened and closed in mid-work.

    Every send that returned is there afterwards.
    """
    path = tmp_path / "ann.db"
    victim = subprocess.run(
        [sys.executable, "-c", VICTIM, str(path), hazard],
        capture_output=True,
        text=True,
        check=False,
    )
    assert -signal.SIGKILL == victim.returncode, victim.stderr
    kept, refused = json.loads(victim.stdout)
    subprocess.run([sys.executable, "-c", PASSER_BY, str(path)], check=True)

    with Postbox(path, agent="ann", start=False) as box, box.begin() as tx:
        there = {str(i) for (i,) in tx.execute("SELECT id FROM _onceward_outbox")}

    assert [] == [i for i in kept if i not in there]
    assert 55 == len(kept) + refused
