"""Search bodies for words by an index that searches and maintenance bring up to date."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

from onceward.errors import InvalidArgument
from onceward.features.history import history
from onceward.features.history.history import DEAD, IN, NEVER, OUT, Hit
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.error_text import Hint
from onceward.message.record import Page

SLICE: Final = 500
"""Bodies of one commit."""
PRESENT: Final = "SELECT 1 FROM sqlite_schema WHERE name = '_onceward_search_text'"
DROP: Final = ("DROP TABLE _onceward_search_text", "DROP TABLE _onceward_search_docs")
# A document's number is its outbox row's, or minus its inbox row's: both ends are the newest.
NEXT: Final = {
    place.table: f"""
SELECT {sign} * m.seq, m.id, CASE WHEN json_valid({place.frame}) THEN {place.frame} ->> '$.data' END
  FROM _onceward_{place.table} AS m
 WHERE m.seq > (SELECT coalesce({newest}(doc), 0) * {sign}
                  FROM _onceward_search_docs
                 WHERE doc {side} 0)
 ORDER BY m.seq LIMIT {SLICE}
"""
    for place, sign, newest, side in ((OUT, 1, "max", ">"), (IN, -1, "min", "<"))
}
ADD: Final = "INSERT INTO _onceward_search_text (rowid, body) VALUES (?, ?)"
NOTE: Final = "INSERT INTO _onceward_search_docs (doc, id) VALUES (?, ?)"
FIND: Final = """
SELECT d.doc, d.id
  FROM _onceward_search_text AS t
  JOIN _onceward_search_docs AS d ON d.doc = t.rowid
 WHERE _onceward_search_text MATCH ?
 ORDER BY t.rank, d.doc DESC
"""
THERE: Final = {
    OUT: """
SELECT j.value, m.created_at
  FROM json_each(?) AS j
  JOIN _onceward_outbox AS m ON m.seq = j.value
""",
    IN: """
SELECT j.value, m.received_at
  FROM json_each(?) AS j
  JOIN _onceward_inbox AS m ON m.seq = j.value
""",
}
BURIED: Final = """
SELECT m.id, m.origin, m.seq, m.created_at
  FROM json_each(?) AS j
  JOIN _onceward_dead_letters AS m ON m.id = j.value
"""
# The newest of each box stays: it marks how far the index has come. Holes above the oldest row are
# deleted with that row.
GONE: Final = f"""
SELECT doc FROM _onceward_search_docs AS d
 WHERE (d.doc BETWEEN 1 AND (SELECT coalesce(min(seq), {NEVER}) FROM _onceward_outbox) - 1
        OR d.doc BETWEEN 1 - (SELECT coalesce(min(seq), {NEVER}) FROM _onceward_inbox) AND -1)
   AND d.doc NOT IN (SELECT max(doc) FROM _onceward_search_docs
                     UNION ALL SELECT min(doc) FROM _onceward_search_docs)
   AND NOT EXISTS (SELECT 1 FROM _onceward_dead_letters AS l WHERE l.id = d.id)
 LIMIT {SLICE}
"""
FORGET: Final = (
    "DELETE FROM _onceward_search_text WHERE rowid = ?",
    "DELETE FROM _onceward_search_docs WHERE doc = ?",
)


def switch(db: Database, *, on: bool) -> None:
    """Create the index, or drop it; the next search or maintenance fills it."""
    if bool(db.read(PRESENT)) != on:
        db.write(_on if on else _off)


def _on(tx: StoreTransaction) -> None:
    if not tx.rows(PRESENT):
        tx.rows(Path(__file__).with_name("search.sql").read_text(encoding="utf-8"))


def _off(tx: StoreTransaction) -> None:
    if tx.rows(PRESENT):
        for sql in DROP:
            tx.run(sql)


def catch_up(db: Database) -> None:
    """Add messages that are not indexed yet; do nothing if the agent did not opt in."""
    if not db.read(PRESENT):
        return
    for sql in NEXT.values():
        more = SLICE
        while more == SLICE and db.read(sql):
            more = db.write(partial(_add, sql=sql))


def forget(db: Database) -> None:
    """Delete pruned messages from the index."""
    while db.read(PRESENT) and db.read(GONE):
        db.write(_forget)


def _add(tx: StoreTransaction, sql: str) -> int:
    rows = tx.rows(sql)
    tx.many(ADD, [(doc, text or "") for doc, _, text in rows])
    tx.many(NOTE, [(doc, message_id) for doc, message_id, _ in rows])
    return len(rows)


def _forget(tx: StoreTransaction) -> int:
    gone = tx.rows(GONE)
    for sql in FORGET:
        tx.many(sql, gone)
    return len(gone)


def words(db: Database, text: str, *, limit: int = 100, offset: int = 0) -> Page:
    """
    Return the messages whose body contains all words of *text*, best match first.

    Case and accents do not matter; a word that ends in ``*`` matches all words with that prefix,
    and words in double quotes are a phrase. A text without words finds nothing.

    Raises:
        InvalidArgument: the agent did not opt in (``search=True``).

    """
    query = _query(text)
    if limit < 0 or offset < 0:
        raise InvalidArgument("limit and offset must not be negative")
    if not db.ask(PRESENT):
        raise InvalidArgument(f"bodies are not indexed here: {Hint.SEARCH}")
    if not query:
        return Page([], 0, has_more=False)
    catch_up(db)
    found = _located(db, db.ask(FIND, (query,)))
    page = found[offset : offset + limit]
    return Page(history.rows(db, page), len(found), len(found) > offset + limit)


def _query(text: str) -> str:
    parts = [
        part
        for index, run in enumerate(text.replace("\0", " ").split('"'))
        for part in ([run] if index % 2 else run.split())
    ]
    return " ".join(_quoted(part) for part in parts if any(map(str.isalnum, part)))


def _quoted(part: str) -> str:
    return f'"{part.removesuffix("*")}" *' if part.endswith("*") else f'"{part}"'


def _located(db: Database, docs: list[tuple[Any, ...]]) -> list[Hit]:
    """Return the current places of the documents, in order, including dead letters."""
    at: dict[int, Hit] = {}
    for place, sign in ((OUT, 1), (IN, -1)):
        seqs = json.dumps([doc * sign for doc, _ in docs if doc * sign > 0])
        at |= {seq * sign: Hit(when, seq, place) for seq, when in db.ask(THERE[place], (seqs,))}
    lost = {(message_id, doc < 0): doc for doc, message_id in docs if doc not in at}
    for message_id, origin, seq, when in db.ask(
        BURIED, (json.dumps([message_id for message_id, _ in lost]),)
    ):
        doc = lost.get((message_id, origin == "inbox"))
        if doc is not None:
            at[doc] = Hit(when, seq, DEAD)
    return [at[doc] for doc, _ in docs if doc in at]
