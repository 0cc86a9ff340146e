"""Ask one file for its failures, grouped by kind."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.message.vocabulary import PARKED
from onceward.ops.views import lists
from onceward.ops.views.asking import NEVER, Source, moment_from, values
from onceward.ops.views.rates import starts

Kind = Literal["dead letter", "retry", "peer", "schedule"]
"""Kind of a failure: a dead letter, a retried message, a failing peer or schedule."""
MOST: Final = 2_000
"""Maximum newest dead letters and lanes of a file that are examined."""
SPAN: Final = 180_000
SPANS: Final = 20
ID: Final = re.compile(r"\b(?=[0-9a-f-]*\d)[0-9a-f]{8}[0-9a-f-]*\b|\b0x[0-9a-f]+\b", re.IGNORECASE)
NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")
LONGEST: Final = 300
"""Characters of an error that identify it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failures of one file that have one kind, type and error."""

    fingerprint: str
    """Fingerprint, the same for equal failures of other files."""
    kind: Kind
    type: str
    """Type of the messages; empty for peers and schedules."""
    error: str
    """The error of the newest one, with its numbers."""
    count: int
    first_at: Millis | None
    """When it began; None if unknown."""
    last_at: Millis | None
    sample: str
    """Id of the newest message, or the name of the peer or the schedule."""
    recent: tuple[int, ...] = ()
    """Counts in each of the last spans, oldest first; empty if unknown."""
    tries: int = 0
    """Maximum attempts of a retried message."""


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans by which failures are counted; the last one is the running one."""

    until: Millis
    span: Millis
    count: int

    @property
    def begins_at(self) -> Millis:
        """When the first one begins."""
        return self.until - self.span * self.count


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
    attempts: int
    received_at: Millis
    due_at: Millis | None


# Columns after the frame are read once per group: they cost the size of the frame.
LETTERS: Final = f"""
SELECT {columns(Letter)} FROM onceward_dead_letters
 WHERE seq <= :newest ORDER BY seq DESC LIMIT {MOST}
"""
DIED: Final = "SELECT dead_at FROM onceward_dead_letters WHERE seq = ?"
DEATHS: Final = moment_from("onceward_dead_letters", "dead_at")
TRIED: Final = """
SELECT f.message_id, f.failed_at FROM onceward_failed_attempts AS f
 WHERE f.seq > (SELECT max(l.seq) FROM onceward_failed_attempts AS l) - :most
   AND f.failed_at >= :since
"""
FAILING: Final = f"""
SELECT {columns(Failing, "b.", due_at="l.due_at", attempts="l.attempts")}
  FROM (SELECT * FROM onceward_lanes WHERE due_at >= 0 AND due_at < {PARKED} LIMIT {MOST}) AS l
  JOIN onceward_inbox AS b ON b.seq = l.head_seq AND l.sender IS NOT NULL
 WHERE l.attempts > 0 AND b.reason IS NOT NULL AND l.awaits IS NULL
 ORDER BY b.seq DESC
"""


def pattern(error: str) -> str:
    """Return an error without its numbers and ids."""
    return NUMBER.sub("#", ID.sub("#", error))[:LONGEST]


def fingerprint(kind: Kind, type_name: str, error: str) -> str:
    """Return the fingerprint of failures of one kind, type and error pattern."""
    told = "\0".join((kind, type_name, pattern(error)))
    return sha256(told.encode("utf-8", "replace")).hexdigest()[:12]


def spans(now: Millis) -> Spans:
    """Return the spans of the last hour by which failures are counted."""
    return Spans((now // SPAN + 1) * SPAN, SPAN, SPANS)


def failures(source: Source, now: Millis) -> tuple[Failure, ...]:
    """Return the failures of a file, the most frequent first."""
    when = spans(now)
    found = [
        *_dead(source, when), *_retried(source, when), *_peers(source), *_schedules(source)
    ]  # fmt: skip
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


def retried_like(source: Source, wanted: str) -> tuple[str, ...]:
    """Return the ids of the messages that are tried again and have a fingerprint, oldest first."""
    return tuple(
        each.id
        for each in reversed(values(source, Failing, FAILING))
        if fingerprint("retry", each.type, each.reason) == wanted
    )


def _dead(source: Source, when: Spans) -> Iterator[Failure]:
    groups: dict[str, list[Letter]] = {}
    letters = values(source, Letter, LETTERS, newest=NEVER)
    for letter in letters:
        mark = fingerprint("dead letter", letter.type, _error(letter))
        groups.setdefault(mark, []).append(letter)
    begins = _deaths(source, letters[0].seq + 1, when) if letters else ()
    for mark, found in groups.items():
        newest, oldest = found[0], found[-1]
        first, last = (_first(source.rows(DIED, (each.seq,))) for each in (oldest, newest))
        recent = counted([each.seq for each in found], begins)
        yield Failure(
            mark, "dead letter", newest.type, _error(newest), len(found), first, last, newest.id,
            recent,
        )  # fmt: skip


def _deaths(source: Source, end: int, when: Spans) -> tuple[int, ...]:
    """Return the numbers of the first dead letters of each span; none if no span has one."""
    last = _first(source.rows(DIED, (end - 1,)))
    if last is None or last < when.begins_at:
        return ()
    return starts(source, DEATHS, end, when.until, span=when.span, count=when.count)


def counted(places: Iterable[int], begins: Sequence[int]) -> tuple[int, ...]:
    """Return how many *places* are in each span; *begins* are the places where spans begin."""
    found = [0] * len(begins)
    for place in places:
        at = bisect_right(begins, place) - 1
        if at >= 0:
            found[at] += 1
    return tuple(found) if any(found) else ()


def _first(rows: Iterable[tuple[Millis]]) -> Millis | None:
    return next((at for (at,) in rows), None)


def _retried(source: Source, when: Spans) -> Iterator[Failure]:
    groups: dict[str, list[Failing]] = {}
    for each in values(source, Failing, FAILING):
        groups.setdefault(fingerprint("retry", each.type, each.reason), []).append(each)
    tried = source.rows(TRIED, {"most": MOST, "since": when.begins_at}) if groups else []
    begins = [when.begins_at + at * when.span for at in range(when.count)]
    for mark, found in groups.items():
        newest, first = found[0], min(each.received_at for each in found)
        ids = {each.id for each in found}
        recent = counted([at for message_id, at in tried if message_id in ids], begins)
        yield Failure(
            mark, "retry", newest.type, newest.reason, len(found), first, None, newest.id,
            recent, max(each.attempts for each in found),
        )  # fmt: skip


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
