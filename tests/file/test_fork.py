"""Fork: a child of a process that has a postbox open can do no harm with it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, run

from onceward.file.owner_lock import OwnerLock

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
        "check": box.file.check, "state": lambda: box.state("x"),
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
states = sorted({box.state(each) for each in kept})
found = [str(each) for each in box.file.check()]
box.close()
with Postbox(path, agent="a", start=False) as box:
    states += sorted({box.state(each) for each in kept})
print(json.dumps([told, status, states, found]))
"""


def report_of(path: Path, engines: str, ending: str) -> list[Any]:
    """Run the program in a process of its own, which may fork without hurting the tests."""
    done = run([*PYTHON, "-c", PROGRAM, path, engines, ending], check=False)
    assert "" == done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_every_call_in_a_forked_child_says_so(tmp_path: Path) -> None:
    """
    No call works, none touches the file, closing is harmless.

    The parent goes on as if nothing had been.
    """
    report, status, states, found = report_of(tmp_path / "a.db", "none", "exit")
    told, untouched = report

    assert {"close": "fine"} | dict.fromkeys(told, "ForkedProcess") | {"close": "fine"} == told
    assert (True, 0, ["pending", "pending"], []) == (untouched, status, states, found)


def test_a_child_of_a_running_postbox_ends_without_hanging(tmp_path: Path) -> None:
    """
    With engines running, too, a child closes and leaves at once.

    The engines live on in the parent alone.
    """
    report, status, states, found = report_of(tmp_path / "a.db", "engines", "leave")
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


CODES = {"exit": 3, "raise": 1, "exec": 1, "leave": 4, "return": 0, "double": 0, "process": 0}
"""The exit code of a child, by its ending; one that goes on with a transaction raises."""
HANDLERS = (
    "function", "written", "around", "coroutine", "step of a coroutine", "batch", "run", "caller",
)  # fmt: skip
BLOCKS = ("step", "block", "async block")
ENDINGS = [
    *((place, "return") for place in (*HANDLERS, *BLOCKS)),
    *((place, "exit") for place in (*HANDLERS, *BLOCKS, "main")),
    *(
        (place, ending)
        for place in ("function", "written", "block")
        for ending in ("raise", "exec", "leave", "double", "process", "pool")
    ),
    *((place, "process") for place in ("coroutine", "batch", "run", "async block", "main")),
]


@pytest.mark.parametrize(("place", "ending"), ENDINGS)
def test_a_child_leaves_the_middle_of_a_program(tmp_path: Path, place: str, ending: str) -> None:
    """
    Every verb says that the child is one, and the child ends as a program does.

    Its parent handles each message once, and loses nothing that it has acknowledged.
    """
    program = Path(__file__).with_name("fork_program.py")
    done = run([*PYTHON, program, tmp_path, place, ending], check=False)
    lines = [json.loads(each) for each in (tmp_path / "told").read_text("utf-8").splitlines()]
    told = dict(lines)
    left, code = told.pop("left", done.stderr), told.pop("code", 0)

    assert {"ForkedProcess"} == set(told.values()), told
    assert [[0, 1, 2, 3, 4], True, 0, [], "ok"] == left
    raises = place in BLOCKS and ending in {"return", "double"}
    assert (1 if raises else CODES.get(ending, 0)) == code, done.stderr


