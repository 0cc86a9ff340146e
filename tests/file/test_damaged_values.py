"""A value that its column cannot hold: the error names it, and other files go on."""

from collections.abc import Callable
from pathlib import Path
from queue import Queue

import pytest
from tests.waiting import until
from tests.wrong_values import put

from onceward import Agent, Postbox
from onceward.errors import StoreCorrupt
from onceward.file.read_only import opened

pytestmark = pytest.mark.broken("a value that its column cannot hold")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the file of an agent with waiting and dead messages, and a neighbour."""
    Postbox(tmp_path / "b.db", agent="b", start=False).close()
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        box.send("b", "before", type="note")
        for number in range(3):
            box.send("a", number, type="note", ttl=3600)
        box.run_until_idle()
        message = box.receive()
        assert message is not None
        message.reject("not wanted")
        box.send("b", "now", type="note")
    return tmp_path / "a.db"


def opening(path: Path) -> Postbox:
    """Open the file."""
    return Postbox(path, agent="a", start=False)


def receive(box: Postbox) -> object:
    """Receive the next message."""
    return box.receive()


def work(box: Postbox) -> object:
    """Run the engines."""
    return box.run_until_idle()


def history(box: Postbox) -> object:
    """List past messages."""
    return box.history()


def message(box: Postbox) -> object:
    """Show a message."""
    [(found, *_), *_] = box.query("SELECT id FROM onceward_dead_letters")
    return box.journey(found)


def health(box: Postbox) -> object:
    """Judge the file."""
    return box.file.health()


@pytest.mark.parametrize("value", ["soon", b"\xff"], ids=["text", "blob"])
@pytest.mark.parametrize(
    ("verb", "table", "column"),
    [
        (receive, "lanes", "due_at"),
        (receive, "lanes", "token"),
        (receive, "lanes", "isolate_upto_seq"),
        (receive, "inbox", "expires_at"),
        (work, "outbox", "due_at"),
        (work, "peers", "lease_at"),
        (work, "peers", "due_at"),
        (history, "inbox", "received_at"),
        (history, "dead_letters", "created_at"),
        (message, "dead_letters", "replays"),
        (health, "inbox", "received_at"),
    ],
)
def test_a_verb_names_the_damaged_value(
    path: Path, verb: Callable[[Postbox], object], table: str, column: str, value: object
) -> None:
    """StoreCorrupt names file, table and column, and says what to do, whatever Python said."""
    assert put(path, f"_onceward_{table}", column, value) > 0

    with opening(path) as box, pytest.raises(StoreCorrupt, match="restore a backup") as found:
        verb(box)

    assert (str(path), f"_onceward_{table}.{column}") == (
        str(found.value).partition(":")[0],
        str(found.value).split(" (found by")[0].split()[-1],
    )


def test_a_reader_names_the_damaged_value(path: Path) -> None:
    """A block that reads a file for an operator raises StoreCorrupt, not the TypeError in it."""
    put(path, "_onceward_inbox", "received_at", "soon")

    said = pytest.raises(StoreCorrupt, match=r"non-INTEGER value in _onceward_inbox\.received_at")
    with said, opened(path) as found:
        [(at,), *_] = found.rows("SELECT received_at FROM _onceward_inbox")
        assert at < 1


def test_an_error_in_a_sound_file_stays_what_it_was(path: Path) -> None:
    """A TypeError of the caller's own is raised as it is."""
    error = TypeError("of the caller")
    with opening(path) as box:
        assert error is box._db.explain(error)


def test_a_sound_file_is_not_examined_again_at_once(path: Path) -> None:
    """The next error within a minute finds the result of the last examination."""
    statements: list[str] = []

    def note(_: object, sql: str, __: object) -> bool:
        statements.append(sql)
        return True

    with opening(path) as box:
        first = box._db.examine()
        [reader] = box._db.readers.connections()
        reader.exec_trace = note
        second = box._db.examine()
        reader.exec_trace = None

    assert (None, None, []) == (first, second, statements)


def test_engines_go_on_for_other_files(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The dispatcher of a damaged file logs why it waits; that of another one works."""
    put(path, "_onceward_peers", "due_at", "soon")
    got = Queue[object]()
    agent = Agent("c")

    @agent.on("note")
    def note(body: object) -> None:
        got.put(body)

    with Postbox(path, agent="a"), Postbox(path.parent / "c.db", agent=agent) as other:
        until(lambda: "non-INTEGER value in _onceward_peers.due_at" in caplog.text)
        other.send("c", "to itself", type="note")

        assert "to itself" == got.get(timeout=60)
    assert "TypeError" not in caplog.text.partition("Traceback")[0]


def test_health_reports_damage_until_it_is_repaired(path: Path) -> None:
    """The file fails from the error on, and its verdict is ok again once the value is right."""
    put(path, "_onceward_lanes", "due_at", "soon")
    with opening(path) as box:
        with pytest.raises(StoreCorrupt):
            box.receive()
        found = box.file.health()
        put(path, "_onceward_lanes", "due_at", None)
        after = box.file.health()

    assert ("failing", True, "ok") == (
        found.verdict, "_onceward_lanes.due_at" in found.reasons[0], after.verdict,
    )  # fmt: skip
