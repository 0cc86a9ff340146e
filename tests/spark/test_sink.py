"""Rows become messages once, whatever happens in between; without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox
from onceward.errors import Conflict, InvalidMessage, Paused, UnknownRecipient
from onceward.fleet.columns import InvalidOption
from onceward.fleet.opening import Unreadable, opened
from onceward.fleet.spark.sink import (
    KEPT,
    Batch,
    BatchTooOld,
    NoSuchAgent,
    OtherRows,
    check_columns,
    hand_over,
)

Made = Callable[..., Path]


def rows(numbers: Iterable[int], agent: str = "alice", **more: Any) -> list[dict[str, Any]]:
    """Return one row for each number."""
    return [
        {"agent": agent, "recipient": "bob", "body": json.dumps(number), "type": "note", **more}
        for number in numbers
    ]


def batch(folder: Path, number: int = 0, query: str = "query") -> Batch:
    """Return a batch for the agents in a folder."""
    return Batch(query, number, (str(folder),), hold_unknown=True)


def deliver(given: Iterable[dict[str, Any]], of: Batch) -> dict[str, int]:
    """Hand rows over as a writer does that has them by sender."""
    by_sender: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in given:
        by_sender.setdefault((row.get("_db") or "", row.get("agent") or ""), []).append(row)
    return {one.path: one.messages for one in hand_over(by_sender, of)}


def refused(of: Batch) -> dict[str, str]:
    """Return the bodies and errors of the bad records of a batch."""
    files = Path(of.bad_records_path, of.query, str(of.number)).glob("*.json")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {line["record"]["body"]: line["error"] for line in lines}


def column(path: Path, name: str) -> list[Any]:
    """Return a column of an agent's outbox."""
    with opened(str(path)) as source:
        return [
            value
            for (value,) in source.con.execute(f"SELECT {name} FROM onceward_outbox ORDER BY seq")
        ]


def test_each_row_is_a_message_of_its_agent(box: Made, tmp_path: Path) -> None:
    """Rows find their agents' files by name, and all that ``send`` takes can stand in a column."""
    alice, carol = box("alice"), box("carol")
    more = {"session": "s", "topic": "a.b", "priority": "urgent", "ordering_key": "lane"}
    sent = deliver([*rows([1, 2], **more), *rows([3], "carol")], batch(tmp_path))

    assert {str(alice): 2, str(carol): 1} == sent
    assert [("s", "a.b", "urgent", "lane")] * 2 == list(
        zip(
            *(column(alice, name) for name in ("session", "topic", "priority", "lane")), strict=True
        )
    )
    assert [3] == column(carol, "frame ->> '$.data'")


def test_bodies_are_what_they_were(box: Made, tmp_path: Path) -> None:
    """Text is JSON, bytes are bytes, and structs are objects."""
    alice = box("alice")
    bodies = ['{"a": [1, null]}', b"\x00\xff", {"b": 1.5}, None]
    deliver(
        [{"agent": "alice", "recipient": "bob", "body": body} for body in bodies], batch(tmp_path)
    )

    assert ['{"a":[1,null]}', None, '{"b":1.5}', "null"] == column(alice, "frame -> '$.data'")
    assert [None, "AP8=", None, None] == column(alice, "frame ->> '$.data_base64'")


def test_a_batch_that_comes_again_changes_nothing(box: Made, tmp_path: Path) -> None:
    """The file knows what it has committed, in whatever order the rows come this time."""
    alice = box("alice")
    given = rows([1, 1, 2])
    deliver(given, batch(tmp_path, 4))
    before = column(alice, "id")

    assert {} == deliver(given[::-1], batch(tmp_path, 4))
    assert before == column(alice, "id")
    assert 3 == len(set(before))


def test_the_same_batch_with_other_rows_is_refused(box: Made, tmp_path: Path) -> None:
    """Two truths about one batch cannot both have been sent; nothing more is."""
    alice = box("alice")
    deliver(rows([1, 2]), batch(tmp_path, 4))

    for other in (rows([1, 3]), rows([1]), rows([1, 2, 2]), rows([1, 2], session="elsewhere")):
        with pytest.raises(OtherRows, match=r"alice\.db: batch 4 of query"):
            deliver(other, batch(tmp_path, 4))
    assert [1, 2] == column(alice, "frame ->> '$.data'")


def test_queries_and_batches_do_not_know_of_each_other(box: Made, tmp_path: Path) -> None:
    """Equal rows of another batch, or of another query, are other messages."""
    alice = box("alice")
    for number, query in ((0, "one"), (1, "one"), (0, "two")):
        deliver(rows([1]), batch(tmp_path, number, query))

    assert 3 == len(set(column(alice, "id")))


def test_a_checkpoint_that_was_set_back_is_noticed(box: Made, tmp_path: Path) -> None:
    """
    A batch from before the newest one that the file does not know is not sent.

    It may have been forgotten.
    """
    alice = box("alice")
    deliver(rows([1]), batch(tmp_path, 9))

    with pytest.raises(BatchTooOld):
        deliver(rows([2]), batch(tmp_path, 8))
    assert [1] == column(alice, "frame ->> '$.data'")


