"""Messages as their two sides tell of them, and the verdict on each; judged by both engines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import apsw

from onceward.fleet import sides
from onceward.fleet.evidence import COLUMNS, file_row, number_of
from onceward.fleet.states import (
    DIFFERING,
    IN_STATES,
    INBOX,
    LOGGED_IN,
    LOGGED_OUT,
    MARK,
    OUT_STATES,
    OUTBOX,
    OUTCOMES,
    SENT_DEAD,
    TAKEN_DEAD,
)
from onceward.fleet.verdicts import Rules
from onceward.message.ids import KEYED

NOW = 10_000_000_000
GRACE = 900.0
OLD = NOW - 5_000_000
"""Long before the grace."""
FRESH = NOW - 1000
"""Within the grace."""
RULES = Rules(now=NOW, grace=GRACE)
OF_SENDER = {OUTBOX, SENT_DEAD, LOGGED_OUT}
Row = dict[str, Any]


def minted(at: int) -> str:
    """Return an id as agents mint them, of a moment."""
    return f"{at >> 16:08x}-{at & 0xFFFF:04x}-7000-8000-{at:012x}"


def keyed(number: int) -> str:
    """Return an id of a message with a key."""
    return f"{KEYED}000-8000-{number:012x}"


def out(state: str, ended: int | None = None, **more: Any) -> Row:
    """Return evidence of the sender's outbox."""
    said = {"side": OUTBOX, "state": 1 + OUT_STATES.index(state), "at": OLD, "ended": ended}
    return said | more


def taken(state: str, at: int = OLD, **more: Any) -> Row:
    """Return evidence of the recipient's inbox."""
    return {"side": INBOX, "state": 1 + IN_STATES.index(state), "at": at} | more


def mark(outcome: str = "processed", at: int = OLD, seq: int = 1, **more: Any) -> Row:
    """Return evidence of the recipient's dedup records."""
    return {"side": MARK, "state": 1 + OUTCOMES.index(outcome), "at": at, "seq": seq} | more


def dead(origin: str, reason: str = "rejected") -> Row:
    """Return evidence of a side's dead letters."""
    side = SENT_DEAD if origin == "outbox" else TAKEN_DEAD
    return {"side": side, "state": 2 if reason == "expired" else 1, "at": OLD}


def logged(side: int, at: int = OLD) -> Row:
    """Return a row of the log that the file read beside it must have."""
    return {"side": side, "at": at}


