"""What a release promises has golden files, and this version reads each of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import apsw
import pytest
from tests.release import exchanges, features, home, shapes
from tests.release.repeatable import controls, repeatable, smooth

from onceward import Postbox
from onceward.message.parcel import ReceiptState, Verdict
from onceward.message.vocabulary import INBOX_STATES, OUTBOX_STATES
from onceward.message.wire import NoticeKind
from onceward.ops.cli.app import COMMANDS
from onceward.testing import Controls, ManualClock

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))
SUPPORT = Path(__file__).parents[2] / "docs" / "support.md"
PROMISED = {
    "Files": "the files of both homes",
    "SQL": "the files of both homes: their views",
    "Wire": "wire/",
    "Python": "the script that writes the files, and calls the public names",
    "Command": "commands.json",
}
"""Each promise of support.md, and the golden files that hold it."""
EMPTY = {
    "_onceward_blocked_lanes": "a lane waits there for the seconds of a failed push",
    "_onceward_workers": "it has a row while a process runs, or was killed",
    "_onceward_differing_messages": "it needs a restored backup and a handler that asks a clock",
    "_onceward_time_index": "it has a row for each thousand messages",
    "system_notices": "a notice stays for a moment, until its agent publishes it",
}
"""Tables without a row in the golden files."""


ENDS = """
SELECT type, state, count(*) FROM onceward_outbox
 WHERE type IN ('job', 'approve', 'typed', 'once') GROUP BY type, state ORDER BY type, state
"""
ENDED = [
    ("approve", "acked", 1),
    ("job", "acked", 5),
    ("job", "cancelled", 1),
    ("job", "failed", 1),  # expired before its turn
    ("once", "acked", 3),
    ("once", "sending", 1),  # for a member that is not there
    ("typed", "acked", 1),
]
TWICE = """
SELECT sender, id FROM onceward_processed_messages GROUP BY sender, id HAVING count(*) > 1
"""


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the golden files of a release."""
    home.unpack(request.param, tmp_path / "golden")
    return tmp_path / "golden"