def test_receipts_do_not_grow(box: Made, tmp_path: Path) -> None:
    """A file remembers a query's last batches, however many there were."""
    alice = box("alice")
    for number in range(KEPT + 5):
        deliver(rows([number]), batch(tmp_path, number))

    with opened(str(alice)) as source:
        assert [(KEPT + 1, 4)] == source.con.execute(
            "SELECT count(*), min(batch) FROM _onceward_spark_batches"
        ).fetchall()


def test_one_bad_row_undoes_its_file_and_the_batch_can_be_given_again(
    box: Made, tmp_path: Path
) -> None:
    """Files before it are committed and recognised; its own file has nothing of the batch."""
    alice, carol = box("alice"), box("carol")
    strict = Batch("query", 1, (str(tmp_path),))
    with Postbox(alice, start=False) as known:
        known.peers.add("bob", f"file:{tmp_path / 'bob.db'}")
    given = [*rows([1, 2]), *rows([3, 4], "carol")]

    with pytest.raises(UnknownRecipient):
        deliver(given, strict)
    assert ([1, 2], []) == (
        column(alice, "frame ->> '$.data'"),
        column(carol, "frame ->> '$.data'"),
    )
    with Postbox(carol, start=False) as mended:
        mended.peers.add("bob", f"file:{tmp_path / 'bob.db'}")

    assert {str(carol): 2} == deliver(given, strict)
    assert ([1, 2], [3, 4]) == (
        column(alice, "frame ->> '$.data'"),
        column(carol, "frame ->> '$.data'"),
    )


@pytest.mark.parametrize("where", ["", "bad"])
def test_a_row_without_a_recipient_is_refused(box: Made, tmp_path: Path, where: str) -> None:
    """NULL is not an agent: the batch fails, or the row goes to the bad records."""
    alice = box("alice")
    bad = str(tmp_path / where) if where else ""
    of = Batch("query", 0, (str(tmp_path),), hold_unknown=True, bad_records_path=bad)
    given = [*rows([1]), {"agent": "alice", "recipient": None, "body": "2"}]

    if not where:
        with pytest.raises(InvalidMessage, match="recipient is NULL"):
            deliver(given, of)
        assert [] == column(alice, "recipient")
        return
    assert {str(alice): 1} == deliver(given, of)
    assert ["bob"] == column(alice, "recipient")
    assert {"2": "InvalidMessage"} == refused(of)


def test_bad_rows_go_to_a_folder_and_the_others_are_sent(box: Made, tmp_path: Path) -> None:
    """
    Each bad row is a line with its reason; its neighbours in session and file are sent.

    A batch that comes again changes neither.
    """
    alice = box("alice")
    of = Batch("a/b", 3, (str(tmp_path),), bad_records_path=f"file://{tmp_path}/bad")
    with Postbox(alice, start=False) as known:
        known.peers.add("bob", f"file:{tmp_path / 'bob.db'}")
        known.send("bob", "taken", type="note", key="k")
    given = [
        *rows([1, 2]),
        {"agent": "alice", "recipient": "bob", "body": "{torn"},
        {"agent": "alice", "recipient": "nowhere", "body": "3"},
        {"agent": "alice", "recipient": "bob", "body": "4", "key": "k", "type": "note"},
        {"agent": "alice", "recipient": "bob", "body": "5", "priority": "soon"},
        {"agent": "eve", "recipient": "bob", "body": "6"},
        *rows([7]),
    ]
    expected = {
        "{torn": "InvalidOption",
        "3": "UnknownRecipient",
        "4": "Conflict",
        "5": "InvalidMessage",
        "6": "NoSuchAgent",
    }
    kept = Batch("a%2Fb", 3, bad_records_path=str(tmp_path / "bad"))

    assert {str(alice): 3} == deliver(given, of)
    assert expected == refused(kept)
    assert {} == deliver(given, of)
    assert expected == refused(kept)
    assert ["taken", 1, 2, 7] == column(alice, "frame ->> '$.data'")


def test_a_bad_row_that_is_good_at_the_next_try_is_no_bad_record(box: Made, tmp_path: Path) -> None:
    """What a batch that was cut off had refused is judged again, and its record is gone."""
    given = rows([1], agent="eve")
    of = Batch("q", 0, (str(tmp_path),), hold_unknown=True, bad_records_path=str(tmp_path / "bad"))
    assert ({}, {"1": "NoSuchAgent"}) == (deliver(given, of), refused(of))
    eve = box("eve")

    assert {str(eve): 1} == deliver(given, of)
    assert {} == refused(of)


def test_trouble_of_the_file_is_no_bad_row(box: Made, tmp_path: Path) -> None:
    """An agent that is paused takes no row now; the batch fails, and can be given again."""
    alice = box("alice")
    of = Batch("q", 0, (str(tmp_path),), hold_unknown=True, bad_records_path=str(tmp_path / "bad"))
    with Postbox(alice, start=False) as agent:
        agent.file.pause()
    with pytest.raises(Paused):
        deliver(rows([1]), of)
    with Postbox(alice, start=False) as agent:
        agent.file.resume()

    assert {str(alice): 1} == deliver(rows([1]), of)
    assert {} == refused(of)


