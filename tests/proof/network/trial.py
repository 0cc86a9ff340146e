"""
Messages between two homes over HTTP, through a proxy that spoils, to a process that is killed.

``python -m tests.proof.network.trial HOME PORT ALICE`` is that process.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.forking import Forked
from tests.proof.network.proxy import FAULTS, spoiling

from onceward import Agent, Context, Postbox, Tuning
from onceward.http import HttpListener
from onceward.keys import Keys

ROOT: Final = Path(__file__).parents[3]
LANES: Final = 8
EACH: Final = 400
"""Messages of one trial of a campaign."""
LOOK: Final = 0.05
TABLE: Final = "CREATE TABLE effects (id TEXT, lane TEXT, number INTEGER)"
EFFECT: Final = "INSERT INTO effects VALUES (?, ?, ?)"
EFFECTS: Final = "SELECT lane, number FROM effects ORDER BY rowid"
bob = Agent("bob")


@bob.on("number")
def keep(number: int, ctx: Context) -> None:
    """Keep what came, in the commit that marks it as handled."""
    ctx.tx.execute(EFFECT, (ctx.message.id, ctx.message.session, number))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trial found; ``count`` are its messages."""

    count: int
    kills: int
    spoiled: dict[str, int]
    violations: tuple[str, ...]
    seconds: float


def serve(home: Path, port: int, alice: str) -> None:
    """Play Bob until the process is killed."""
    with Postbox(
        home / "bob.db", agent=bob, listeners=[HttpListener(f"http://127.0.0.1:{port}")]
    ) as box:
        box.peers.add("alice", alice)
        print("ready", flush=True)
        signal.pause()


def trial(
    messages: int,
    kills: int,
    seed: int,
    folder: Path,
    *,
    faults: tuple[str, ...] = FAULTS,
    patience: float = 300,
) -> Verdict:
    """Send *messages* in several lanes, kill Bob *kills* times meanwhile, and judge both files."""
    began, rng = time.monotonic(), random.Random(seed)
    near, far = folder / "near", folder / "far"
    for home in (near, far):
        home.mkdir()
    Keys(far).add("alice", Keys(near).create("bob"))
    with Postbox(far / "bob.db", agent="bob", start=False) as box, box.begin() as tx:
        tx.execute(TABLE)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = int(found.getsockname()[1])
    listener = HttpListener("http://127.0.0.1:0")
    with (
        spoiling(port, seed, faults) as (url, spoiler),
        Postbox(
            near / "alice.db", agent="alice", listeners=[listener],
            delivery_retry="10ms..100ms",
            tuning=Tuning(breaker_open_for=0.05), ack_timeout=1, deliver_timeout=5,
        ) as alice,
    ):  # fmt: skip
        alice.peers.add("bob", url)
        child, killed, sent = start(far, port, listener.url), 0, 0
        until = time.monotonic() + patience
        while time.monotonic() < until and alice.file.stats()["acked"] < messages:
            for _ in range(min(messages - sent, max(1, messages // (4 * kills)))):
                alice.session(f"lane-{sent % LANES}").send("bob", sent, type="number")
                sent += 1
            time.sleep(LOOK * rng.random())
            if killed < kills and rng.random() < 0.5:
                child.kill()
                child.wait()
                child, killed = start(far, port, listener.url), killed + 1
        acked = alice.file.stats()["acked"]
        child.kill()
        child.wait()
        with Postbox(far / "bob.db", start=False) as box:
            wrong = judge(box.query(EFFECTS), messages)
            wrong += [f"{found.invariant} {found.rule}" for found in alice.file.check(box.file)]
    wrong += [f"{acked} of {messages} acked"] * (acked != messages)
    spoiled = {name: count for name, count in spoiler.told.items() if name != "pass"}
    return Verdict(messages, killed, spoiled, tuple(wrong), time.monotonic() - began)


def campaign(messages: int, seconds: float, seed: int) -> Verdict:
    """Make trials one after the other until their messages or the time are used up."""
    began, count, kills, spoiled = time.monotonic(), 0, 0, Counter[str]()
    wrong: list[str] = []
    while not count or (count < messages and time.monotonic() - began < seconds):
        with TemporaryDirectory(prefix="onceward-network-") as folder:
            found = trial(min(messages, EACH), 4, seed + count, Path(folder))
        wrong += [f"seed {seed + count}: {each}" for each in found.violations]
        count, kills = count + found.count, kills + found.kills
        spoiled.update(found.spoiled)
    return Verdict(count, kills, dict(spoiled), tuple(wrong), time.monotonic() - began)


def judge(effects: list[tuple[str, int]], messages: int) -> list[str]:
    """Return which numbers are lost, doubled, or out of the order of their lane."""
    wrong = []
    for lane in range(LANES):
        expected = list(range(lane, messages, LANES))
        found = [number for name, number in effects if name == f"lane-{lane}"]
        if found != expected:
            lost, more = len(set(expected) - set(found)), len(found) - len(set(found))
            wrong.append(f"lane-{lane}: {lost} lost, {more} doubled, of {len(expected)}")
    return wrong


def start(home: Path, port: int, alice: str) -> subprocess.Popen[bytes]:
    """Start Bob's process, and wait until it serves."""
    command = [sys.executable, "-m", __spec__.name, str(home), str(port), alice]
    child = Forked[bytes](command, stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    with child.stdout as said:
        said.readline()
    return child


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