def files(golden: Path) -> list[Path]:
    """Return the files of all agents and homes."""
    return sorted(golden.rglob("*.db"))


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Ask a file directly."""
    con = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    found: list[tuple[Any, ...]] = con.execute(sql).fetchall()
    con.close()
    return found


# -- what there is -----------------------------------------------------------------------------


def test_each_promise_has_golden_files(golden: Path) -> None:
    """A promise that is added to the page needs files here, or a reason."""
    page = SUPPORT.read_text(encoding="utf-8").partition("## What a release promises")[2]
    named = re.findall(r"^\*\*(\w+)\.\*\*", page.partition("\n## ")[0], re.MULTILINE)

    assert sorted(PROMISED) == sorted(named)
    assert (golden / "commands.json").is_file()
    assert (golden / "wire").is_dir()


def test_each_table_has_a_row(golden: Path) -> None:
    """Those that have none are named, with the reason."""
    count = Counter[str]()
    for path in files(golden):
        for (name,) in rows(path, "SELECT name FROM sqlite_schema WHERE type = 'table'"):
            count[name] += rows(path, f'SELECT count(*) FROM "{name}"')[0][0]

    assert set(EMPTY) == {name for name, rows in count.items() if not rows} - {"sqlite_sequence"}


def test_each_state_has_a_message(golden: Path) -> None:
    """Every state in which a message rests is in some outbox or inbox."""
    agents = [path for path in files(golden) if path.name != "directory.db"]

    def seen(view: str) -> set[str]:
        return {state for each in agents for (state,) in rows(each, f"SELECT state FROM {view}")}

    assert set() == set(OUTBOX_STATES) - seen("onceward_outbox")
    assert set() == set(INBOX_STATES) - seen("onceward_inbox")


def test_each_word_of_the_wire_is_there(golden: Path) -> None:
    """A parcel, answers of each verdict, receipts of each state, and notices of each kind."""
    names = {path.stem for path in (golden / "wire").iterdir()}
    receipts = exchanges.read((golden / "wire" / "parcel.bin").read_bytes(), "parcel").receipts

    assert {f"answer-{each}" for each in get_args(Verdict)} <= names
    assert {f"notice-{each}" for each in get_args(NoticeKind)} <= names
    assert set(get_args(ReceiptState)) == {each.state for each in receipts}
    assert {"parcel", "socket-parcel", "socket-answer"} <= names


def test_each_command_has_a_document_or_a_reason() -> None:
    """A new command is added to the calls, or to those without a golden document."""
    called = {
        next(each for each in (" ".join(line.split()[:2]), line.split()[0]) if each in COMMANDS)
        for line in shapes.COMMANDS.strip().splitlines()
    }
    named = [name for listed in shapes.WITHOUT.values() for name in listed]

    assert sorted(COMMANDS) == sorted([*called, *named])


# -- what this version makes of it -------------------------------------------------------------


def test_files_of_every_feature_go_on(golden: Path) -> None:
    """They are whole, what waits for its time or turn is handled then, and nothing is doubled."""
    clock = ManualClock()
    clock.advance(20)
    testing = Controls(clock=clock)
    folder = golden / "features"
    with (
        Postbox(folder / "lead.db", agent=features.LEAD, start=False, testing=testing) as lead,
        Postbox(folder / "crew.db", agent=features.crew(), start=False, testing=testing) as crew,
    ):
        assert [] == [*lead.file.check(), *crew.file.check()]
        lead.session("approve").send(features.CREW, features.Approval(text="yes"))
        for _ in range(4):  # a job of each tenant an hour
            features.settle(lead, crew)
            clock.advance(3600)
        features.settle(lead, crew)

        assert ENDED == lead.query(ENDS)
        assert [] == crew.query(TWICE)
        assert [] == [*lead.file.check(), *crew.file.check()]


def test_words_mean_what_they_meant(golden: Path) -> None:
    """Each parcel, answer and notice of the release is read, and says the same."""
    expected = exchanges.expected()
    found = {
        path.stem: exchanges.read(path.read_bytes(), path.stem)
        for path in (golden / "wire").iterdir()
    }

    assert {} == {
        name: each
        for name, each in found.items()
        if each != expected[name] and not isinstance(each, bytes)
    }


def test_another_encoding_of_the_socket_has_another_mark(golden: Path) -> None:
    """Two processes of one machine that do not understand each other must notice it."""
    now = golden / "now"
    exchanges.write(now)
    changed = [
        name
        for name in ("socket-parcel.bin", "socket-answer.bin")
        if (golden / "wire" / name).read_bytes() != (now / name).read_bytes()
        and (golden / "wire" / name).read_bytes()[:4] == (now / name).read_bytes()[:4]
    ]

    assert [] == changed


def test_documents_only_gain_members(golden: Path) -> None:
    """Each command ends with the code that it had, and prints at least what it printed."""
    before = json.loads((golden / "commands.json").read_text(encoding="utf-8"))
    now = shapes.documents(golden / "features")

    assert [] == [
        f"{line}: {problem}"
        for line, each in before.items()
        for problem in shapes.lost(each, now.get(line, {}))
    ]
    assert {line: each["code"] for line, each in before.items()} == {
        line: each["code"] for line, each in now.items() if line in before
    }


def test_a_lost_member_is_found() -> None:
    """The comparison of documents sees a member that went, another type, and another code."""
    before = {"code": 0, "shape": [{"id": "str", "at": "NoneType", "n": {"a": "int"}}]}

    assert [] == shapes.lost(
        before, {"code": 0, "shape": [{"id": "str", "at": "str", "n": {"a": "int"}}]}
    )
    assert [".shape[].id: str, now int", ".shape[].n.a: int, now nothing"] == shapes.lost(
        before, {"code": 0, "shape": [{"id": "int", "at": "str", "n": {}}]}
    )


def test_the_same_tree_writes_the_same_bytes(tmp_path: Path) -> None:
    """Packing the golden files again changes only what the tree has changed."""
    written = [dict[str, bytes](), dict[str, bytes]()]
    for number, found in enumerate(written):
        folder = tmp_path / str(number)
        folder.mkdir()
        with repeatable() as rng:
            features.write(folder, controls(ManualClock(), rng))
            exchanges.write(folder / "wire")
        for path in sorted(folder.rglob("*")):
            if path.suffix == ".db":
                smooth(path)
            if path.suffix in home.PACKED:
                found[path.name] = path.read_bytes()

    assert len(written[0]) > 15
    assert [] == [name for name in written[0] if written[0][name] != written[1].get(name)]
