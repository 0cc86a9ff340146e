"""Reading without handlers and without leases: poll, tail, expire, status. Each session of a file has one cursor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from onceward.db.database import Database
from onceward.db.environment import disabled_by_environment
from onceward.db.transaction import StoreTransaction
from onceward.errors import InvalidArgument, UnknownRecipient
from onceward.hooks import Hooks
from onceward.model.clock import Millis
from onceward.model.events import Event, Expired, Polled, Processed
from onceward.model.names import DEFAULT_SESSION, agent_name, plain_text
from onceward.model.record import MessageRecord
from onceward.runtime.open_agents import OpenAgentFiles
from onceward.runtime.sender import Sender
from onceward.store import inbox, mailboxes, polling
from onceward.store.polling import Poll, ScanPosition

MOST: Final = 1 << 62
SLICE: Final = 500


class Polls:
    """What a postbox offers a program that has a loop of its own and wants each message at most once."""

    _db: Database
    _hooks: Hooks
    _files: OpenAgentFiles
    _sender: Sender

    def poll(
        self,
        agent: str | None = None,
        *,
        topics: str | Iterable[str] | None = None,
        session: str = DEFAULT_SESSION,
        limit: int | None = None,
        consume_skipped: bool = True,
    ) -> list[MessageRecord]:
        """
        Return what came to *agent* (us) in a session since its last poll; at most once: the cursor is committed first.

        The cursor passes what *topics* exclude, too, for good; with
        *consume_skipped* False that is left for another poll. Senders are
        told that what was passed was processed. While the kill-switch is on
        nothing is returned and nothing moves.

        Raises:
            TopicError: a topic breaks its rule, or is none of the session's; the cursor did not move.
            InvalidArgument: a limit breaks its rule.
            UnknownRecipient: the home has no such agent.

        """
        db = self._file(agent)
        wanted = None if topics is None else self._sender.topics.of(session).check_filter(topics)
        left = _limit(limit)
        plain_text("session", session)
        found: list[MessageRecord] = []
        reach, more = ScanPosition(), not disabled_by_environment()
        while more and left:
            asked = Poll(
                session=session, topics=wanted, consume_skipped=consume_skipped, limit=left
            )
            step = db.write(
                lambda tx, asked=asked, reach=reach: self._step(tx, db, asked, reach)  # type: ignore[misc]
            )
            found += [row.record() for row in step.rows]
            reach, more, left = step.reach, step.more, left - len(step.rows)
        return found

    def _step(
        self, tx: StoreTransaction, db: Database, asked: Poll, reach: ScanPosition
    ) -> polling.PollResult:
        step = polling.poll(tx, asked, reach)
        if step.cursor_to != step.cursor_from:
            tx.after_commit(lambda: db.notifier.notify("out"))
        if self._hooks:
            told = [
                event
                for event in _events(db.agent, tx.now, asked, step)
                if self._hooks.wanted(type(event))
            ]
            tx.after_commit(lambda: self._hooks.emit(told))
        return step

    def tail(
        self, limit: int = 10, *, session: str = DEFAULT_SESSION, include_expired: bool = False
    ) -> list[MessageRecord]:
        """Return the newest messages of a session, polled or not, the oldest of them first; moves nothing."""
        return polling.tail(
            self._db.read,
            session,
            _limit(limit),
            include_expired=include_expired,
            now=self._db.now(),
        )

    def expire(self, session: str | None = None) -> int:
        """End what has outlived its time to live, in one session or in all; return how many; nothing under the kill-switch."""
        total = 0
        while not disabled_by_environment() and not mailboxes.paused(self._db.read):
            ended = self._db.write(lambda tx: self._expire(tx, session))
            total += ended
            if not ended:
                break
        if self._hooks.wanted(Expired):
            self._hooks.emit(
                [Expired(agent=self._db.agent, at=self._db.now(), session=session, count=total)]
            )
        return total

    def _expire(self, tx: StoreTransaction, session: str | None) -> int:
        ended = inbox.expire(tx, SLICE, session)
        if ended:
            tx.after_commit(lambda: self._db.notifier.notify("out"))
        return ended + (mailboxes.expire(tx, SLICE) if session is None else 0)

    def status(self, session: str | None = None) -> dict[str, dict[str, Any]]:
        """Return by session: messages, how many expired, how many by topic, bytes, and how far it was polled; moves nothing."""
        return polling.status(self._db.read, session, now=self._db.now())

    def _file(self, agent: str | None) -> Database:
        found = self._db if agent is None else self._files.file(agent_name(agent))
        if found is None:
            msg = f"the home has no agent {agent!r}: create its file first, with onceward init {agent}"
            raise UnknownRecipient(msg)
        return found


def _limit(limit: int | None) -> int:
    if limit is None:
        return MOST
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        msg = f"limit {limit!r} must be a positive number of messages"
        raise InvalidArgument(msg)
    return limit


def _events(agent: str, at: Millis, asked: Poll, step: polling.PollResult) -> Iterator[Event]:
    for row in step.rows:
        yield Processed(agent=agent, at=at, message_id=row.id, peer=row.sender, outcome="processed")
    yield Polled(
        agent=agent,
        at=at,
        session=asked.session,
        topics=asked.topics or (),
        matched=len(step.rows),
        cursor_from=step.cursor_from,
        cursor_to=step.cursor_to,
    )
