"""A process of its own: ``crew.py TASK FILE MAILBOX …``; it says on stdout what it does."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from onceward import Postbox


def say(*words: object) -> None:
    """Tell the parent."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def share(box: Postbox, mailbox: Any, lease: str) -> None:
    """Handle messages of the group until none come for a while; each leaves a row in the file."""
    while found := mailbox.lease("crew", limit=3, timeout=2.0, lease=float(lease)):
        for message in found:
            with box.begin() as tx:
                tx.execute("INSERT INTO done (id, pid) VALUES (?, ?)", (message.id, os.getpid()))
                message.ack()
    say("end")


def die(box: Postbox, mailbox: Any, lease: str) -> None:
    """Lease messages, say so, and wait to be killed."""
    found = mailbox.lease("crew", limit=5, timeout=60.0, lease=float(lease))
    say("holding", len(found), box.agent)
    sys.stdin.read()


def wait(box: Postbox, mailbox: Any, lease: str) -> None:
    """Say when each message came, on the clock that processes of a machine share."""
    say("ready", box.agent, lease)
    while (message := mailbox.receive("waiters", timeout=60.0)) is not None:
        say(message.body, time.monotonic_ns())
        message.ack()


def ensure(box: Postbox, mailbox: str, lease: str) -> None:
    """Create a mailbox when told to; say whose it is."""
    say("ready")
    sys.stdin.readline()
    made = box.mailboxes.ensure(mailbox, public=True, ttl=float(lease))
    say(made.created, made.owner, made.expires_at)


if __name__ == "__main__":
    task, path, agent, name, lease_for = sys.argv[1:]
    with Postbox(path, agent=agent, start=False) as postbox:
        if task == "ensure":
            ensure(postbox, name, lease_for)
        else:
            {"share": share, "die": die, "wait": wait}[task](
                postbox, postbox.mailboxes.get(name), lease_for
            )