CASES: dict[str, tuple[str, list[Row]]] = {
    "acked and processed": ("delivered_once", [out("acked", OLD), taken("processed"), mark()]),
    "processed, the sender has not heard of it yet": (
        "delivered_once",
        [out("sent"), taken("processed"), mark()],
    ),
    "processed, the inbox row pruned": ("delivered_once", [out("acked", OLD), mark()]),
    "a stale copy of the recipient's file beside it": (
        "delivered_once",
        [out("acked", OLD), taken("pending"), taken("processed"), mark()],
    ),
    "a stale copy of the sender's file beside it": (
        "delivered_once",
        [out("pending"), out("acked", OLD), taken("processed"), mark()],
    ),
    "a mark seen twice": (
        "delivered_once",
        [out("acked", OLD), taken("processed"), mark(), mark()],
    ),
    "took two hours": (
        "late",
        [out("acked", OLD + 9_000_000), taken("processed"), mark(at=OLD + 7_200_001)],
    ),
    "handled after its time to live": (
        "overdue",
        [out("acked", OLD, expires=OLD + 10), taken("processed"), mark(at=OLD + 11)],
    ),
    "handled at the end of its time to live": (
        "delivered_once",
        [out("acked", OLD, expires=OLD + 10), taken("processed"), mark(at=OLD + 10)],
    ),
    "came again with other contents": (
        "other_contents",
        [out("acked", OLD), taken("processed"), mark(), {"side": DIFFERING, "at": OLD}],
    ),
    "came again with other contents, and the sender was told": (
        "other_contents",
        [out("acked", OLD), mark(), *2 * [{"side": DIFFERING, "at": OLD}]],
    ),
    "came again with other contents, and waits": (
        "unprocessed",
        [out("sent"), taken("pending"), {"side": DIFFERING, "at": OLD}],
    ),
    "given up, then processed": ("late", [dead("outbox"), taken("processed"), mark()]),
    "dropped": ("dropped", [out("acked", OLD), taken("dropped"), mark("dropped")]),
    "withdrawn": ("cancelled", [out("cancelled", OLD)]),
    "cancelled by its recipient": (
        "cancelled",
        [out("cancelled", OLD), taken("cancelled"), mark("cancelled")],
    ),
    "cancelled, in the words of its recipient only": (
        "cancelled",
        [out("sent"), mark("cancelled")],
    ),
    "expired at the sender": ("expired", [dead("outbox", "expired")]),
    "expired in the inbox": ("expired", [out("failed", OLD), taken("expired"), mark("expired")]),
    "dead at the recipient": ("dead_lettered", [out("failed", OLD), dead("inbox"), mark("dead")]),
    "dead at the recipient, discarded there": ("dead_lettered", [out("failed", OLD), mark("dead")]),
    "dead at the recipient, all traces gone": ("dead_lettered", [out("failed", OLD)]),
    "dead at the sender": ("dead_lettered", [dead("outbox")]),
    "waits for its push, however long": ("in_flight", [out("pending")]),
    "was stored, is gone there, will be asked for": ("in_flight", [out("sent")]),
    "acked a moment ago, after the recipient's file was read": ("in_flight", [out("acked", FRESH)]),
    "arrived a moment ago, after the sender's file was read": (
        "in_flight",
        [taken("processed", FRESH), mark(at=FRESH)],
    ),
    "in the inbox since a moment": ("in_flight", [out("sent"), taken("pending", FRESH)]),
    "in the inbox since long": ("unprocessed", [out("sent"), taken("pending")]),
    "in a worker's hands since long": ("unprocessed", [out("sent"), taken("processing")]),
    "its handler waits until a moment to come": (
        "waiting",
        [out("sent"), taken("pending", waits="sleep", until=NOW + 1)],
    ),
    "its handler waits until a moment within the grace": (
        "waiting",
        [out("sent"), taken("pending", waits="sleep", until=FRESH)],
    ),
    "its handler should have gone on long ago": (
        "unprocessed",
        [out("sent"), taken("pending", waits="sleep", until=OLD + 1)],
    ),
    "its handler waits, as its copy does not know yet": (
        "waiting",
        [out("sent"), taken("pending"), taken("pending", waits="retry", until=NOW + 1)],
    ),
    "ended on arrival, for a wait that has not taken it": (
        "kept",
        [out("acked", OLD), taken("processed", waits="wait"), mark()],
    ),
    "taken by a wait, as its copy does not know yet": (
        "delivered_once",
        [out("acked", OLD), taken("processed", waits="wait"), taken("processed"), mark()],
    ),
    "confirmed, and no trace": ("lost", [out("acked", OLD)]),
    "never sent": ("orphan", [taken("processed"), mark()]),
    "in both files, and in their log": (
        "delivered_once",
        [out("acked", OLD), taken("processed"), mark(), logged(LOGGED_OUT), logged(LOGGED_IN)],
    ),
    "deleted at the recipient after it was shipped": (
        "lost",
        [out("acked", OLD), logged(LOGGED_OUT), logged(LOGGED_IN)],
    ),
    "deleted at the recipient before the sender heard of it": (
        "lost",
        [out("sent"), logged(LOGGED_OUT), logged(LOGGED_IN)],
    ),
    "deleted at the sender after it was shipped": (
        "orphan",
        [taken("processed"), mark(), logged(LOGGED_OUT), logged(LOGGED_IN)],
    ),
    "deleted at both after they were shipped": ("lost", [logged(LOGGED_OUT), logged(LOGGED_IN)]),
    "deleted before it left": ("lost", [logged(LOGGED_OUT)]),
    "sent and shipped while files were read": ("in_flight", [logged(LOGGED_OUT, FRESH)]),
    "arrived and was shipped after its file was read": (
        "in_flight",
        [out("sent"), logged(LOGGED_OUT), logged(LOGGED_IN, FRESH)],
    ),
    "accepted twice": (
        "duplicated",
        [out("acked", OLD), taken("processed"), mark(), taken("pending", OLD + 1)],
    ),
    "accepted twice, dead once": (
        "duplicated",
        [out("acked", OLD), dead("inbox"), taken("pending", OLD + 1)],
    ),
    "processed at two moments": (
        "double_processed",
        [out("acked", OLD), taken("processed"), mark(), mark(at=OLD + 1)],
    ),
    "processed under two numbers": (
        "double_processed",
        [out("acked", OLD), taken("processed"), mark(), mark(seq=2)],
    ),
    "never sent, processed twice": (
        "double_processed",
        [taken("processed"), mark(), mark(at=OLD + 1)],
    ),
}
ELSEWHERE: dict[str, tuple[str, tuple[str, str], str, list[Row]]] = {
    "the recipient's file was not read": (
        "unwitnessed", ("alice", "stranger"), "a", [out("acked", OLD)],
    ),
    "pruned from the file while its log was read": (
        "forgotten", ("alice", "pruned"), minted(OLD + 5), [logged(LOGGED_OUT), logged(LOGGED_IN)],
    ),
    "the recipient's file was not read, the sender still has it": (
        "in_flight", ("alice", "stranger"), "b", [out("pending")],
    ),
    "the recipient's file broke while it was read": (
        "unwitnessed", ("alice", "broken"), "c", [out("acked", OLD)],
    ),
    "the sender's file was not read": (
        "unwitnessed", ("stranger", "bob"), "d", [taken("processed"), mark()],
    ),
    "its dedup record may have been pruned": (
        "forgotten", ("alice", "pruned"), minted(OLD), [out("acked", OLD)],
    ),
    "it is younger than the pruned dedup records": (
        "lost", ("alice", "pruned"), minted(OLD + 2000), [out("acked", OLD + 2000)],
    ),
    "dedup records of another sender were pruned": (
        "lost", ("bob", "pruned"), minted(OLD + 1), [out("acked", OLD)],
    ),
    "its id is its sender's own, whose dedup records are kept": (
        "lost", ("alice", "pruned"), "0-chosen", [out("acked", OLD)],
    ),
    "its key's dedup record may have been pruned": (
        "forgotten", ("alice", "pruned"), keyed(1), [out("acked", OLD)],
    ),
    "its key was used after the pruned dedup records": (
        "lost", ("alice", "pruned"), keyed(2), [out("acked", OLD + 2000, at=OLD + 2000)],
    ),
    "the sender's outbox was pruned of a key": (
        "forgotten", ("tidied", "bob"), keyed(3), [taken("processed"), mark()],
    ),
    "a key was used after the pruning": (
        "orphan", ("tidied", "bob"), keyed(4), [taken("processed"), mark(at=OLD + 2000)],
    ),
    "the sender's outbox was pruned": (
        "forgotten", ("tidied", "bob"), minted(OLD), [taken("processed"), mark()],
    ),
    "the sender's outbox was pruned, and it waits": (
        "unprocessed", ("tidied", "bob"), minted(OLD + 1), [taken("pending")],
    ),
    "the sender's outbox was pruned, and its handler waits": (
        "waiting", ("tidied", "bob"), minted(OLD + 2),
        [taken("pending", waits="sleep", until=NOW + 1)],
    ),
    "the sender's outbox was pruned, and its handler is overdue": (
        "unprocessed", ("tidied", "bob"), minted(OLD + 3),
        [taken("pending", waits="sleep", until=OLD)],
    ),
    "the sender's outbox was pruned, and it is kept for a wait": (
        "kept", ("tidied", "bob"), minted(OLD + 4), [taken("processed", waits="wait"), mark()],
    ),
    "the sender's outbox was pruned of older ones only": (
        "orphan", ("tidied", "bob"), minted(OLD + 2000), [taken("processed"), mark(at=OLD + 2000)],
    ),
    "the sender's outbox was pruned of chosen ids, too": (
        "forgotten", ("tidied", "bob"), "chosen", [taken("processed"), mark()],
    ),
    "a chosen id came after the pruning": (
        "orphan", ("tidied", "bob"), "later", [taken("processed"), mark(at=OLD + 2000)],
    ),
}  # fmt: skip
"""Verdict, sender and recipient, id, and evidence; files beside say how far back they go."""


