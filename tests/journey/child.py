"""
A process of its own: ``child.py TASK HOME NAME``.

It says on stdout what it does and hears on stdin when to go on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Event as Flag
from typing import Any

from onceward import Agent, Context, Msg, Postbox

BRISK: dict[str, Any] = {
    "lease": 2.0,
    "deliver_timeout": 2.0,
    "delivery_retry": "0.05s..0.2s ±0%",
    "handler_retry": "0.05s..0.2s ±0%",
    "ack_timeout": 5.0,
    "delivery_attempts": 101,  # a stalled machine gives no message up
    "tuning": {"breaker_open_for": 0.2},
}
"""Short spans, so that what died is replaced soon."""


GO = Flag()
"""Set by the first line on stdin."""


class Job(Msg, type="job"):
    """A task: ``wait`` holds the handler until stdin speaks, ``exit`` ends the process in it."""

    n: int
    do: str = ""


def say(word: object) -> None:
    """Tell the parent."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def effects_of(name: str, *, attempts: int = 5, timeout: float | None = None) -> Agent:
    """Return an agent that writes one row per job."""
    agent = Agent(name)

    @agent.on(Job, attempts=attempts, timeout=timeout)
    def work(job: Job, ctx: Context) -> None:
        if job.do == "exit":
            os._exit(7)
        if job.do == "wait" and ctx.message.attempt == 1:
            say(f"inside {job.n}")
            GO.wait()
        ctx.tx.execute(
            "INSERT INTO effects (id, session, n) VALUES (?, ?, ?)",
            (ctx.message.id, ctx.session, job.n),
        )

    return agent


def work(home: Path, name: str) -> None:
    """Handle mail until stdin ends."""
    with Postbox(home / f"{name}.db", agent=effects_of(name), **BRISK):
        say("ready")
        until_told()


def limited(home: Path, name: str) -> None:
    """Handle mail until stdin ends; no handler may run for longer than a moment."""
    with Postbox(home / f"{name}.db", agent=effects_of(name, timeout=0.05), **BRISK):
        say("ready")
        until_told()


def relay(home: Path, name: str) -> None:
    """Carry mail until stdin ends."""
    settings = BRISK | {"tuning": BRISK["tuning"] | {"parcel_max_messages": 7}}
    with Postbox(home / f"{name}.db", agent=name, **settings):
        say("ready")
        until_told()


def send(home: Path, name: str) -> None:
    """Send job after job and say each id once it is committed, until killed."""
    with Postbox(home / f"{name}.db", agent=name, **BRISK) as box:
        [(begun,)] = box._db.read("SELECT coalesce(max(seq), 0) FROM _onceward_outbox")
        for n in range(begun, begun + 1_000_000):
            say(box.send("billing", Job(n=n)))


def until_told() -> None:
    """Return when the parent closes stdin."""
    for _ in sys.stdin:
        GO.set()


if __name__ == "__main__":
    {"work": work, "limited": limited, "relay": relay, "send": send}[sys.argv[1]](
        Path(sys.argv[2]), sys.argv[3]
    )
