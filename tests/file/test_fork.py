"""Fork: a child of a process that has a postbox open can do no harm with it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import json, os, sys, warnings
from pathlib import Path
from onceward import Postbox
from onceward.errors import ForkedProcess

warnings.simplefilter("ignore")
path = Path(sys.argv[1])
box = Postbox(path, agent="a", start=sys.argv[2] == "engines", hold_unknown=True)
kept = [box.send("b", k) for k in range(20)]
before = path.stat().st_size
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    calls = {
        "send": lambda: box.send("b", 1), "send_many": lambda: box.send_many([("b", 1)]),
        "begin": lambda: box.begin().__enter__(),
        "request": lambda: box.request("b", 1), "receive": box.receive, "stats": box.file.stats,
        "history": box.history, "health": box.file.health,
        "check": box.file.check, "resolve": lambda: box.resolve("x"),
        "cancel": lambda: box.cancel("x"),
        "pause": box.file.pause, "resume": box.file.resume,
        "run_until_idle": box.run_until_idle, "run_maintenance": box.file.run_maintenance,
        "thread": lambda: box.thread("x"), "peers": box.peers.list, "dead": box.dead_letters.list,
        "register": lambda: box.peers.add("x", "memory:x"),
        "replay": lambda: box.dead_letters.replay("x"),
        "result": lambda: box.result("x", reply=int),
        "checkpoint": lambda: box._db.checkpoint(truncate=False),
        "session": lambda: box.session("s").send("b", 1),
        "again": lambda: Postbox(path, agent="a", start=False),
    }
    told = {}
    for name, call in calls.items():
        try:
            call()
            told[name] = "nothing"
        except BaseException as error:
            told[name] = type(error).__name__
    try:
        box.close()
        box.close()
        told["close"] = "fine"
    except BaseException as error:
        told["close"] = repr(error)
    os.write(writing, json.dumps([told, path.stat().st_size == before]).encode())
    if sys.argv[3] == "exit":
        sys.exit(0)
    os._exit(0)
_, status = os.waitpid(child, 0)
told = json.loads(os.read(reading, 65536))
kept.append(box.send("b", 2))
states = sorted({box.resolve(each) for each in kept})
found = [str(each) for each in box.file.check()]
box.close()
with Postbox(path, agent="a", start=False) as box:
    states += sorted({box.resolve(each) for each in kept})
print(json.dumps([told, status, states, found]))
"""


def run(path: Path, engines: str, ending: str) -> list[Any]:
    """Run the program in a process of its own, which may fork without hurting the tests."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), engines, ending],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "" == done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_every_call_in_a_forked_child_says_so(tmp_path: Path) -> None:
    """
    No call works, none touches the file, closing is harmless.

    The parent goes on as if nothing had been.
    """
    report, status, states, found = run(tmp_path / "a.db", "none", "exit")
    told, untouched = report

    assert {"close": "fine"} | dict.fromkeys(told, "ForkedProcess") | {"close": "fine"} == told
    assert (True, 0, ["pending", "pending"], []) == (untouched, status, states, found)


def test_a_child_of_a_running_postbox_ends_without_hanging(tmp_path: Path) -> None:
    """
    With engines running, too, a child closes and leaves at once.

    The engines live on in the parent alone.
    """
    report, status, states, found = run(tmp_path / "a.db", "engines", "leave")
    told, _ = report

    assert (["ForkedProcess"], "fine") == (
        sorted({told[name] for name in told if name != "close"}),
        told["close"],
    )
    assert (0, set(), []) == (status, set(states) - {"pending", "sending"}, found)


LOCKED = """
import os, sys, threading
from onceward import Postbox
from onceward.file import open_files
from onceward.errors import ForkedProcess

box = Postbox(sys.argv[1], agent="a")
held, done = threading.Event(), threading.Event()


def hold() -> None:
    with box._dispatcher._loop._threads._lock, box._lock, open_files.lock:
        held.set()
        done.wait()


threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    box.stop()
    box.close()
    try:
        Postbox(sys.argv[1], agent="a", start=False)
    except ForkedProcess:
        os._exit(0)
    os._exit(1)
print(os.waitpid(child, 0)[1])
done.set()
box.close()
"""


def test_a_lock_that_a_thread_holds_at_the_fork_stops_no_child(tmp_path: Path) -> None:
    """A child does not have that thread, so it would wait for the lock for ever."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOCKED, str(tmp_path / "a.db")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ("0\n", "") == (done.stdout, done.stderr)