HOME = """
import json, os, sys, threading, warnings
from pathlib import Path
from onceward import Agent, Context, Postbox

warnings.simplefilter("ignore")
folder, load = Path(sys.argv[1]), sys.argv[2]
stop, answered = threading.Event(), threading.Event()
agent = Agent("a")


@agent.on("hello")
def hello(name: str, ctx: Context) -> None:
    ctx.send(name, "hello", type="echo")


@agent.on("fork")
async def fork_here(_: int) -> None:
    fork()
    answered.set()


def child(name: str) -> None:
    told, heard = {}, threading.Event()
    mine = Agent(name)

    @mine.on("echo")
    def echo(_: str) -> None:
        heard.set()

    try:
        with Postbox(folder / f"{name}.db", agent=mine) as box:
            told["agents"] = {"a", "c"} <= {each.name for each in box.agents.list()}
            box.send("a", name, type="hello")
            told["heard"], told["left"] = heard.wait(30), box.flush(timeout=30)
    except BaseException as error:
        told["error"] = repr(error)
    (folder / f"{name}.json").write_text(json.dumps(told))


def fork() -> None:
    for name in ("x", "y", "z"):
        if os.fork() == 0:
            child(name)
            os._exit(0)
    for _ in range(3):
        os.wait()


def work(n: int) -> None:
    while not stop.is_set():
        if n == 0:
            box.send("c", 1)
        elif n == 1:
            box.query("SELECT count(*) FROM onceward_outbox")
        else:
            with Postbox(folder / f"d{n}.db", agent=f"d{n}", start=False) as other:
                other.send("c", 1)


box = Postbox(folder / "a.db", agent=agent, hold_unknown=True)
Postbox(folder / "c.db", agent="c")
threads = [threading.Thread(target=work, args=(n,)) for n in range(4 if load == "busy" else 0)]
for each in threads:
    each.start()
if load == "handler":
    box.send("a", 1, type="fork")
    answered.wait(100)
else:
    fork()
stop.set()
for each in threads:
    each.join()
print([str(each) for each in box.file.check()])
os._exit(0)
"""


@pytest.mark.parametrize("load", ["idle", "busy", "handler"])
def test_a_child_opens_another_agent_as_any_process(tmp_path: Path, load: str) -> None:
    """
    It is registered, finds the agents of its home, and exchanges messages with its parent's.

    Threads of the parent that read, write, open and close files do not stop it.
    """
    done = run([*PYTHON, "-c", HOME, tmp_path, load], check=False)
    told = [json.loads((tmp_path / f"{name}.json").read_text("utf-8")) for name in "xyz"]

    assert [{"agents": True, "heard": True, "left": 0}] * 3 == told
    assert ("[]\n", "") == (done.stdout, done.stderr)


INSIDE = """
import os, sys, threading, warnings
import apsw
from onceward import Postbox
from onceward.errors import ForkedProcess
from onceward.file import forks

warnings.simplefilter("ignore")
forks.PATIENCE = 0.0
box = Postbox(sys.argv[1] + "/a.db", agent="a")
other, inside, done = apsw.Connection(":memory:"), threading.Event(), threading.Event()
other.create_scalar_function("hang", lambda: inside.set() or done.wait())
thread = threading.Thread(target=lambda: other.execute("SELECT hang()").fetchall())
thread.start()
inside.wait()
if os.fork() == 0:
    try:
        Postbox(sys.argv[1] + "/b.db", agent="b")
    except ForkedProcess as error:
        os._exit(0 if "forkserver" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.wait()[1]))
done.set()
thread.join()
box.close()
"""


def test_a_thread_that_stays_inside_sqlite_hangs_no_child(tmp_path: Path) -> None:
    """A mutex that the thread holds stays locked in the child: opening a file says so."""
    done = run([*PYTHON, "-c", INSIDE, tmp_path], check=False)
    assert ("0\n", "") == (done.stdout, done.stderr)


BUILDS = """
import os, signal, sys, threading, warnings
from pydantic import BaseModel
from pydantic_core import core_schema
from onceward import Postbox

warnings.simplefilter("ignore")
begun, done = threading.Event(), threading.Event()


class Slow:
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        begun.set()
        done.wait()
        return core_schema.any_schema()


class Model(BaseModel, defer_build=True):
    slow: Slow


box = Postbox(sys.argv[1] + "/a.db", agent="a")
thread = threading.Thread(target=Model.model_rebuild)
thread.start()
begun.wait()
if os.fork() == 0:
    signal.alarm(60)
    with Postbox(sys.argv[1] + "/b.db", agent="b") as other:
        other.send("b", "hello")
        with other.receive(str) as message:
            os._exit(0 if message.body == "hello" else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
done.set()
thread.join()
box.close()
"""


def test_a_thread_that_builds_a_model_hangs_no_child(tmp_path: Path) -> None:
    """The lock under which pydantic builds models is free in the child, which reads messages."""
    done = run([*PYTHON, "-c", BUILDS, tmp_path], check=False)
    assert ("0\n", "") == (done.stdout, done.stderr)