def told(agent: str, **more: Any) -> str:
    """Return what a file says of itself."""
    said: Row = {"agent": agent, "file_id": agent, "pruned_at": None, "streams": {}, "peers": {}}
    return json.dumps(said | more)


FILES = {
    "alice": told("alice"),
    "bob": told("bob"),
    "pruned": told("pruned", streams={"alice": ["1", minted(OLD + 1000)], "bob": ["2", ""]}),
    "tidied": told("tidied", pruned_at=OLD + 1000),
    "broken": told("broken"),
}


def give(con: apsw.Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Add rows of ``COLUMNS`` to the evidence of a workspace."""
    con.execute(f"CREATE TEMP TABLE given ({', '.join(COLUMNS)})")
    con.executemany(f"INSERT INTO temp.given VALUES ({', '.join('?' * len(COLUMNS))})", rows)
    sides.merge(con, "given")


def evidence() -> list[tuple[Any, ...]]:
    """Return the evidence of all cases, as rows of ``COLUMNS``."""
    every: list[tuple[str, tuple[str, str], str, list[Row]]]
    every = [(name, ("alice", "bob"), name, said) for name, (_, said) in CASES.items()]
    every += [(name, pair, key, said) for name, (_, pair, key, said) in ELSEWHERE.items()]
    rows = [
        {"sender": pair[0], "recipient": pair[1], "id": key, "seq": 1, "lane": "normal/l"}
        | {"file": number_of(pair[0] if one["side"] in OF_SENDER else pair[1])}
        | one
        for _, pair, key, said in every
        for one in said
    ]
    rows += [file_row(f"/{name}.db", state=1, said=said) for name, said in FILES.items()]
    rows.append(file_row("/broken.db", state=6, said="malformed"))
    return [tuple(row.get(name) for name in COLUMNS) for row in rows]


def expected() -> dict[tuple[str, str, str], str]:
    """Return the verdict of each case by sender, recipient and id."""
    return {("alice", "bob", name): case[0] for name, case in CASES.items()} | {
        (*pair, key): verdict for verdict, pair, key, _ in ELSEWHERE.values()
    }
