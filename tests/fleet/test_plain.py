"""Messages that are joined have the verdicts, and all that is told of them, of grouped ones."""

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.fleet.cases import FILES, OLD, RULES, evidence, expected, give

from onceward.fleet import plain
from onceward.fleet.coverage import Reading
from onceward.fleet.engine import give_verdicts
from onceward.fleet.evidence import COLUMNS
from onceward.fleet.loading import workspace
from onceward.fleet.states import (
    COPIED_INBOX,
    INBOX,
    LOGGED_IN,
    LOGGED_OUT,
    LOST_MARK,
    MARK,
    OUTBOX,
    SENT_DEAD,
    TAKEN_DEAD,
)

PLAIN = (OUTBOX, INBOX, MARK)
OTHERS = (SENT_DEAD, TAKEN_DEAD, LOST_MARK, COPIED_INBOX, LOGGED_OUT, LOGGED_IN)
READ = [Reading.of(name, said) for name, said in FILES.items() if name != "broken"]
Row = tuple[Any, ...]


def judged(folder: Path, rows: Iterable[Row], *, grouped: bool = False) -> list[Row]:
    """Return all messages of a workspace with this evidence; *grouped* by one row that is twice."""
    con = workspace(folder / "messages.db")
    known = list(rows)
    give(con, [*known, *([twice(known)] if grouped else [])])
    give_verdicts(con, READ, RULES)
    found = con.execute("SELECT * FROM messages ORDER BY sender, recipient, id").fetchall()
    con.close()
    return found


def twice(rows: Iterable[Row]) -> Row:
    """Return a row of a sender, to be added once more as a copy of its file would."""
    return next(row for row in rows if row[COLUMNS.index("side")] == OUTBOX)


def said(chance: Random, key: tuple[str, str, str], side: int) -> Row:
    """Return a row of evidence with values of few moments, states and numbers."""
    at = OLD + chance.randrange(3)
    told = {
        **dict(zip(("sender", "recipient", "id"), key, strict=True)),
        "side": side,
        "state": chance.randint(1, 7 if side == OUTBOX else 6 if side == INBOX else 5),
        "seq": chance.randint(1, 3),
        "at": at,
        "file": side,
    }
    if side != MARK:
        told["lane"] = chance.choice(("normal/a", "normal/b"))
    if side in {OUTBOX, INBOX}:
        told["expires"] = chance.choice((None, at, at + 1))
    if side == OUTBOX:
        told |= {"sent": at + 1, "ended": chance.choice((None, at + 2))}
    if side == INBOX:
        told |= {"waits": chance.choice((None, "wait")), "until": chance.choice((None, at))}
    return tuple(told.get(name) for name in COLUMNS)


def fleet(chance: Random, *, share: float) -> list[Row]:
    """Return the evidence of messages, of which a *share* has a row of another side, too."""
    rows = []
    for number in range(400):
        key = (chance.choice(("alice", "tidied")), chance.choice(("bob", "pruned")), str(number))
        sides = [side for side in PLAIN if chance.random() < 0.7]
        if chance.random() < share:
            sides += chance.sample(OTHERS, 2)
        rows += [said(chance, key, side) for side in sides]
    chance.shuffle(rows)
    return rows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0, 0.04])
def test_joined_messages_are_told_of_as_grouped_ones(
    seed: int, share: float, tmp_path: Path
) -> None:
    """Each column of each message is the same, with and without messages that are not plain."""
    rows = fleet(Random(seed), share=share)

    assert judged(tmp_path, rows, grouped=True) == judged(tmp_path, rows)


@pytest.mark.parametrize("key", expected())
def test_a_message_alone_has_the_verdict_that_it_has_among_others(
    key: tuple[str, str, str], tmp_path: Path
) -> None:
    """Each case is judged in a workspace of its own: joined, if it is plain."""
    rows = [row for row in evidence() if row[:3] == key]

    assert [(*key, expected()[key])] == [row[:4] for row in judged(tmp_path, rows)]


def test_rows_of_other_sides_make_few_messages_unusual(tmp_path: Path) -> None:
    """Only the messages with such rows are grouped, unless these are a tenth of all rows."""
    found = []
    for share in (0, 0.04, 0.5):
        con = workspace(tmp_path / "messages.db")
        rows = fleet(Random(1), share=share)
        give(con, rows)
        others = sum(row[COLUMNS.index("side")] in OTHERS for row in rows)
        found.append((others, plain.unusual(con)))
        con.close()

    (none, joined), (few, apart), (_, grouped) = found
    assert (0, few, None) == (joined, apart, grouped)
    assert none == 0 < few


def test_second_rows_of_a_side_are_kept_apart(tmp_path: Path) -> None:
    """The rows that a second one came with are others; those of the other sides stay joined."""
    rows = fleet(Random(1), share=0)
    sent = sum(row[COLUMNS.index("side")] == OUTBOX for row in rows)
    con = workspace(tmp_path / "messages.db")
    give(con, [*rows, twice(rows)])
    [(others,)] = con.execute("SELECT count(*) FROM temp.others").fetchall()
    [(every,)] = con.execute("SELECT count(*) FROM temp.evidence").fetchall()
    con.close()

    assert sent + 1 == others
    assert len(rows) + 1 == every
