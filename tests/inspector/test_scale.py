"""A page costs the same however large the file is, and no writer waits for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import apsw
import pytest
from starlette.testclient import TestClient
from tests.children import PYTHON, Child
from tests.inspector.homes import crowd, swollen
from tests.inspector.test_pages import PAGES

from onceward import Postbox
from onceward.errors import StoreError
from onceward.file import read_only as reading
from onceward.file.connection import connect
from onceward.file.handler_work import HANDLED_AS
from onceward.file.migrations import OWNED
from onceward.file.read_only import FileReader, opened
from onceward.ops.inspector import app
from onceward.ops.inspector.refresher import Refresher
from onceward.ops.inspector.targets import Targets
from onceward.ops.views.asking import NEVER
from onceward.ops.views.listing import Conditions, listing
from onceward.ops.views.overview import DEAD, RUN_COUNTS, STATS, dead_groups
from onceward.ops.views.rates import rates
from onceward.ops.views.why import HELD
from onceward.testing import Controls, ManualClock

if TYPE_CHECKING:
    from tests.inspector.conftest import Home

SMALL = {
    "CONSTANT",
    "onceward_backlog",
    "onceward_session_queue_messages",
    "onceward_output_streams",  # one message's, found by an index
    "_onceward_counters",
    "_onceward_file_info",
    "_onceward_handler_limits",  # a row for each handler that has a limit
    "_onceward_migrations",
    "_onceward_peers",
    "_onceward_session_handlers",
    "g",
    "h",
    "i",
    "j",
    "k",
    "m",
    "p",
    "json_each",
    "pragma_table_info",
    "s",
    "sqlite_schema",
    "sqlite_sequence",
    "t",
    "w",
    "waiting",
}
"""Tables of a few rows, functions, the queue of one session; peers are ``p``, limits are ``l``."""
WRITER = """
import sys, apsw
con = apsw.Connection(sys.argv[1])
con.execute("BEGIN IMMEDIATE")
con.execute("UPDATE _onceward_counters SET value = value")
print("held", flush=True)
sys.stdin.readline()
con.execute("COMMIT")
print("committed", flush=True)
sys.stdin.readline()
print(*con.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE), flush=True)
"""


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return every statement that pages run with its last values."""
    found: dict[str, Any] = {}
    walk = FileReader.walk

    def recorded(self: FileReader, sql: str, bindings: Any = None) -> Any:
        found[sql] = bindings
        return walk(self, sql, bindings)

    monkeypatch.setattr(FileReader, "walk", recorded)
    return found


def scanned(con: apsw.Connection, sql: str, bindings: Any) -> set[str]:
    """Return the tables that a statement reads from one end to the other."""
    plan = con.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)
    found = (re.match(r"SCAN (\w+)", str(detail)) for *_, detail in plan.fetchall())
    return {match[1] for match in found if match}


def test_no_page_scans_a_table_that_grows(
    web: TestClient, home: Home, statements: dict[str, Any]
) -> None:
    """Every statement of every page finds its rows by an index, and ends at a limit."""
    for page in (*PAGES, "/agents/shop/rates.json", f"/search?q={home.ids['order'][:9]}"):
        web.get(page.format(**home.ids))
    con = apsw.Connection(str(home.path / "shop.db"), flags=apsw.SQLITE_OPEN_READONLY)
    con.execute("ATTACH ? AS directory", (str(home.path / "directory.db"),))
    views = {"onceward_outbox", "onceward_lanes", "onceward_transitions", "members"}

    large = {
        sql: tables
        for sql, bindings in statements.items()
        if not sql.startswith("PRAGMA") and (tables := scanned(con, sql, bindings) - small(sql))
    }
    con.close()

    assert {} == large
    assert views <= {name for name in views if any(name in sql for sql in statements)}
    opening = {sql for sql in statements if "migrations" in sql or sql == OWNED}
    assert not any("_onceward_" in sql for sql in statements.keys() - opening)


