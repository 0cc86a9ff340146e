"""Choose dead letters by id or in bulk, and ask before bulk work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from cyclopts import Parameter

from onceward.errors import OncewardError
from onceward.file.read_only import FileReader
from onceward.message.clock import SystemClock
from onceward.message.topics import check_pattern, matches
from onceward.message.vocabulary import DeadLetterOrigin
from onceward.ops.cli.exit_codes import DONE, PARTLY, NothingThere, code_of, problem
from onceward.ops.cli.options import Quiet
from onceward.ops.cli.output import document, note, show
from onceward.ops.cli.readonly import whole_id
from onceward.ops.cli.stdin import read_stdin
from onceward.ops.cli.target import Conversation
from onceward.ops.views.listing import dead_letters
from onceward.ops.views.messages import StoredMessage, dead_ids

ALL: Final = -1
"""The limit that means no limit."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Filter:
    """Filters of dead letters; every given filter must match."""

    reason: str | None = None
    """Only this reason: attempts_spent, expired, rejected, unhandled, ..."""
    peer: str | None = None
    """Only dead letters to or from this agent."""
    type: str | None = None
    """Only dead letters of this message type."""
    topic: str | None = None
    """Only dead letters of this topic, which may be a pattern such as build.#."""
    origin: DeadLetterOrigin | None = None
    """Only this origin: outbox (sent), inbox (received), queue (it waited for a run)."""

    def filters(self) -> dict[str, str | None]:
        """Return the filters as the keywords of the library."""
        names = ("reason", "peer", "type", "topic", "origin")
        return {name: getattr(self, name) for name in names}

    def rows(
        self, found: FileReader, session: str | None, older_than: float | None, limit: int = ALL
    ) -> list[StoredMessage]:
        """Return at most *limit* dead letters that match, newest first; all if it is negative."""
        now = SystemClock().now()
        before = None if older_than is None else now - round(older_than * 1000)
        named = self.filters() | {"session": session}
        topic = named.pop("topic")
        # The file does not know patterns of topics: all are read, and cut here.
        rows = dead_letters(found, **named, before=before, limit=ALL if topic else limit)
        fitting = [row for row in rows if _of_topic(row.topic, topic)]
        return fitting if limit < 0 else fitting[:limit]


def _of_topic(topic: str | None, pattern: str | None) -> bool:
    return pattern is None or (topic is not None and matches(check_pattern(pattern), topic))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Choice(Filter):
    """Dead letters in bulk."""

    all: Annotated[bool, Quiet] = False
    """All dead letters (of the session, if one is given)."""
    dry_run: Annotated[bool, Quiet] = False
    """Print what would happen, and change nothing."""
    yes: Annotated[bool, Quiet] = False
    """Do not ask before bulk work."""

    @property
    def in_bulk(self) -> bool:
        """Whether a filter or --all chooses, not ids."""
        return self.all or any(value is not None for value in self.filters().values())

    def which(self, session: str | None, older_than: float | None = None) -> dict[str, Any]:
        """Return the choice as the keywords of a postbox's dead letters."""
        named = self.filters() | {"session": session, "older_than": older_than}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for each chosen dead letter."""

    done: list[str] = field(default_factory=list)
    failed: list[tuple[str, OncewardError]] = field(default_factory=list)

    @property
    def code(self) -> int:
        """Done, partly done, or the code of the first failure if nothing was done."""
        if not self.failed:
            return DONE
        return PARTLY if self.done else code_of(self.failed[0][1])

    def attempt(self, message_id: str, work: Callable[[str], str]) -> None:
        """Do one piece of work and record its result."""
        try:
            self.done.append(work(message_id))
        except OncewardError as error:
            self.failed.append((message_id, error))

    def tell(self, choice: Choice, where: Conversation) -> int:
        """Print the ids that were processed and the failures, and return the exit code."""
        if where.json:
            failures: list[dict[str, Any]] = [
                {"id": message_id} | problem(error) for message_id, error in self.failed
            ]
            document({"done": self.done, "failed": failures, "dry_run": choice.dry_run})
            return self.code
        show([{"id": message_id} for message_id in self.done], ("id",), "lines")
        for message_id, error in self.failed:
            note(f"{message_id}: {error}")
        return self.code


def by_id(found: FileReader, given: Sequence[str]) -> tuple[list[str], Outcome]:
    """Return the whole ids of the given ones (a dash: those on stdin), and those not found."""
    outcome = Outcome()
    for part in given:
        for prefix in read_stdin().split() if part == "-" else [part]:
            outcome.attempt(prefix, lambda each: whole_id(found, dead_ids, each))
    return list(dict.fromkeys(outcome.done)), Outcome(failed=outcome.failed)


def in_bulk(
    found: FileReader, choice: Choice, session: str | None, older_than: float | None = None
) -> list[str]:
    """Return the ids of the dead letters that match, oldest first; raise NothingThere if none."""
    ids = [row.id for row in reversed(choice.rows(found, session, older_than))]
    if not ids:
        raise NothingThere("no dead letter matches")
    return ids
