"""Which dead letters a command means: by id, or in bulk; and the question before bulk work is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from onceward.cli import queries
from onceward.cli.exit_codes import DONE, PARTLY, NothingThere, Usage, code_of, problem
from onceward.cli.output import document, note, show
from onceward.cli.readonly import Look, whole_id
from onceward.cli.target import Conversation, Quiet
from onceward.errors import OncewardError
from onceward.model.clock import Millis, SystemClock
from onceward.model.topics import check_pattern, matches

Origin = Literal["outbox", "inbox", "queue"]
EVERYTHING: Final = -1
"""SQLite's word for no limit."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Choice:
    """Dead letters in bulk."""

    all: Annotated[bool, Quiet] = False
    """All dead letters (of the session, if one is given)."""
    reason: str | None = None
    """Only those that died for this reason."""
    peer: str | None = None
    """Only those to or from this agent."""
    type: str | None = None
    """Only those of this message type."""
    topic: str | None = None
    """Only those of this topic, which may be a pattern such as build.#."""
    origin: Origin | None = None
    """Only those of this origin: outbox (we sent it), inbox (we received it), queue (it waited for a run)."""
    dry_run: Annotated[bool, Quiet] = False
    """Say which it would be, and change nothing."""
    yes: Annotated[bool, Quiet] = False
    """Do not ask before bulk work."""

    @property
    def in_bulk(self) -> bool:
        """Whether anything but ids says what is meant."""
        return self.all or any(
            value is not None
            for value in (self.reason, self.peer, self.type, self.topic, self.origin)
        )

    def which(self, session: str | None, older_than: float | None = None) -> dict[str, Any]:
        """Return the same as the keywords of a postbox's dead letters."""
        named: dict[str, Any] = {
            "reason": self.reason,
            "peer": self.peer,
            "topic": self.topic,
            "origin": self.origin,
        }
        named |= {"type": self.type, "session": session, "older_than": older_than}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of each chosen dead letter."""

    done: list[str] = field(default_factory=list)
    failed: list[tuple[str, OncewardError]] = field(default_factory=list)

    @property
    def code(self) -> int:
        """Done, partly done, or what the first failure says where nothing was done."""
        if not self.failed:
            return DONE
        return PARTLY if self.done else code_of(self.failed[0][1])

    def attempt(self, message_id: str, work: Callable[[], str]) -> None:
        """Do one piece of work and remember how it ended."""
        try:
            self.done.append(work())
        except OncewardError as error:
            self.failed.append((message_id, error))

    def tell(self, choice: Choice, where: Conversation) -> int:
        """Print the ids that were dealt with, say what went wrong, and return the exit code."""
        if where.json:
            failures: list[dict[str, Any]] = [
                {"id": message_id} | problem(error) for message_id, error in self.failed
            ]
            document({"done": self.done, "failed": failures, "dry_run": choice.dry_run})
        else:
            show([{"id": message_id} for message_id in self.done], ("id",), "lines")
            for message_id, error in self.failed:
                note(f"{message_id}: {error}")
        return self.code


def by_id(found: Look, given: Sequence[str]) -> tuple[list[str], Outcome]:
    """Return the whole ids that are meant, a dash standing for those on stdin, and what could not be found."""
    wanted = [
        line for part in given for line in (sys.stdin.read().split() if part == "-" else [part])
    ]
    outcome = Outcome()
    for prefix in wanted:
        outcome.attempt(prefix, lambda prefix=prefix: whole_id(found, queries.DEAD_IDS, prefix))  # type: ignore[misc]
    return list(dict.fromkeys(outcome.done)), Outcome(failed=outcome.failed)


def in_bulk(
    found: Look, choice: Choice, session: str | None, older_than: float | None = None
) -> list[str]:
    """
    Return the ids of the dead letters that match.

    Raises:
        NothingThere: none does.

    """
    named = {
        "reason": choice.reason,
        "peer": choice.peer,
        "origin": choice.origin,
        "type": choice.type,
        "session": session,
    }
    rows = found.ask(queries.DEAD, **named, before=died_before(older_than), limit=EVERYTHING)
    ids = [row["id"] for row in rows if of_topic(row["topic"], choice.topic)]
    if not ids:
        msg = "no dead letter matches"
        raise NothingThere(msg)
    return ids


def died_before(older_than: float | None) -> Millis | None:
    """Return the moment before which letters died that are older than a span."""
    return None if older_than is None else SystemClock().now() - round(older_than * 1000)


def of_topic(topic: str | None, pattern: str | None) -> bool:
    """Return whether a letter's topic falls under a pattern; without a pattern it does."""
    return pattern is None or (topic is not None and matches(check_pattern(pattern), topic))


def confirm(verb: str, ids: Sequence[str], choice: Choice) -> None:
    """
    Ask before bulk work, unless it was confirmed already.

    Raises:
        Usage: nobody is there to ask.
        NothingThere: the answer was no.

    """
    if choice.yes or choice.dry_run:
        return
    if not sys.stdin.isatty():
        msg = f"this would {verb} {len(ids)} dead letters: say --yes, or --dry-run to see them"
        raise Usage(msg)
    sys.stderr.write(f"{verb} {len(ids)} dead letters? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        msg = "nothing was changed"
        raise NothingThere(msg)
