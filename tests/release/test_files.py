"""Files of each release open in this version, whole, and go on where they were left."""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import apsw
import pytest
from tests.release.home import NAMES, Bank, billing, left, opened, settle, unpack, write

from onceward import Postbox
from onceward.file.migrations import migrations
from onceward.testing import ManualClock

ROOT = Path(__file__).parents[2]
ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))
RELEASED = re.compile(r"^## \[(\d+\.\d+\.\d+)\]", re.MULTILINE)
COLUMNS = """
SELECT v.name, c.name FROM sqlite_schema AS v, pragma_table_info(v.name) AS c WHERE v.type = 'view'
"""
LEFT = {
    "paid": [(1, "receipt 1")],
    "dead": ["rejected"],
    "steps": [("charge", "done"), ("charge", "done")],
    "outbox": [("acked", 1), ("failed", 1), ("pending", 1), ("sent", 2)],
    "channels": [("news", "group")],
    "mailboxes": ["tasks"],
    "tasks": 1,
    "schedules": ["nightly"],
    "limits": ["send"],
}
"""What the script of the first release leaves."""
MADE_ANEW = "before the first release: python3 -m tests.release.home; after it: undo the change"

Boxes = dict[str, Postbox]


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the home that a release left."""
    unpack(request.param, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that shows a later time than the files have seen."""
    made = ManualClock()
    made.advance(7200)
    return made


@pytest.fixture
def bank() -> Bank:
    """Return a bank that has not been called in this process."""
    return Bank()


@pytest.fixture
def boxes(home: Path, bank: Bank, clock: ManualClock) -> Iterator[Boxes]:
    """Return the files, opened by this version."""
    with opened(home, billing(bank, fails=False), clock) as found:
        yield found


def test_every_release_has_its_files() -> None:
    """Those of the first version are there, and those of each that the changelog names."""
    there = {path.name.removesuffix(".tar.xz") for path in ARCHIVES}
    named = RELEASED.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))

    assert set() == {"0.1.0", *named} - there


def test_released_schema_steps_stay_as_they_are(home: Path) -> None:
    """A change of the schema after a release is a step of its own."""
    known = {step.version: sha256(step.sql.encode()).digest()[:16] for step in migrations()}
    con = apsw.Connection(str(home / "shop.db"), apsw.SQLITE_OPEN_READONLY)
    rows = con.execute("SELECT version, digest FROM _onceward_migrations").fetchall()
    applied = {int(str(number)): digest for number, digest in rows}
    con.close()

    assert applied == {number: known.get(number) for number in applied}, MADE_ANEW


def test_nothing_is_lost_by_opening(boxes: Boxes) -> None:
    """Messages, rows, steps, channels, mailboxes, schedules and limits are as they were left."""
    assert left(boxes) == LEFT
    assert [] == [each for box in boxes.values() for each in box.file.check()]


def test_what_was_left_goes_on(boxes: Boxes, bank: Bank) -> None:
    """What waited is handled, a stored step is not called again, and the reply comes."""
    settle(boxes)

    paid = [(1, "receipt 1"), (2, "receipt 2"), (3, "receipt 3")]
    assert paid == boxes["billing"].query("SELECT id, receipt FROM paid ORDER BY id")
    assert [3] == bank.calls
    form = boxes["clerk"].receive(type="form")
    assert form is not None
    with form:
        form.reply("signed")
    settle(boxes)
    shop = boxes["shop"]
    [(ticket,)] = shop.query("SELECT id FROM onceward_outbox WHERE type = 'form'")
    assert "signed" == shop.result(ticket, reply=str)
    assert {"open", "receipt 1", "receipt 2", "receipt 3"} == set(_read(shop))
    assert [] == [each for box in boxes.values() for each in box.file.check()]


def _read(box: Postbox) -> Iterator[object]:
    while message := box.receive():
        with message:
            yield message.body


def test_what_was_done_is_not_done_again(boxes: Boxes, bank: Bank) -> None:
    """A key that the old version knew is known, and a replayed dead letter is handled once."""
    again = (
        boxes["shop"].session("orders").send("billing", {"id": 1}, type="invoice", key="invoice-1")
    )
    settle(boxes)

    assert "acked" == boxes["shop"].state(again)
    assert 1 not in bank.calls
    assert [(1,)] == boxes["billing"].query("SELECT count(*) FROM paid WHERE id = 1")


def test_views_keep_their_columns(home: Path, clock: ManualClock) -> None:
    """A query of the old version runs: views only gain columns."""
    before = {name: _columns(home / f"{name}.db") for name in NAMES}
    with opened(home, billing(Bank(), fails=False), clock):
        pass

    assert all(before.values())
    assert {name: set() for name in NAMES} == {
        name: found - _columns(home / f"{name}.db") for name, found in before.items()
    }


def _columns(path: Path) -> set[tuple[str, str]]:
    con = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    found = {(str(view), str(column)) for view, column in con.execute(COLUMNS).fetchall()}
    con.close()
    return found


def test_the_script_leaves_what_the_release_left(tmp_path: Path, clock: ManualClock) -> None:
    """So the next release can pack its own files with it."""
    write(tmp_path)
    with opened(tmp_path, billing(Bank(), fails=False), clock) as found:
        assert left(found) == LEFT
