"""
Two agents on two machines, which here are two folders and two ports of this one.

Alice sends numbers to Bob over HTTP, and Bob adds them up in his own file. His process is
killed in the middle and started again: the sum has each number once.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from onceward import Agent, Context, Postbox
from onceward.http import HttpListener
from onceward.keys import Keys

NUMBERS = 200
bob = Agent("bob")


@bob.on("number")
def add(number: int, ctx: Context) -> None:
    """Add a number, in the commit that marks its message as handled."""
    ctx.tx.execute("UPDATE total SET n = n + ?", (number,))


@bob.on("total")
def total(_: None, ctx: Context) -> int:
    """Return the sum of all numbers before this question."""
    [(n,)] = ctx.tx.execute("SELECT n FROM total")
    return int(n)


def serve_bob(home: Path, port: int, alice: str) -> None:
    """Handle what comes for Bob, until this process is killed."""
    listener = HttpListener(f"http://127.0.0.1:{port}")
    with Postbox(home / "bob.db", agent=bob, listeners=[listener]) as box:
        box.peers.add("alice", alice)
        print("ready", flush=True)
        signal.pause()


def run(folder: Path) -> None:
    """Play Alice, and start, kill and start the process of Bob."""
    near, far = folder / "alice-home", folder / "bob-home"
    near.mkdir()
    far.mkdir()
    Keys(far).add("alice", Keys(near).create("bob"))
    with Postbox(far / "bob.db", agent="bob", start=False) as box, box.begin() as tx:
        tx.execute("CREATE TABLE total (n INTEGER)")
        tx.execute("INSERT INTO total VALUES (0)")
    port = free_port()
    listener = HttpListener("http://127.0.0.1:0")
    with Postbox(
        near / "alice.db",
        agent="alice",
        listeners=[listener],
        delivery_retry="100ms",
    ) as alice:
        alice.peers.add("bob", f"http://127.0.0.1:{port}")
        child = start(far, port, listener.url)
        alice.send_many([("bob", n) for n in range(NUMBERS // 2)], type="number")
        print("the sum is", alice.ask("bob", None, type="total", reply=int, timeout=60))
        alice.send_many([("bob", n) for n in range(NUMBERS // 2, NUMBERS)], type="number")
        child.kill()
        child.wait()
        print("the process of Bob was killed")
        child = start(far, port, listener.url)
        print("the sum is", alice.ask("bob", None, type="total", reply=int, timeout=60))
        child.kill()
        child.wait()


def start(home: Path, port: int, alice: str) -> subprocess.Popen[bytes]:
    """Start Bob's process, and wait until it serves."""
    command = [sys.executable, __file__, "bob", str(home), str(port), alice]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - this very file
    assert child.stdout is not None  # noqa: S101 - it is a pipe
    child.stdout.readline()
    return child


def free_port() -> int:
    """Return a port that no process listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["bob", home, at, alice_url]:
            serve_bob(Path(home), int(at), alice_url)
        case [place]:
            run(Path(place))
        case _:
            with tempfile.TemporaryDirectory() as made:
                run(Path(made))
