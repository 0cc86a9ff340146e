"""Define what is known of each message from its rows of evidence, in SQL for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal

from onceward.fleet.states import (
    COPIED_INBOX,
    DIFFERING,
    INBOX,
    LOGGED_IN,
    LOGGED_OUT,
    LOST_MARK,
    MARK,
    OUTBOX,
    SENT_DEAD,
    TAKEN_DEAD,
)

OF_SENDER: Final = (OUTBOX, SENT_DEAD, LOGGED_OUT)
OF_RECIPIENT: Final = (INBOX, MARK, TAKEN_DEAD, LOGGED_IN)
ARRIVED: Final = (INBOX, TAKEN_DEAD)
EVER_ARRIVED: Final = (*ARRIVED, COPIED_INBOX)
EVER_MARKED: Final = (MARK, LOST_MARK)
EFFECT: Final = "{of}state = 5"
ROW: Final = {OUTBOX: "o", INBOX: "i", MARK: "m"}
"""The rows of a plain message, which has at most one of each of these sides and no others."""


@dataclass(frozen=True, slots=True)
class Fact:
    """The least or the greatest value of a column in a message's rows of some sides."""

    pick: Literal["min", "max"]
    column: str
    """SQL of one row; ``{of}`` stands before its columns."""
    sides: tuple[int, ...]
    when: str = ""
    """Condition of the rows that count."""
    none: str = ""
    """Value without such a row, if not NULL."""
    everywhere: bool = False
    """Whether rows of all sides count; *sides* are then those of ``ROW`` with such a value."""

    @property
    def grouped(self) -> str:
        """The fact as an aggregate, which costs time for each row."""
        return self._or_none(f"{self.pick}({self._of_row()})")

    @property
    def joined(self) -> str:
        """The fact of a plain message as an expression over the rows of ``ROW``."""
        rows = [ROW[side] for side in self.sides if side in ROW]
        found = [self._value(f"{row}.", self.when) for row in rows]
        return self._or_none(reduce(self._picked, found) if found else "NULL")

    def _of_row(self) -> str:
        is_one = " OR ".join(f"side = {side}" for side in self.sides)
        conditions = ("" if self.everywhere else f"({is_one})", self.when)
        return self._value("", " AND ".join(filter(None, conditions)))

    def _value(self, of: str, when: str) -> str:
        text = f"CASE WHEN {when} THEN {self.column} END" if when else self.column
        return text.format(of=of)

    def _picked(self, one: str, other: str) -> str:
        return f"{self.pick}(coalesce({one}, {other}), coalesce({other}, {one}))"

    def _or_none(self, sql: str) -> str:
        return f"coalesce({sql}, {self.none})" if self.none else sql


IN_STATE: Final = "CASE WHEN {of}state = 6 AND {of}waits IS NULL THEN 7 ELSE {of}state END"
FACTS: Final[Mapping[str, Fact]] = {
    "lane": Fact("max", "{of}lane", (OUTBOX, INBOX), everywhere=True),
    "out_file": Fact("max", "{of}file", OF_SENDER),
    "out_state": Fact("max", "{of}state", (OUTBOX,), none="0"),
    "out_seq": Fact("max", "{of}seq", (OUTBOX,)),
    "out_dead": Fact("max", "{of}state", (SENT_DEAD,), none="0"),
    "created_at": Fact("min", "{of}at", OF_SENDER),
    "sent_at": Fact("max", "{of}sent", (OUTBOX,), everywhere=True),
    "ended_at": Fact("max", "{of}ended", (OUTBOX,), everywhere=True),
    "expires_at": Fact("min", "{of}expires", (OUTBOX, INBOX), everywhere=True),
    "in_file": Fact("max", "{of}file", OF_RECIPIENT),
    "in_state": Fact("max", IN_STATE, (INBOX,), none="0"),
    "in_seq": Fact("min", "{of}seq", (INBOX,)),
    "waits_for": Fact("max", "{of}waits", (INBOX,), everywhere=True),
    "waits_until_at": Fact("max", "{of}until", (INBOX,), everywhere=True),
    "in_dead": Fact("max", "1", (TAKEN_DEAD,), none="0"),
    "received_at": Fact("min", "{of}at", ARRIVED),
    "received_first_at": Fact("min", "{of}at", EVER_ARRIVED),
    "received_last_at": Fact("max", "{of}at", EVER_ARRIVED),
    "mark": Fact("max", "{of}state", (MARK,), none="0"),
    "mark_seq": Fact("min", "{of}seq", (MARK,)),
    "marked_at": Fact("min", "{of}at", (MARK,)),
    "effect_at": Fact("min", "{of}at", (MARK,), EFFECT),
    "effect_first_at": Fact("min", "{of}at", EVER_MARKED, EFFECT),
    "effect_last_at": Fact("max", "{of}at", EVER_MARKED, EFFECT),
    "effect_first_seq": Fact("min", "{of}seq", EVER_MARKED, EFFECT),
    "effect_last_seq": Fact("max", "{of}seq", EVER_MARKED, EFFECT),
    "logged_in_at": Fact("max", "{of}at", (LOGGED_IN,)),
    "differing": Fact("max", "1", (DIFFERING,), none="0"),
}
"""
The facts of a message on which its verdict depends.

A copy of a file, such as a backup in the same folder, repeats its evidence and adds nothing:
acceptances differ by their time, effects by the time and sequence of their marks.
Effects that a restored file has lost (``LOST_MARK``), and what a differing copy has accepted
(``COPIED_INBOX``), are compared with what the file itself has. A row that the log has and that its
file must have (``LOGGED_OUT``, ``LOGGED_IN``) was deleted there, if the file has no record at all
of that side.
"""
KNOWN: Final = "(out_file IS NOT NULL OR in_file IS NOT NULL)"
"""A message that only a lost past or a differing copy knows is not judged."""
