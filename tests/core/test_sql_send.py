"""
Sending by SQL: one INSERT into the view ``send``, from any language.

The admission is the same as from Python.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Postbox
from onceward.message.frame import Frame

Open = Callable[..., Postbox]
Elsewhere = Callable[..., list[Any]]
PLAIN = "INSERT INTO onceward_send (recipient, type, body) VALUES ('b', 't', '{\"a\":1}')"


def with_value(column: str, value: str) -> str:
    """Return an INSERT that gives one column a value, as SQL."""
    given = {"recipient": "'b'", "type": "'t'", "body": "'1'"} | {column: value}
    return f"INSERT INTO onceward_send ({', '.join(given)}) VALUES ({', '.join(given.values())})"


def frames(box: Postbox) -> list[Frame]:
    """Return all promised frames; raises where one is none."""
    return [
        Frame.parse(text)
        for (text,) in box._db.read("SELECT frame FROM _onceward_outbox ORDER BY seq")
    ]


def test_one_insert_is_a_message(
    box: Postbox, elsewhere: Elsewhere, shell: Callable[[Path, str], str]
) -> None:
    """
    The standard library in another process and the sqlite3 shell enqueue.

    Ids are UUIDv7 and ascending, and frames are whole.
    """
    assert [[]] == elsewhere(box.file.path, PLAIN)
    assert "" == shell(box.file.path, PLAIN)

    sent = frames(box)
    assert [("a", "b", "t", "default", 2, {"a": 1})] * 2 == [
        (f.sender, f.recipient, f.type, f.session, f.priority, f.data) for f in sent
    ]
    assert {"7"} == {f.id[14] for f in sent}
    assert sorted(f.id for f in sent) == [f.id for f in sent]
    assert (2, []) == (box.file.stats()["pending"], box.file.check())


def test_it_arrives_like_any_other(opened: Open, elsewhere: Elsewhere) -> None:
    """A message that another language wrote is delivered, handled and settled."""
    sender, receiver = opened("a"), opened("b")
    elsewhere(sender.file.path, PLAIN)
    sender.run_until_idle()
    message = receiver.receive()
    assert message is not None
    message.ack()
    receiver.run_until_idle()
    sender.run_until_idle()

    assert ({"a": 1}, "acked") == (message.body, sender.state(message.id))


def test_every_column_reaches_the_frame(box: Postbox, elsewhere: Elsewhere) -> None:
    """Each column of the view is an attribute of the frame, also where SQL gave a number."""
    elsewhere(
        box.file.path,
        (
            "INSERT INTO onceward_send (recipient, type, body, session, topic, key, priority, ttl,"
            " delay, ordering_key, correlation_id, id)"
            " VALUES ('b', 'tü', '\"grün 😀\"', 'run', 'a.b', 'k''é', 'high', 60, 1.5, 'lane', 'c',"
            " 'my-id:1')"
        ),
        (
            "INSERT INTO onceward_send (recipient, type, body, session, key, ordering_key,"
            " correlation_id, id)"
            " VALUES (5, 6, 7, 8, 9, 10, 11, 12)"
        ),
    )
    first, second = frames(box)
    [(due, created, expires)] = box._db.read(
        "SELECT due_at, created_at, expires_at FROM _onceward_outbox WHERE seq = 1"
    )

    assert ("my-id:1", "tü", "grün 😀", "run", "a.b", "k'é", 1, "lane", "c") == (
        first.id,
        first.type,
        first.data,
        first.session,
        first.topic,
        first.idempotencykey,
        first.priority,
        first.lane,
        first.correlationid,
    )
    assert (1500, 60_000, expires) == (due - created, expires - created, first.expires_at)
    assert ("12", "5", "6", 7, "8", "9", "10", "11") == (
        second.id,
        second.recipient,
        second.type,
        second.data,
        second.session,
        second.idempotencykey,
        second.lane,
        second.correlationid,
    )
    assert [] == box.file.check()


def test_no_body_is_null(box: Postbox, elsewhere: Elsewhere) -> None:
    """A message may be nothing but its type."""
    elsewhere(box.file.path, "INSERT INTO onceward_send (recipient, type) VALUES ('b', 't')")

    assert [None] == [frame.data for frame in frames(box)]


BAD = {
    "no recipient": ("recipient", "NULL"),
    "empty recipient": ("recipient", "''"),
    "a path": ("recipient", "'../b'"),
    "a dash first": ("recipient", "'-b'"),
    "all": ("recipient", "'ALL'"),
    "broadcast": ("recipient", "'broadcast'"),
    "a long recipient": ("recipient", "hex(zeroblob(65))"),
    "a NUL in the recipient": ("recipient", "'b' || char(0) || '/x'"),
    "a newline in the recipient": ("recipient", "'b' || char(10)"),
    "no type": ("type", "NULL"),
    "empty type": ("type", "''"),
    "a long type": ("type", "hex(zeroblob(129))"),
    "a newline in the type": ("type", "'t' || char(10) || 'x'"),
    "a NUL in the type": ("type", "'t' || char(0) || 'x'"),
    "half a body": ("body", "'{'"),
    "JSON5": ("body", "'{a:1}'"),
    "text": ("body", "'hello'"),
    "an empty body": ("body", "''"),
    "a large body": ("body", "'\"' || hex(zeroblob(524288)) || '\"'"),
    "a deep body": (
        "body",
        "replace(hex(zeroblob(150)), '0', '[') || replace(hex(zeroblob(150)), '0', ']')",
    ),
    "a NUL in the body": ("body", "'1' || char(0) || '{'"),
    "a NUL in a name": ("body", "'{\"a' || char(0) || '\":1}'"),
    "a body one too deep": (
        "body",
        (
            "replace(substr(hex(zeroblob(101)), 2), '0', '[')"
            " || replace(substr(hex(zeroblob(101)), 2), '0', ']')"
        ),
    ),
    "minus infinity deep inside": ("body", '\'{"a":[1,{"b":-1E400}]}\''),
    "half a pair": ("body", "'\"\\ud800\"'"),
    "half a pair in a name": ("body", "'{\"a\\uDFFF\":1}'"),
    "half a pair as bytes": ("body", "'\"' || CAST(x'eda080' AS TEXT) || '\"'"),
    "half a pair in the session": ("session", "CAST(x'eda080' AS TEXT)"),
    "a key twice": ("body", '\'{"a":1,"a":2}\''),
    "a key twice, nested": ("body", '\'[{"b":{"a":1, "a" : 1}}]\''),
    "a key twice, escaped": ("body", '\'{"a":1,"\\u0061":2}\''),
    "directory": ("recipient", "'Directory'"),
    "a NUL in the topic": ("topic", "'a' || char(0) || '.b'"),
    "a tab in the key": ("key", "'a' || char(9)"),
    "a delete in the lane": ("ordering_key", "char(127)"),
    "a long number": ("body", "replace(hex(zeroblob(2500)), '0', '7')"),
    "infinity": ("body", "'1e999'"),
    "an empty session": ("session", "''"),
    "a long session": ("session", "hex(zeroblob(129))"),
    "a newline in the session": ("session", "char(10)"),
    "an empty key": ("key", "''"),
    "a long key": ("key", "hex(zeroblob(129))"),
    "an empty topic": ("topic", "''"),
    "a wildcard": ("topic", "'a.*'"),
    "a hash": ("topic", "'#'"),
    "an empty segment": ("topic", "'a..b'"),
    "a trailing dot": ("topic", "'a.'"),
    "an empty lane": ("ordering_key", "''"),
    "an empty thread": ("correlation_id", "''"),
    "a long thread": ("correlation_id", "hex(zeroblob(129))"),
    "bytes as the key": ("key", "x'6b'"),
    "bytes as the id": ("id", "x'6b'"),
    "bytes as the session": ("session", "x'73'"),
    "no priority of ours": ("priority", "'highest'"),
    "a rank": ("priority", "1"),
    "negative ttl": ("ttl", "-1"),
    "a word as ttl": ("ttl", "'abc'"),
    "endless ttl": ("ttl", "1e300"),
    "negative delay": ("delay", "-0.5"),
    "a word as delay": ("delay", "'abc'"),
    "a bad id": ("id", "'a b'"),
    "an empty id": ("id", "''"),
    "a long id": ("id", "hex(zeroblob(65))"),
}


@pytest.mark.parametrize(("column", "value"), BAD.values(), ids=BAD)
def test_bad_values_are_refused_before_anything_is_written(
    box: Postbox, elsewhere: Elsewhere, column: str, value: str
) -> None:
    """
    Inserts that ``send`` would refuse are refused here, too.

    No receiver ever sees a frame that it cannot read.
    """
    [found] = elsewhere(box.file.path, with_value(column, value))

    assert isinstance(found, str)
    assert found.startswith("IntegrityError"), found
    assert (0, 0, []) == (box.file.stats()["enqueued"], len(frames(box)), box.file.check())


def test_the_largest_body_is_taken(box: Postbox, elsewhere: Elsewhere) -> None:
    """A body of exactly 1 MiB of JSON passes, and the recipient takes it."""
    assert [[]] == elsewhere(
        box.file.path, with_value("body", "'\"' || substr(hex(zeroblob(524288)), 3) || '\"'")
    )
    assert [(1 << 20) - 2] == [
        len(frame.data) for frame in frames(box) if isinstance(frame.data, str)
    ]


GOOD = {
    "the deepest body": (
        "replace(hex(zeroblob(100)), '0', '[') || replace(hex(zeroblob(100)), '0', ']')"
    ),
    "many shallow lists": "'[' || substr(replace(hex(zeroblob(500)), '0', ',[]'), 2) || ']'",
    "brackets in a text": "'\"' || replace(hex(zeroblob(500)), '0', '[{') || '\"'",
    "the largest float": "'[1.7976931348623157e308, -1e308, 1e-999]'",
    "a whole pair": "'\"\\ud83d\\ude00\"'",
    "a replacement character": "'\"\ufffd \\ufffd \\ud83d\\ude00\"'",
    "one key in many objects": '\'{"a":[{"a":1},{"a":{"a":2}}]}\'',
    "an escaped NUL": "'\"a\\u0000b\"'",
}


@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD)
def test_what_looks_bad_but_is_not_is_taken(box: Postbox, elsewhere: Elsewhere, body: str) -> None:
    """The second look refuses nothing that a receiver can read."""
    assert [[]] == elsewhere(box.file.path, with_value("body", body))
    assert (1, []) == (len(frames(box)), box.file.check())


@pytest.mark.parametrize(
    "how", ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE", "INSERT OR ROLLBACK", "REPLACE"]
)
def test_a_known_key_is_never_promised_twice(box: Postbox, elsewhere: Elsewhere, how: str) -> None:
    """Under any outer conflict clause the first message under a key stays and is the only one."""
    first = with_value("key", "'k'")
    elsewhere(box.file.path, first, first.replace("INSERT", how).replace("'1'", "'2'"))

    assert ([1], 1, []) == (
        [frame.data for frame in frames(box)],
        box.file.stats()["pending"],
        box.file.check(),
    )


@pytest.mark.parametrize("how", ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE"])
def test_a_known_id_is_never_promised_twice(box: Postbox, elsewhere: Elsewhere, how: str) -> None:
    """The same holds for an id."""
    message_id = box.send("b", 1)
    elsewhere(
        box.file.path,
        with_value("id", f"'{message_id}'").replace("INSERT", how).replace("'1'", "'2'"),
    )

    assert ([1], 1, []) == (
        [frame.data for frame in frames(box)],
        box.file.stats()["pending"],
        box.file.check(),
    )


def test_a_frozen_file_takes_nothing(box: Postbox, elsewhere: Elsewhere) -> None:
    """A pause holds for every language."""
    box.file.pause()
    [found] = elsewhere(box.file.path, PLAIN)
    box.file.resume()

    assert "IntegrityError: onceward:paused" == found
    assert [[]] == elsewhere(box.file.path, PLAIN)


def test_the_queue_limit_holds(opened: Open, elsewhere: Elsewhere) -> None:
    """The limit counts what waits, from wherever it came."""
    box = opened(max_pending=2)
    box.send("b", 1)

    assert [[], "IntegrityError: onceward:queue_full"] == elsewhere(box.file.path, PLAIN, PLAIN)
    assert (2, []) == (box.file.stats()["pending"], box.file.check())


def test_a_transaction_of_another_program_is_one_fate(box: Postbox, elsewhere: Elsewhere) -> None:
    """Rows and mail of another program are committed or rolled back together."""
    elsewhere(
        box.file.path,
        "CREATE TABLE t (x)",
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        PLAIN,
        "ROLLBACK",
        "BEGIN",
        "INSERT INTO t VALUES (2)",
        PLAIN,
        "COMMIT",
    )

    assert ([(2,)], 1, []) == (
        box._db.read("SELECT x FROM t"),
        box.file.stats()["pending"],
        box.file.check(),
    )


def test_many_rows_of_one_insert_have_ids_of_their_own(box: Postbox, elsewhere: Elsewhere) -> None:
    """An INSERT … SELECT of a thousand rows makes a thousand different ids."""
    elsewhere(
        box.file.path,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
        " INSERT INTO onceward_send (recipient, type, body) SELECT 'b', 't', i FROM n",
    )

    assert (1000, list(range(1, 1001))) == (
        len({f.id for f in frames(box)}),
        [f.data for f in frames(box)],
    )


def test_the_frame_is_what_send_would_have_written(box: Postbox, elsewhere: Elsewhere) -> None:
    """But for id and time, both ways of sending write the same attributes."""
    elsewhere(
        box.file.path,
        (
            "INSERT INTO onceward_send (recipient, type, body, topic, key)"
            " VALUES ('b', 'json', '[1]', 'a.b', 'k')"
        ),
    )
    box.send("c", [1], topic="a.b", key="k")
    ours, theirs = (
        json.loads(text)
        for (text,) in box._db.read("SELECT frame FROM _onceward_outbox ORDER BY seq DESC")
    )

    assert {k: v for k, v in ours.items() if k not in {"id", "time", "recipient"}} | {
        "priority": 2
    } == {k: v for k, v in theirs.items() if k not in {"id", "time", "recipient"}}
    assert len(ours["time"]) == len(theirs["time"])
