"""Searching bodies for words, where the agent opted in: an index that is brought up to date by whoever looks or tidies."""

from __future__ import annotations

import json
from typing import Any, Final

from onceward import history
from onceward.archive import DEAD, IN, OUT, Found
from onceward.db import Database
from onceward.errors import InvalidMessage
from onceward.migrate import folder
from onceward.tx import Tx
from onceward.views import Page

SLICE: Final = 500
"""Bodies of one commit."""
PRESENT: Final = "SELECT 1 FROM sqlite_schema WHERE name = 'search_text'"
DROP: Final = ("DROP TABLE search_text", "DROP TABLE search_docs")
# A document's number is twice its row's, one more for the inbox.
NEXT: Final = {
    place.table: f"""
SELECT 2 * m.seq + {odd}, m.id, CASE WHEN json_valid({place.frame}) THEN {place.frame} ->> '$.data' END FROM {place.table} AS m
 WHERE m.seq > (SELECT coalesce(max(doc), 0) / 2 FROM search_docs WHERE doc % 2 = {odd}) ORDER BY m.seq LIMIT {SLICE}
"""
    for odd, place in enumerate((OUT, IN))
}
ADD: Final = "INSERT INTO search_text (rowid, body) VALUES (?, ?)"
NOTE: Final = "INSERT INTO search_docs (doc, id) VALUES (?, ?)"
FIND: Final = """
SELECT d.doc, d.id FROM search_text AS t JOIN search_docs AS d ON d.doc = t.rowid WHERE search_text MATCH ? ORDER BY t.rank, d.doc DESC
"""
THERE: Final = {
    OUT: "SELECT j.value, m.created_at FROM json_each(?) AS j JOIN outbox AS m ON m.seq = j.value",
    IN: "SELECT j.value, m.received_at FROM json_each(?) AS j JOIN inbox AS m ON m.seq = j.value",
}
BURIED: Final = "SELECT m.id, m.origin, m.seq, m.created_at FROM json_each(?) AS j JOIN dead_letters AS m ON m.id = j.value"
GONE: Final = """
SELECT doc FROM search_docs AS d
 WHERE NOT EXISTS (SELECT 1 FROM outbox AS o WHERE d.doc % 2 = 0 AND o.seq = d.doc / 2)
   AND NOT EXISTS (SELECT 1 FROM inbox AS b WHERE d.doc % 2 = 1 AND b.seq = d.doc / 2)
   AND NOT EXISTS (SELECT 1 FROM dead_letters AS l WHERE l.id = d.id)
   AND d.doc NOT IN (SELECT max(doc) FROM search_docs GROUP BY doc % 2)
 LIMIT 500
"""
FORGET: Final = ("DELETE FROM search_text WHERE rowid = ?", "DELETE FROM search_docs WHERE doc = ?")


def switch(db: Database, *, on: bool) -> None:
    """Make the index, or drop it; it is filled when somebody looks or tidies."""
    if bool(db.read(PRESENT)) != on:
        db.write(_on if on else _off)


def _on(tx: Tx) -> None:
    if not tx.rows(PRESENT):
        tx.rows((folder() / "search.sql").read_text(encoding="utf-8"))


def _off(tx: Tx) -> None:
    if tx.rows(PRESENT):
        for sql in DROP:
            tx.run(sql)


def catch_up(db: Database) -> None:
    """Index what is not indexed yet, and forget what is gone; nothing happens where the agent did not opt in."""
    if not db.read(PRESENT):
        return
    for sql in NEXT.values():
        while db.read(sql) and db.write(lambda tx, sql=sql: _add(tx, sql)) == SLICE:  # type: ignore[misc]
            pass
    gone = 1
    while gone:
        gone = db.write(_forget) if db.read(GONE) else 0


def _add(tx: Tx, sql: str) -> int:
    rows = tx.rows(sql)
    tx.many(ADD, [(doc, text or "") for doc, _, text in rows])
    tx.many(NOTE, [(doc, message_id) for doc, message_id, _ in rows])
    return len(rows)


def _forget(tx: Tx) -> int:
    gone = tx.rows(GONE)
    for sql in FORGET:
        tx.many(sql, gone)
    return len(gone)


def words(db: Database, text: str, *, limit: int = 100, offset: int = 0) -> Page:
    """
    Return the messages whose body holds all words of *text*, best match first.

    Case and accents do not matter; a word that ends in ``*`` stands for all that
    begin like it, and words in double quotes stand together.

    Raises:
        InvalidMessage: the agent did not opt in (``search=True``), or there is no word.

    """
    query = _query(text)
    if limit < 0 or offset < 0:
        msg = "limit and offset must not be negative"
        raise InvalidMessage(msg)
    if not db.read(PRESENT):
        msg = "bodies are not indexed here: open the postbox once with search=True"
        raise InvalidMessage(msg)
    catch_up(db)
    found = _located(db, db.read(FIND, (query,)))
    page = found[offset : offset + limit]
    return Page(history.rows(db, page), len(found), len(found) > offset + limit)


def _query(text: str) -> str:
    parts = [part for index, run in enumerate(text.replace("\0", " ").split('"')) for part in ([run] if index % 2 else run.split())]
    query = " ".join(_quoted(part) for part in parts if any(map(str.isalnum, part)))
    if not query:
        msg = f"there is no word to search for in {text!r:.80}"
        raise InvalidMessage(msg)
    return query


def _quoted(part: str) -> str:
    return f'"{part.removesuffix("*")}" *' if part.endswith("*") else f'"{part}"'


def _located(db: Database, docs: list[tuple[Any, ...]]) -> list[Found]:
    """Return where the documents lie now, in their order; a message that died is found among the dead."""
    at: dict[int, Found] = {}
    for odd, place in enumerate((OUT, IN)):
        seqs = json.dumps([doc // 2 for doc, _ in docs if doc % 2 == odd])
        at |= {2 * seq + odd: Found(when, seq, place) for seq, when in db.read(THERE[place], (seqs,))}
    lost = {(message_id, doc % 2): doc for doc, message_id in docs if doc not in at}
    for message_id, origin, seq, when in db.read(BURIED, (json.dumps([message_id for message_id, _ in lost]),)):
        doc = lost.get((message_id, int(origin == "inbox")))
        if doc is not None:
            at[doc] = Found(when, seq, DEAD)
    return [at[doc] for doc, _ in docs if doc in at]
