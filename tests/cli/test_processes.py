"""As separate processes: a signal ends work and relay gracefully, with the shell's exit codes."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.children import ONCEWARD, Child
from tests.waiting import until

from onceward import Postbox
from onceward.ops.views.handles import holders

TEXT_LINE = re.compile(r"^[\d-]+ [\d:,]+ (?:INFO|WARNING|ERROR) (handler failed|\S+)")
APP = """
from onceward import Agent

billing = Agent("billing")

@billing.on("hello")
def hello(body: dict) -> dict:
    return {"seen": body["n"]}
"""


STUCK = """
import asyncio, pathlib, time
from onceward import Agent, Context, Retry

stuck = Agent("stuck")

@stuck.on("function")
def function(body: str, ctx: Context) -> None:
    ctx.tx.execute("CREATE TABLE mine (x)")
    pathlib.Path(body).touch()
    time.sleep(600)

@stuck.on("coroutine")
async def coroutine(body: str) -> None:
    try:
        pathlib.Path(body).touch()
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0)
        pathlib.Path(body + ".cleaned").touch()

@stuck.on("fails")
def fails(body: str) -> None:
    raise LookupError("no such customer, token=tok_live")

@stuck.on("later", attempts=2)
def later(body: str) -> None:
    raise Retry("HTTP 503", after=0)

@stuck.on("twice", attempts=2)
def twice(body: str) -> None:
    raise KeyError(body)
"""


CHAT = """
import ctypes, pathlib, time
from onceward import Agent

def heaps(path: str) -> None:
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(path.encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)

def waits(body: str) -> None:
    pathlib.Path(body).touch()
    while not pathlib.Path(body + ".go").exists():
        time.sleep(0.01)

agents = [Agent(name) for name in ("writer", "editor", "manager", "ui")]
for agent in agents:
    agent.on("wait")(waits)
    agent.on("heaps")(heaps)
"""


@contextmanager
def start(*tokens: str, cwd: Path) -> Iterator[Child]:
    """Start a command and yield it once it runs."""
    with Child([*ONCEWARD, *tokens], "stdout", "stderr", cwd=cwd) as child:
        child.said("interrupt to stop")
        yield child


def test_work_handles_mail_until_it_is_terminated(home: Path, shop: Postbox) -> None:
    """A question is answered by the other process; then SIGTERM ends it with 143."""
    (home / "app.py").write_text(APP, encoding="utf-8")
    with (
        start("work", "billing.db", "app:billing", "--json", cwd=home) as child,
        Postbox(shop.file.path, agent="shop") as asking,
    ):
        assert {"seen": 7} == asking.ask("billing", {"n": 7}, type="hello", reply=dict, timeout=60)
        out, _ = child.stop()

    assert 143 == child.returncode
    assert {
        "agent": "billing",
        "path": str(home / "billing.db"),
        "moved": None,
        "signal": "SIGTERM",
    } == json.loads(out)


def test_relay_delivers_until_it_is_interrupted(
    home: Path, shop: Postbox, billing: Postbox
) -> None:
    """A message that another process commits leaves; then SIGINT ends the relay with 130."""
    with start("relay", "shop.db", cwd=home) as child:
        sent = shop.send("billing", 1)
        message = billing.receive(timeout=60)
        assert message is not None
        assert sent == message.id
        out, err = child.stop(signal.SIGINT)

    assert (130, "") == (child.returncode, out)
    assert "SIGINT, stopping" in err


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_team_stops_together(home: Path, number: signal.Signals) -> None:
    """The signal is passed on, and every worker is waited for."""
    (home / "app.py").write_text(APP, encoding="utf-8")
    with start("work", "billing.db", "app:billing", "--processes", "2", cwd=home) as child:
        child.stop(number)

    assert 128 + number == child.returncode


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_agents_of_one_process_stop_together(home: Path) -> None:
    """A signal stops all of them at once: the last one closes while the others still wait."""
    (home / "chat.py").write_text(CHAT, encoding="utf-8")
    with start("work", "chat:agents", "--json", cwd=home) as child:
        sent = dict[str, str]()
        for name in ("writer", "editor", "manager", "ui"):
            with Postbox(home / f"{name}.db", start=False) as box:
                sent[name] = box.send(name, str(home / f"{name}.begun"), type="wait")
        until(lambda: len([*home.glob("*.begun")]) == len(sent))
        child.send_signal(signal.SIGTERM)
        child.said("SIGTERM, stopping")
        for name in reversed(sent):
            (home / f"{name}.begun.go").touch()
            until(lambda name=name: not holders(home / f"{name}.db"))  # type: ignore[misc]
        out, _ = child.communicate(timeout=60)

    assert 143 == child.returncode
    assert [*sent] == [each["agent"] for each in json.loads(out)["agents"]]
    for name, message_id in sent.items():
        with Postbox(home / f"{name}.db", start=False) as box:
            assert "acked" == box.state(message_id)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_four_agents_need_little_more_memory_than_one(home: Path) -> None:
    """All stay below 60 MB together, also after 120 messages, as their threads share two heaps."""
    (home / "chat.py").write_text(CHAT, encoding="utf-8")
    command = [sys.executable, "-m", "onceward", "work", "chat:agents"]
    with subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "interrupt to stop" not in (line := process.stderr.readline()):
            assert line, "it ended"
        with Postbox(home / "sender.db", agent="sender") as sender:
            names = ("writer", "editor", "manager", "ui") * 30
            sent = [sender.send(name, str(home / f"{name}.xml"), type="heaps") for name in names]
            until(lambda: all(sender.state(each) == "acked" for each in sent))
        memory = resident(process.pid)
        process.terminate()

    assert 0 < memory <= 60 * 1024
    assert 2 >= (home / "ui.xml").read_text(encoding="utf-8").count("<heap nr=") > 0


def resident(pid: int) -> int:
    """Return the resident memory of a process in KiB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(text.partition("VmRSS:")[2].split()[0])