def small(sql: str) -> set[str]:
    """Return what a statement may scan; ``p`` is also a dedup record."""
    # Limits end at theirs. Ready lanes have an index of their own, read as far as the page goes.
    ended = "FROM onceward_limits" in sql or "w.head_seq IS NOT NULL AND w.due_at IS NULL" in sql
    more = {"l"} if ended else set[str]()
    if sql == RUN_COUNTS:
        more = {"r"}  # open runs and calls that were left have an index of their own
    if sql == HANDLED_AS:  # a slice of the session's runs
        more = {"newest"}
    if sql == HELD:  # it reads the newest thousand rows
        more = {"newest", "o"}
    if sql == STATS:  # counted by an index, in every place that shows them
        more = {"_onceward_dead_letters", "_onceward_pending_replies"}
    return (SMALL | more) - ({"p"} if "onceward_processed_messages AS p" in sql else set())


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with 20,000 messages and as many lanes."""
    path = tmp_path_factory.mktemp("big") / "big.db"
    swollen(path, 20_000)
    return path


def steps(path: Path, page: str) -> int:
    """Return for how many thousand operations SQLite worked on a page."""
    counted = [0]

    def count() -> bool:
        counted[0] += 1
        return False

    made = app([path])
    made.state.site.refresher.refresh()
    with pytest.MonkeyPatch.context() as patch:
        began = FileReader.__init__

        def watched(self: FileReader, con: Any, *given: Any, **named: Any) -> None:
            began(self, con, *given, **named)
            con.set_progress_handler(count, 1000)

        patch.setattr(FileReader, "__init__", watched)
        answer = TestClient(made, base_url="http://localhost").get(page)
    made.state.site.refresher.stop()
    assert 200 == answer.status_code
    return counted[0]


@pytest.mark.parametrize(
    "page",
    ["/agents/big", "/agents/big/rates.json", "/agents/big/messages", "/dead", "/",
     "/agents/big?range=week", "/?range=day",
     "/topology", "/schedules", "/channels",
     "/agents/big/messages?box=inbox", "/agents/big/messages/{id}",
     "/agents/big/conversations/{id}", "/search?q={id}"],
)  # fmt: skip
def test_a_page_works_no_longer_on_a_large_file(big: Path, page: str) -> None:
    """20,000 messages would be a million operations if each were looked at."""
    con = apsw.Connection(str(big), flags=apsw.SQLITE_OPEN_READONLY)
    [(message_id,)] = con.execute("SELECT id FROM onceward_outbox WHERE seq = 10000").fetchall()
    con.close()

    assert steps(big, page.format(id=message_id)) < 60


class CountingVfs(apsw.VFS):
    """Counts the bytes that are read from files."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.vfs_name = f"counting-{id(self)}"
        super().__init__(self.vfs_name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        """Open a file that counts for this one."""
        return CountingFile(self, name, flags)


class CountingFile(apsw.VFSFile):
    """A file of a counting VFS."""

    def __init__(self, vfs: CountingVfs, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's name
        """Read, and count."""
        self._vfs.bytes_read += amount
        return super().xRead(amount, offset)


@pytest.mark.parametrize("page", ["messages", "conversations"])
def test_a_page_reads_a_large_body_once_at_most(
    tmp_path: Path, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is told without reading it twice; nothing else of it is asked for."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, max_body=9_000_000) as box:
        sent = box.send("a", {"blob": "x" * 8_000_000})
        box.run_until_idle()
    made, counting = app([tmp_path]), CountingVfs()
    made.state.site.refresher.refresh()
    monkeypatch.setattr(reading, "connect", partial(connect, vfs=counting.vfs_name))
    answer = TestClient(made, base_url="http://localhost").get(f"/agents/a/{page}/{sent}")
    made.state.site.refresher.stop()

    assert 200 == answer.status_code
    assert 0 < counting.bytes_read < 12_000_000


def test_a_filter_that_fits_nothing_ends_and_goes_on(big: Path) -> None:
    """Its pages go on where the time was used up, until every message was looked at once."""
    with opened(big) as reader:
        looked, before, pages = 0, NEVER, 0
        while True:
            found = listing(reader, "inbox", Conditions(type="x"), before=before, budget=-1)
            looked, pages = looked + found.looked, pages + 1
            if found.next is None:
                break
            before = found.next

    assert (20_001, ()) == (looked, found.messages)
    assert pages > 100


def test_a_writer_waits_for_no_page(web: TestClient, home: Home) -> None:
    """With a transaction open in another process every page answers, and none keeps the WAL."""
    with writing(home.path / "shop.db") as child:
        for page in PAGES:
            assert 200 == web.get(page.format(**home.ids)).status_code
        out, _ = child.ended("\n\n")

    assert (0, "committed\n0 0\n") == (child.returncode, out)


def test_a_page_in_its_middle_keeps_no_writer(home: Home) -> None:
    """A commit goes through while rows are being read, at once: the writer has no patience."""
    with opened(home.path / "shop.db") as reader, writing(home.path / "shop.db") as child:
        rows = reader.walk("SELECT seq FROM onceward_outbox")
        next(rows)
        child.tell()
        said = child.hear()
        left = sum(1 for _ in rows)

    assert "committed" == said
    assert left > 0


@contextmanager
def writing(path: Path) -> Iterator[Child]:
    """Run a process that holds the write lock of a file until it is told to commit."""
    with Child([*PYTHON, "-c", WRITER, path], "stdin", "stdout") as child:
        assert "held" == child.hear()
        yield child


def test_a_home_is_read_once_and_then_what_has_changed(
    tmp_path: Path, statements: dict[str, Any]
) -> None:
    """The second look reads no file; a commit has its file read again, a lost file is dropped."""
    clock = ManualClock()
    crowd(tmp_path, 5, clock)
    refresher = Refresher(Targets([tmp_path]), clock=clock)
    refresher.refresh()
    first, version = {*refresher.snapshots}, refresher.version
    statements.clear()
    refresher.refresh()
    quiet = dict(statements)
    with Postbox(tmp_path / "agent-0003.db", start=False, testing=Controls(clock=clock)) as box:
        box.send("agent-0001", 1, type="job")
        refresher.refresh()
        changed = refresher.changed_since(version)
    (tmp_path / "agent-0004.db").unlink()
    refresher.refresh()
    refresher.stop()

    assert ({f"agent-000{n}" for n in range(5)}, {}) == (first, quiet)
    assert frozenset({"agent-0003"}) == changed[1]
    assert "agent-0004" not in refresher.snapshots
    changed_one = refresher.snapshots["agent-0003"].overview
    assert changed_one is not None
    assert 4 == changed_one.stats["enqueued"]


def test_a_page_that_was_away_too_long_is_told_that_all_may_have_changed(tmp_path: Path) -> None:
    """Only so many changes are remembered."""
    clock = ManualClock()
    crowd(tmp_path, 1, clock)
    refresher = Refresher(Targets([tmp_path]), clock=clock)
    for _ in range(70):
        refresher.refresh()
        clock.advance(301)
    refresher.stop()

    assert (70, None) == refresher.changed_since(0)
    assert (70, frozenset()) == refresher.changed_since(70)
    assert (70, frozenset({"agent-0000"})) == refresher.changed_since(60)


def test_rates_are_counted_without_reading_the_messages(tmp_path: Path) -> None:
    """By minute, also where old rows were pruned, and nothing before the first message."""
    clock = ManualClock()
    with Postbox(
        tmp_path / "a.db", agent="a", start=False, testing=Controls(clock=clock), hold_unknown=True
    ) as box:
        for minute in range(10):
            for _ in range(minute):
                box.send("b", minute, type="job")
            clock.advance(60)
        with opened(tmp_path / "a.db") as reader:
            whole = rates(reader, clock.now() - 1, span=60_000, count=12)

    assert (0, 0, *range(10)) == whole.sent
    assert (0,) * 12 == whole.received


def test_large_dead_letters_are_counted_without_being_read(home: Home) -> None:
    """A text behind the frame costs the size of the frame: it is read once for each group."""
    with opened(home.path / "billing.db") as reader:
        groups = dead_groups(reader)
        inner = DEAD[DEAD.index("SELECT seq, reason") : DEAD.index(")", DEAD.index("LIMIT"))]
        columns = [row[1] for row in reader.rows("PRAGMA table_info(_onceward_dead_letters)")]

    named = inner.partition("FROM")[0].replace("SELECT", "").replace(" ", "").strip().split(",")
    assert [("rejected", "invoice.created", 3)] == [(g.reason, g.type, g.count) for g in groups]
    assert max(map(columns.index, named)) < columns.index("frame")


def test_a_scrape_of_the_inspector_opens_no_file(home: Home, statements: dict[str, Any]) -> None:
    """The snapshots of the pages have all that the metrics tell, for however many agents."""
    made = app([home.path], clock=home.clock, metrics=True)
    made.state.site.refresher.refresh()
    statements.clear()
    text = TestClient(made, base_url="http://localhost").get("/metrics").text
    made.state.site.refresher.stop()

    assert 'onceward_breakers_open{agent="shop"} 1.0' in text
    assert {} == statements


def test_a_file_that_could_not_be_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A passing failure does not stay on the pages until the file is written; it is one change."""
    with Postbox(tmp_path / "ann.db", agent="ann", start=False):
        pass
    refresher = Refresher(Targets([tmp_path]), clock=ManualClock())
    refused = StoreError("for a moment")
    with monkeypatch.context() as patched:
        patched.setattr("onceward.ops.inspector.refresher.overview", Mock(side_effect=refused))
        seen = []
        for _ in range(3):
            refresher.refresh()
            seen.append((refresher.version, refresher.snapshots["ann"].problem))
    refresher.refresh()

    assert [(1, "for a moment")] * 3 == seen
    assert (2, None) == (refresher.version, refresher.snapshots["ann"].problem)