ENDS_BUILD = """
import os, signal, sys, threading, time, warnings
from pydantic import BaseModel
from pydantic_core import core_schema
from onceward import Postbox
from onceward.message.frame import Frame

warnings.simplefilter("ignore")
begun, ended, parent = threading.Event(), [], os.getpid()


class Slow:
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        begun.set()
        time.sleep(0.3)
        ended.append(True)
        return core_schema.any_schema()


class Model(BaseModel, defer_build=True):
    slow: Slow


box = Postbox(sys.argv[1] + "/a.db", agent="a")
print(Frame.__pydantic_complete__)
for _ in range(2):
    thread = threading.Thread(target=Model.model_rebuild, kwargs={"force": True})
    thread.start()
    begun.wait()
    if os.fork() == 0:
        signal.alarm(60)
        again = threading.Thread(target=Model.model_rebuild, kwargs={"force": True})
        again.start()
        again.join()
        os._exit(len(ended))
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    thread.join()
    begun.clear()
box.close()
"""


def test_a_fork_waits_for_a_thread_that_builds_a_model(tmp_path: Path) -> None:
    """
    No part of pydantic stays locked in the child; parent and child build models afterwards.

    The model of frames was built as the engines started, so no engine builds it beside a fork.
    """
    done = run([*PYTHON, "-c", ENDS_BUILD, tmp_path], check=False)
    assert ("True\n2\n3\n", "") == (done.stdout, done.stderr)


VALIDATES = """
import os, sys, threading, time, warnings
from typing import Annotated
from pydantic import BeforeValidator
from onceward import Postbox

warnings.simplefilter("ignore")
begun, ended = threading.Event(), []


def slow(value):
    begun.set()
    time.sleep(0.3)
    ended.append(True)
    return value


def receive():
    with box.receive(Annotated[str, BeforeValidator(slow)]) as message:
        ended.append(message.body)


box = Postbox(sys.argv[1] + "/a.db", agent="a", start=False)
box.send("a", "hello")
box.run_until_idle()
thread = threading.Thread(target=receive)
thread.start()
begun.wait()
if os.fork() == 0:
    os._exit(len(ended))
print(os.waitstatus_to_exitcode(os.wait()[1]) > 0)
thread.join()
print(ended)
box.close()
"""


def test_a_fork_waits_for_a_thread_that_validates_a_body(tmp_path: Path) -> None:
    """A validator that initializes itself in another thread would never be ready in the child."""
    done = run([*PYTHON, "-c", VALIDATES, tmp_path], check=False)
    assert ("True\n[True, 'hello']\n", "") == (done.stdout, done.stderr)


IMPORTS = """
import os, signal, sys, threading, warnings
from onceward import Postbox

warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
begun = threading.Event()
box = Postbox(sys.argv[1] + "/a.db", agent="a", start=False)
thread = threading.Thread(target=__import__, args=["slow"])
thread.start()
begun.wait()
if os.fork() == 0:
    signal.alarm(20)
    import slow
    os._exit(slow.VALUE)
print(os.waitstatus_to_exitcode(os.wait()[1]))
thread.join()
box.close()
"""
SLOW = """
import sys, time

sys.modules["__main__"].begun.set()
time.sleep(0.3)
VALUE = 7
"""


def test_a_fork_waits_for_a_thread_that_imports(tmp_path: Path) -> None:
    """The lock of the module would stay taken in the child, which imports it, too."""
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    done = run([*PYTHON, "-c", IMPORTS, tmp_path], check=False)
    assert ("7\n", "") == (done.stdout, done.stderr)


OUTLIVES = """
import os, sys
from onceward import Postbox

box = Postbox(sys.argv[1], agent="a")
if os.fork() == 0:
    os.close(1)
    sys.stdin.read()
    os._exit(0)
os._exit(0)
"""


def test_a_child_keeps_no_lock_of_a_parent_that_has_ended(tmp_path: Path) -> None:
    """The next process is the first one of the file, although the child still runs."""
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", OUTLIVES, tmp_path / "a.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        assert (0, b"") == (parent.wait(60), parent.stdout.read())
        lock = OwnerLock(tmp_path / "a.db", patience=0.0)
        lock.close()

    assert lock.exclusive