@pytest.mark.parametrize("kind", ["function", "coroutine"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stuck_handler_does_not_keep_a_worker(
    home: Path, kind: str, number: signal.Signals, code: int
) -> None:
    """The worker ends by itself, with the code of the signal, before a supervisor would kill it."""
    (home / "app.py").write_text(STUCK, encoding="utf-8")
    begun = home / "begun"
    with start("work", "stuck.db", "app:stuck", cwd=home) as child:
        with Postbox(home / "stuck.db", start=False) as box:
            sent = box.send("stuck", str(begun), type=kind)
            until(begun.exists)
        child.send_signal(number)
        ended = child.wait(timeout=28)

    with Postbox(home / "stuck.db", start=False) as box:
        assert (code, "sent") == (ended, box.state(sent))
        assert [] == box.query("SELECT name FROM sqlite_schema WHERE name = 'mine'")
    assert (kind == "coroutine") == (home / "begun.cleaned").exists()


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_failing_handler_is_logged_with_one_traceback(home: Path, style: str) -> None:
    """The first failure of a message has it; the later ones are a line each."""
    (home / "app.py").write_text(STUCK, encoding="utf-8")
    words = ["--log-format", style, "--log-level", "info"]
    with start("work", "stuck.db", "app:stuck", *words, cwd=home) as child:
        with Postbox(home / "stuck.db", start=False) as box:
            box.send("stuck", "x", type="fails")
            until(lambda: attempts(box) > 1)
        _, err = child.stop()

    assert 1 == err.count("Traceback (most recent call last)")
    assert err.count("handler failed") > 1
    assert "tok_live" not in err
    if style == "json":
        lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        first, later, *_ = [each for each in lines if each["event"] == "handler failed"]
        assert "LookupError: no such customer, token=•••" == first["error"] == later["error"]
        assert (1, True, False) == (first["attempt"], "exception" in first, "exception" in later)


@pytest.mark.parametrize("style", ["text", "json"])
def test_each_retry_and_each_dead_letter_has_one_line(home: Path, style: str) -> None:
    """All lines have one form; a call that failed is not told again as a retry."""
    (home / "app.py").write_text(STUCK, encoding="utf-8")
    with start("work", "stuck.db", "app:stuck", f"--log-format={style}", cwd=home) as child:
        with Postbox(home / "stuck.db", start=False) as box:
            ids = [box.session(each).send("stuck", each, type=each) for each in ("later", "twice")]
            until(lambda: len(box.dead_letters.list()) == len(ids))
        _, err = child.stop()

    lines = [
        line for line in err.splitlines() if not line.startswith(("Traceback", " ", "KeyError"))
    ]
    told = [[event_of(line, style) for line in lines if each in line] for each in ids]
    assert [
        ["retried", "dead_lettered"],
        ["handler failed", "handler failed", "dead_lettered"],
    ] == told
    assert "" not in {event_of(line, style) for line in lines}


def event_of(line: str, style: str) -> str:
    """Return the event of a line, or nothing if it has another form."""
    if style == "json":
        return str(json.loads(line)["event"])
    return "".join(TEXT_LINE.findall(line))


def attempts(box: Postbox) -> int:
    """Return how often the only message was tried."""
    return max([n for (n,) in box.query("SELECT attempts FROM onceward_inbox")], default=0)
