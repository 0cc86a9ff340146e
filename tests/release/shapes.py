"""The JSON of shell commands as its members and their types: ``--json`` may gain members only."""

from __future__ import annotations

import io
import json
import os
import shlex
from contextlib import closing, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import apsw

from onceward.ops.cli import main

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS: Final = """
ls
ls lanes
ls outbox
ls inbox
show {sent}
why {sent}
stats
history
thread {sent}
agents ls
agents register --description helps
agents subscribe later.#
agents unsubscribe later.#
channel ls
channel show review
channel history review
channel send news red --topic build.failed
mailbox ls
mailbox ensure more
mailbox send more text
mailbox query more
mailbox show more
mailbox reset more cursor
peers ls
peers add far http://127.0.0.1:9
peers allow far --type note
peers subscribe far later.#
peers unsubscribe far later.#
peers reset far
peers remove far
keys new near
keys ls
keys rotate near
keys remove near
dead ls
limits ls
limits fullness
limits drops
limits set session more --messages 5
limits remove session more
groups ls
pools add thumbs crew
pools join pages
pools ls
pools drain pages
pools leave pages
pools release thumbs
pools remove thumbs crew
schedules add nightly count --every 1d --to crew
schedules ls
schedules dates nightly
schedules pause nightly
schedules resume nightly
schedules run nightly
schedules remove nightly
runs ls
runs queues
sessions stats
send crew hello
receive --type note
publish later text
cancel {sent}
maintain
pause
resume
check
migrate {db}
sql "SELECT count(*) AS n FROM onceward_outbox"
backup {copy}
metrics
fleet reconcile {home}
"""
"""One call of each in the file of ``lead``, in this order."""
WITHOUT: Final = {
    "it runs until it is stopped, or serves another program": (
        "work", "relay", "serve", "tail", "top", "inspect", "mcp", "demo",
    ),
    "it needs an extra that the tests of releases do without": (
        "ship", "fleet demo", "fleet export", "fleet metrics", "fleet threads", "fleet graph",
    ),
    "it makes a folder with a program, or prints a script": ("new", "completion"),
    "it answers or ends the work of a handler or reader that has begun": (
        "reply", "poll", "channel receive", "channel ack", "channel acks", "mailbox read",
        "mailbox discard", "dead replay", "dead discard", "dead edit", "runs show", "runs abort",
        "runs set", "runs reorder", "runs discard", "runs pause", "runs resume", "runs remove",
        "schedules edit", "fleet replay", "restore", "takeover",
    ),
    "it prints a row of a list that is kept": (
        "init", "channel create", "channel join", "channel leave", "channel add", "channel remove",
        "channel subscribe", "channel unsubscribe", "channel pause", "channel resume",
        "channel drain", "channel close", "channel delete", "agents remove", "keys add",
    ),
    "it reaches another machine, or needs an index": ("peers ping", "nats setup", "search"),
    "what it finds depends on the machine": ("doctor",),
    "it needs the key of a home, and an extra for it": (
        "homes show", "homes ls", "homes add", "homes ping", "homes rotate", "homes remove",
        "homes agents",
    ),
}  # fmt: skip
"""Commands without a golden document, by reason."""


def documents(home: Path) -> dict[str, Any]:
    """Run each command in a home, and return its exit code and the shape of its document."""
    with closing(apsw.Connection(str(home / "lead.db"))) as con:
        [(sent,)] = con.execute(PENDING).fetchall()
    given = {"sent": sent, "db": home / "lead.db", "copy": home / "copy.db", "home": home}
    found = dict[str, Any]()
    environment = {"ONCEWARD_HOME": str(home), "ONCEWARD_AGENT": "lead"}
    with patch.dict(os.environ, environment):
        for line in COMMANDS.strip().splitlines():
            found[line] = _ran([*shlex.split(line.format(**given)), "--json"])
    return found


PENDING: Final = "SELECT id FROM onceward_outbox WHERE state = 'pending' ORDER BY seq LIMIT 1"


def _ran(argv: list[str]) -> dict[str, Any]:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = main(argv)
    try:
        return {"code": code, "shape": shape(json.loads(out.getvalue()))}
    except ValueError:
        return {"code": code, "shape": None}


def shape(value: Any) -> Any:
    """Return the members of a document, and the types of their values."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return [_together([shape(each) for each in value])] if value else []
    return type(value).__name__


def _together(shapes: list[Any]) -> Any:
    """Return the shape of a list's elements: the members of all of them."""
    objects = [each for each in shapes if isinstance(each, dict)]
    if len(objects) == len(shapes):
        names = sorted({name for each in objects for name in each})
        return {name: _together([each[name] for each in objects if name in each]) for name in names}
    known = [each for each in shapes if each != "NoneType"]
    return known[0] if known else "NoneType"


def lost(before: Any, now: Any, place: str = "") -> list[str]:
    """Return the members and types of one shape that another one lacks."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            problem
            for name, each in before.items()
            for problem in lost(each, now.get(name, "nothing"), f"{place}.{name}")
        ]
    if isinstance(before, list) and isinstance(now, list):
        return lost(before[0], now[0], f"{place}[]") if before and now else []
    same = before == now or "NoneType" in {str(before), str(now)}
    return [] if same and now != "nothing" else [f"{place}: {before}, now {now}"]
