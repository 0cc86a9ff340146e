"""Ask one file what fails, with failures of one kind put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from onceward.file.columns import columns
from onceward.message.clock import Millis
from onceward.ops.views import lists
from onceward.ops.views.asking import NEVER, Source, values

Kind = Literal["dead letter", "retry", "peer", "schedule"]
"""A message that was given up, one that is tried again, a peer or a schedule that fails."""
MOST: Final = 2_000
"""Dead letters and lanes of a file that are looked at, the newest ones."""
ID: Final = re.compile(r"\b(?=[0-9a-f-]*\d)[0-9a-f]{8}[0-9a-f-]*\b|\b0x[0-9a-f]+\b", re.IGNORECASE)
NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")
LONGEST: Final = 300
"""Characters of an error by which it is told from others."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failures of one file that have one kind, type and error."""

    fingerprint: str
    """The same for failures of other files that are like it."""
    kind: Kind
    type: str
    """Type of the messages; empty where the failure is not of a message."""
    error: str
    """The error of the newest one, with its numbers."""
    count: int
    first_at: Millis | None
    """None where the file does not know when it began."""
    last_at: Millis | None
    sample: str
    """Id of the newest message, or the name of the peer or the schedule."""


@dataclass(frozen=True, slots=True)
class Letter:
    """The part of a dead letter by which it is grouped with others."""

    seq: int
    id: str
    type: str
    reason: str
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Failing:
    """The oldest message of a lane that is tried again."""

    id: str
    type: str
    reason: str
    received_at: Millis
    due_at: Millis | None


# Columns behind the frame are read once for each group: they cost the size of the frame.
LETTERS: Final = f"""
SELECT {columns(Letter)} FROM onceward_dead_letters
 WHERE seq <= :newest ORDER BY seq DESC LIMIT {MOST}
"""
DIED: Final = "SELECT dead_at FROM onceward_dead_letters WHERE seq = ?"
FAILING: Final = f"""
SELECT {columns(Failing, "b.", due_at="l.due_at")}
  FROM (SELECT * FROM onceward_lanes WHERE due_at >= 0 LIMIT {MOST}) AS l
  JOIN onceward_inbox AS b ON b.sender = l.sender AND b.id = l.head_id
 WHERE l.attempts > 0 AND b.reason IS NOT NULL AND l.awaits IS NULL
 ORDER BY b.seq DESC
"""


def pattern(error: str) -> str:
    """Return an error without its numbers and ids."""
    return NUMBER.sub("#", ID.sub("#", error))[:LONGEST]


def fingerprint(kind: Kind, type_name: str, error: str) -> str:
    """Return what failures of one kind, type and pattern of error share."""
    told = "\0".join((kind, type_name, pattern(error)))
    return sha256(told.encode("utf-8", "replace")).hexdigest()[:12]


def failures(source: Source) -> tuple[Failure, ...]:
    """Return what fails in a file, the most frequent first."""
    found = [*_dead(source), *_retried(source), *_peers(source), *_schedules(source)]
    return tuple(sorted(found, key=lambda each: -each.count))


def letters_like(source: Source, wanted: str) -> tuple[str, ...]:
    """Return the ids of the dead letters that have a fingerprint, oldest first."""
    return tuple(
        letter.id
        for letter in reversed(values(source, Letter, LETTERS, newest=NEVER))
        if fingerprint("dead letter", letter.type, _error(letter)) == wanted
    )


def _error(letter: Letter) -> str:
    return ": ".join(filter(None, (letter.reason, letter.last_error)))


def _dead(source: Source) -> Iterator[Failure]:
    groups: dict[str, list[Letter]] = {}
    for letter in values(source, Letter, LETTERS, newest=NEVER):
        mark = fingerprint("dead letter", letter.type, _error(letter))
        groups.setdefault(mark, []).append(letter)
    for mark, found in groups.items():
        newest, oldest = found[0], found[-1]
        first, last = (_first(source.rows(DIED, (each.seq,))) for each in (oldest, newest))
        yield Failure(
            mark, "dead letter", newest.type, _error(newest), len(found), first, last, newest.id
        )


def _first(rows: Iterable[tuple[Millis]]) -> Millis | None:
    return next((at for (at,) in rows), None)


def _retried(source: Source) -> Iterator[Failure]:
    groups: dict[str, list[Failing]] = {}
    for each in values(source, Failing, FAILING):
        groups.setdefault(fingerprint("retry", each.type, each.reason), []).append(each)
    for mark, found in groups.items():
        newest, first = found[0], min(each.received_at for each in found)
        yield Failure(mark, "retry", newest.type, newest.reason, len(found), first, None, newest.id)


def _peers(source: Source) -> Iterator[Failure]:
    for peer in lists.worst_peers(source, MOST):
        if not peer.failing:
            return
        error = f"{peer.name}: {peer.last_error or 'no answer'}"
        mark = fingerprint("peer", peer.name, error)
        yield Failure(mark, "peer", "", error, peer.failures, peer.seen_at, None, peer.name)


def _schedules(source: Source) -> Iterator[Failure]:
    for each in lists.schedules(source):
        if each.failing:
            error = f"{each.name}: {each.last_error}"
            mark = fingerprint("schedule", each.name, error)
            yield Failure(mark, "schedule", "", error, 1, each.last_at, None, each.name)