def test_what_waits_is_told_by_agent(box: Made, tmp_path: Path) -> None:
    """Each file's lag is what its agent has not delivered, of this batch and of before."""
    box("alice", 4), box("carol")
    sent = hand_over({("", "alice"): rows([1]), ("", "carol"): rows([1, 2])}, batch(tmp_path))

    assert [("alice", 1, 5), ("carol", 2, 2)] == [
        (one.agent, one.messages, one.waiting) for one in sent
    ]


def test_a_key_holds_across_batches(box: Made, tmp_path: Path) -> None:
    """
    The agent's own idempotency key is kept.

    The same body is one message, another one is a conflict.
    """
    alice = box("alice")
    deliver(rows([1], key="k"), batch(tmp_path, 0))
    deliver(rows([1], key="k"), batch(tmp_path, 1))
    assert 1 == len(column(alice, "id"))

    with pytest.raises(Conflict):
        deliver(rows([2], key="k"), batch(tmp_path, 2))


def test_agents_are_found_by_what_their_files_say(box: Made, tmp_path: Path) -> None:
    """A file may have any name; an agent with no file or two is an error before any send."""
    box("alice").rename(tmp_path / "renamed.db")
    carol = box("carol")

    assert {str(tmp_path / "renamed.db"): 1} == deliver(rows([1]), batch(tmp_path))
    with pytest.raises(NoSuchAgent, match="none of 2 files"):
        deliver([*rows([2], "carol"), *rows([3], "nobody")], batch(tmp_path, 1))
    (tmp_path / "twice.db").write_bytes(carol.read_bytes())
    (tmp_path / "copies").mkdir()
    (tmp_path / "twice.db").rename(tmp_path / "copies" / "carol.db")
    with pytest.raises(NoSuchAgent, match="there must be one"):
        deliver(rows([4], "carol"), batch(tmp_path, 1))
    assert [] == column(carol, "id")


def test_a_file_can_be_named_itself(box: Made, tmp_path: Path) -> None:
    """``_db`` says which file, of whichever agent."""
    alice = box("alice")

    assert {str(alice): 1} == deliver(
        [{"_db": str(alice), "recipient": "bob", "body": "1"}], Batch("q", 0, hold_unknown=True)
    )
    with pytest.raises(Unreadable, match="vanished"):
        deliver(
            [{"_db": str(tmp_path / "gone.db"), "recipient": "bob", "body": "1"}],
            Batch("q", 0, hold_unknown=True),
        )
    assert not (tmp_path / "gone.db").exists()


@pytest.mark.broken("its schema's number is a lie")
def test_an_older_file_is_not_migrated_by_the_way(box: Made, tmp_path: Path) -> None:
    """Its agent may run an older version: a send must not change what that version can read."""
    alice = box("alice")
    with Postbox(alice, start=False) as old, old.begin() as tx:
        tx.execute(
            "DELETE FROM _onceward_migrations "
            "WHERE version = (SELECT max(version) FROM _onceward_migrations)"
        )

    with pytest.raises(Unreadable, match="older"):
        deliver(rows([1]), batch(tmp_path))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"agent", "recipient"}, "recipient and body"),
        ({"recipient", "body"}, "agent or _db"),
        ({"agent", "recipient", "body", "prio"}, "column 'prio' is unknown"),
    ],
)
def test_columns_are_checked_before_anything_is_sent(names: set[str], said: str) -> None:
    """A misspelt column would otherwise be left out silently."""
    with pytest.raises(InvalidOption, match=said):
        check_columns(names)


def test_what_was_sent_is_carried_and_handled(box: Made, tmp_path: Path) -> None:
    """A message from a row is mail like any other."""
    alice = box("alice")
    handled = []
    bob = Agent("bob")

    @bob.on("note")
    def handle(body: int) -> None:
        handled.append(body)

    with Postbox(tmp_path / "bob.db", agent=bob, start=False) as receiver:
        deliver(rows([1, 2, 3]), batch(tmp_path))
        with Postbox(alice, start=False) as sender:
            sender.run_until_idle(), receiver.run_until_idle()

    assert [1, 2, 3] == handled


def test_killed_at_any_statement_nothing_is_lost_or_sent_twice(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """
    Statements of a batch over two files are tried as a killed process's last one.

    Here they are statements all along the batch; the script alone tries each.
    """
    command = [
        sys.executable,
        str(Path(__file__).with_name("kills.py")),
        str(tmp_path_factory.mktemp("kills")),
        "7",
    ]
    answer = subprocess.run(command, capture_output=True, check=False, text=True)

    assert "" == answer.stderr
    found = json.loads(answer.stdout)
    assert {} == found["wrong"]
    assert found["points"] > 20
