"""Group equal problems of all agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from onceward.file.read_only import FileReader
from onceward.message.clock import Millis
from onceward.ops.inspector.actions import ACTIONS, Action, Given
from onceward.ops.inspector.refresher import Snapshot
from onceward.ops.views.failures import SPAN, fingerprint, letters_like, retried_like
from onceward.ops.views.overview import Overview
from onceward.ops.views.surroundings import causes

TRIES: Final = 3
"""Attempts after which a retried message needs a person, because its lane waits."""
REPAIRS: Final = {
    "dead letter": ("replay", "discard"),
    "retry": ("cancel",),
    "peer": ("reset",),
    "schedule": ("pause-schedule",),
    "paused": ("resume",),
}
"""Actions by the kind of problem that they solve, in order of preference."""
IDLE_SINCE: Final[dict[str, Callable[[Overview], Millis | None]]] = {
    "untaken": lambda numbers: numbers.inbox_oldest_at,
    "undelivered": lambda numbers: numbers.outbox_oldest_at,
}
"""Since when messages wait for a process, by the kind of problem."""
IDLE_TEXT: Final = {
    "untaken": "no worker takes its messages: onceward work, or the program that receives them",
    "undelivered": "no process delivers its messages: onceward relay",
}
LIKE: Final = {"dead letter": letters_like, "retry": retried_like}
"""Finds the messages of a file that have a problem."""


@dataclass(frozen=True, slots=True)
class Affected:
    """One agent that has a problem."""

    key: str
    count: int
    sample: str
    """Id of a message, or the name of the peer or the schedule."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Failures of one kind, type and error, in all files."""

    fingerprint: str
    kind: str
    type: str
    error: str
    first_at: Millis | None
    last_at: Millis | None
    agents: tuple[Affected, ...]
    recent: tuple[int, ...] = ()
    """Counts in each of the last spans, oldest first."""
    tries: int = 0
    seen_at: Millis = 0
    """When its newest file was read."""

    @property
    def count(self) -> int:
        """The number of its failures in all agents."""
        return sum(each.count for each in self.agents)

    @property
    def acts(self) -> bool:
        """Whether it stays until a person acts."""
        return self.kind not in IDLE_TEXT and (self.kind != "retry" or self.tries >= TRIES)

    @property
    def of_messages(self) -> bool:
        """Whether it concerns messages, which have pages."""
        return self.kind in LIKE

    @property
    def repairs(self) -> dict[str, Action]:
        """Actions that solve it, by name."""
        return {verb: ACTIONS[verb] for verb in REPAIRS.get(self.kind, ())}

    def given(self, reader: FileReader, affected: Affected) -> Given:
        """Return the objects of a repair in one file: all messages like the sample."""
        like = LIKE.get(self.kind)
        if like is not None:
            return Given(ids=like(reader, self.fingerprint))
        return Given(ids=(affected.sample,) if affected.sample else ())


def gather(found: Iterable[Snapshot], now: Millis) -> list[Problem]:
    """Return the problems of some files: those that need a person first, then by count."""
    groups: dict[str, Problem] = {}
    for one in (each for snapshot in found for each in _of(snapshot, now)):
        known = groups.get(one.fingerprint)
        groups[one.fingerprint] = one if known is None else _merged(known, one)
    return sorted(groups.values(), key=lambda each: (not each.acts, -each.count, each.error))


def _merged(one: Problem, other: Problem) -> Problem:
    firsts = [each.first_at for each in (one, other) if each.first_at is not None]
    lasts = [each.last_at for each in (one, other) if each.last_at is not None]
    newer = other if (other.last_at or 0) > (one.last_at or 0) else one
    return replace(
        newer,
        first_at=min(firsts, default=None),
        last_at=max(lasts, default=None),
        agents=(*one.agents, *other.agents),
        recent=_together(one, other),
        tries=max(one.tries, other.tries),
        seen_at=max(one.seen_at, other.seen_at),
    )


def _together(one: Problem, other: Problem) -> tuple[int, ...]:
    """Return the sums of two series, with the older one shifted to align."""
    if not one.recent or not other.recent:
        return one.recent or other.recent
    older, newer = sorted((one, other), key=lambda each: each.seen_at)
    behind = min(newer.seen_at // SPAN - older.seen_at // SPAN, len(older.recent))
    moved = (*older.recent[behind:], *(0,) * behind)
    return tuple(a + b for a, b in zip(moved, newer.recent, strict=True))


def _of(found: Snapshot, now: Millis) -> Iterator[Problem]:
    """Yield the problems of one file."""
    if found.problem is not None:
        yield _own(found, "unreadable", found.problem, found.taken_at)
        return
    if found.overview is not None:
        yield from _of_numbers(found, found.overview, now)
    for each in found.failures:
        affected = Affected(found.key, each.count, each.sample)
        yield Problem(
            each.fingerprint, each.kind, each.type, each.error, each.first_at, each.last_at,
            (affected,), each.recent, each.tries, found.taken_at,
        )  # fmt: skip


def _of_numbers(found: Snapshot, numbers: Overview, now: Millis) -> Iterator[Problem]:
    """Yield what keeps the agent from working, and that no process takes or delivers messages."""
    if (paused_at := numbers.file.paused_at) is not None:
        yield _own(found, "paused", "it handles and sends no message", paused_at)
    for each in causes(found.path):
        yield _own(found, each.reason, f"{each.text}: {each.cure}", found.taken_at)
    for word in found.idle(now):
        if word in IDLE_TEXT:
            yield _own(found, word, IDLE_TEXT[word], IDLE_SINCE[word](numbers) or found.taken_at)


def _own(found: Snapshot, kind: Any, error: str, since_at: Millis) -> Problem:
    """Return a problem of a whole file, not of a message."""
    mark = fingerprint(kind, "", error)
    return Problem(mark, kind, "", error, since_at, None, (Affected(found.key, 1, ""),))
