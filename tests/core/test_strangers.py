"""The file is its application's too: the application's tables keep any names they have."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from onceward import Postbox
from onceward.features.history import upkeep

Open = Callable[..., Postbox]
NAMES = (
    *("identity", "file_info", "counters", "peers", "subscriptions", "outbox", "inbox", "lanes"),
    *(
        "held_lanes",
        "tickets",
        "streams",
        "processed_messages",
        "receipts",
        "dead_letters",
        "trail",
    ),
    *("bodies", "posts", "errands", "acknowledgments", "run_handlers", "session_queues", "runs"),
    *("overflows", "readers", "handouts", "cursors", "replayed", "chapters", "limits", "fullness"),
    *("buckets", "file_limit", "drops", "schema_migrations", "migrations", "search_docs"),
    *("search_text", "spark_batches", "limits_of", "limits_next", "transitions", "send", "stats"),
    *("outbox_view", "inbox_view", "peer_view", "lane_view", "stats_view", "run_view", "drop_view"),
)
INDEXES = ("outbox_ready", "outbox_key", "inbox_pending", "lanes_ready", "limits_session")
TRIGGERS = ("outbox_admit", "outbox_guard", "trail_outbox_insert", "limits_insert", "send_insert")
SCRIPT = "; ".join(
    [
        *(f"CREATE TABLE {name} (theirs); INSERT INTO {name} VALUES ('{name}')" for name in NAMES),
        *(f"CREATE INDEX {name} ON posts (theirs)" for name in INDEXES),
        *(f"CREATE TRIGGER {name} AFTER DELETE ON posts BEGIN SELECT 1; END" for name in TRIGGERS),
    ]
)
FOUND = (
    "SELECT count(*) FROM sqlite_schema"
    " WHERE name NOT GLOB '*onceward_*' AND name NOT GLOB 'sqlite_*'"
)


def strangers(path: Path) -> None:
    """Make tables, indexes and triggers of the application under every name of an older schema."""
    con = apsw.Connection(str(path))
    con.execute(SCRIPT)
    con.close()


def use(sender: Postbox, receiver: Postbox) -> None:
    """Send, receive and maintain, with everything that installs objects of its own."""
    sender.limits.set("outbox", messages=100)
    for box in (sender, receiver):
        upkeep.switch(box._db, on=True)
    sender.send("r", {"n": 1})
    sender.run_until_idle()
    message = receiver.receive()
    assert message is not None
    assert {"n": 1} == message.body
    message.ack()
    for box in (sender, receiver):
        box.run_until_idle()
        box.file.run_maintenance()
        upkeep.switch(box._db, on=False)
    sender.limits.remove("outbox")


@pytest.mark.parametrize("when", ["before", "after"])
def test_tables_of_the_application_keep_their_names(
    opened: Open, tmp_path: Path, when: str
) -> None:
    """Made before the first opening or after it, they are neither refused, changed nor dropped."""
    if when == "before":
        strangers(tmp_path / "s.db")
        strangers(tmp_path / "r.db")
    sender, receiver = opened("s"), opened("r")
    if when == "after":
        strangers(tmp_path / "s.db")
        strangers(tmp_path / "r.db")

    use(sender, receiver)

    made = len(NAMES) + len(INDEXES) + len(TRIGGERS)
    for box in (sender, receiver):
        assert [(made,)] == box._db.read(FOUND)
        assert [(name,) for name in NAMES] == [
            row for name in NAMES for row in box._db.read(f"SELECT theirs FROM {name}")
        ]
    assert ([], []) == (sender.file.check(), receiver.file.check())
    assert (1, 1) == (sender.file.stats()["acked"], receiver.file.stats()["processed"])
