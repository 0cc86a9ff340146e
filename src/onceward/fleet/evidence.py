"""Express one file's knowledge of each message as numbers, in SQL for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from onceward.fleet.states import (
    DIFFERING,
    FILE,
    IN_STATES,
    INBOX,
    MARK,
    OUT_STATES,
    OUTBOX,
    OUTCOMES,
    SENT_DEAD,
    TAKEN_DEAD,
    ladder,
)

TEXTS: Final = ("sender", "recipient", "id", "lane", "waits")
NUMBERS: Final = ("side", "state", "seq", "at", "sent", "ended", "expires", "until", "file")
COLUMNS: Final = (*TEXTS, *NUMBERS)
NAMES: Final = tuple(name for name in COLUMNS if name != "file")
"""The columns of evidence: one row per row of a view that knows a message."""
VIEWS: Final = {
    "outbox": "onceward_outbox",
    "inbox": "onceward_inbox",
    "processed": "onceward_processed_messages",
    "dead_letters": "onceward_dead_letters",
    "differing_messages": "onceward_differing_messages",
}
"""The views with messages, by table, in reading order."""
SHIPPED: Final = tuple(box for box in VIEWS if box != "differing_messages")
"""Those that are shipped to a log."""
LANE: Final = '"priority" || \'/\' || "lane"'
SAID: Final[Mapping[str, Mapping[str, str]]] = {
    "outbox": {
        "side": str(OUTBOX),
        "state": ladder('"state"', OUT_STATES),
        "lane": LANE,
        "at": '"created_at"',
        "sent": '"sent_at"',
        "ended": '"ended_at"',
        "expires": '"expires_at"',
    },
    "inbox": {
        "side": str(INBOX),
        "state": ladder('"state"', IN_STATES),
        "lane": LANE,
        "at": '"received_at"',
        "expires": '"expires_at"',
        "waits": '"waits_for"',
        "until": '"waits_until_at"',
    },
    "processed": {
        "side": str(MARK),
        "state": ladder('"outcome"', OUTCOMES),
        "at": '"processed_at"',
    },
    "dead_letters": {
        "side": f"CASE \"origin\" WHEN 'outbox' THEN {SENT_DEAD} ELSE {TAKEN_DEAD} END",
        "lane": LANE,
        "state": "CASE \"reason\" WHEN 'expired' THEN 2 ELSE 1 END",
        "at": '"created_at"',
    },
    "differing_messages": {"side": str(DIFFERING), "at": '"noticed_at"'},
}
"""Expressions of each view, except for columns of the same name."""
OWN: Final = frozenset({"sender", "recipient", "id", "seq"})
"""Columns of evidence that every view has."""
OWN_CONSUMER: Final = "+\"consumer\" = ''"
"""Marks of the agent itself; the plus keeps SQLite from building an index for it."""
FILE_FACTS: Final = """
SELECT json_object(
       'agent', i.agent, 'file_id', i.file_id, 'pruned_at', i.outbox_pruned_at,
       'streams', json((SELECT json_group_object(s.sender, json_array(s.epoch, s.horizon_id))
                          FROM onceward_streams AS s)),
       'peers', json((SELECT json_group_object(p.name, p.epoch) FROM onceward_peers AS p)),
       'pools', json((SELECT json_group_array(p.name) FROM onceward_peers AS p
                       WHERE p.url = 'pool:')))
  FROM onceward_file AS i
"""
"""The agent of a file, its streams, and up to where its records are complete, as JSON."""


def expression(box: str, column: str) -> str:
    """Return the SQL of a column of evidence in a view of a file; ``file`` is not among them."""
    return SAID[box].get(column) or (f'"{column}"' if column in OWN else "NULL")


def told(box: str, **instead: str) -> dict[str, str]:
    """Return the SQL of each column of evidence, as *instead* says, else from those of the view."""
    return {name: expression(box, name) for name in NAMES} | {"file": ":file"} | instead


def where(box: str) -> str:
    """Return the condition of the rows that count; empty if all do."""
    return OWN_CONSUMER if box == "processed" else ""


def number_of(file_id: str) -> int:
    """Return the number by which evidence names a file: 56 bits of its random mark's digest."""
    return int.from_bytes(sha256(file_id.encode()).digest()[:7])


def file_row(path: str, *, state: int, said: str, file: int | None = None) -> dict[str, object]:
    """Return the row of a file: its path as id, and its facts or error as recipient."""
    return {"id": path, "recipient": said, "side": FILE, "state": state, "file": file}
