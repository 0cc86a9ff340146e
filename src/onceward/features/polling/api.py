"""Look into the sessions of a file, and poll them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from onceward.core.contract import Opening
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.errors import UnknownRecipient
from onceward.features.polling import polling
from onceward.features.polling.polling import Poll, PollResult, ScanPosition
from onceward.file.database import Database
from onceward.file.directory import OpenAgentFiles
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import checks_arguments
from onceward.message.clock import Millis
from onceward.message.events import Event, Polled, Processed
from onceward.message.frame import session_and_type
from onceward.message.names import DEFAULT_SESSION, agent_name, plain_text
from onceward.message.record import MessageRecord


@checks_arguments()
class Sessions:
    """The sessions of an agent, and their messages; ``box.runs`` has their runs."""

    def __init__(self, deps: RuntimeDeps, files: OpenAgentFiles) -> None:
        self._db, self._hooks = deps.db, deps.hooks
        self._topics, self._files = deps.outbox.composer.topics, files

    def stats(self, session: str | None = None) -> dict[str, dict[str, Any]]:
        """
        Return by session: messages, expired ones, counts by topic, bytes, and the poll cursor.

        The cursor does not move.
        """
        return polling.stats(self._db.read, session, now=self._db.now())

    def tail(
        self,
        session: str = DEFAULT_SESSION,
        limit: int = 10,
        *,
        include_expired: bool = False,
    ) -> list[MessageRecord]:
        """
        Return the newest received messages of a session, polled or not, in the order of arrival.

        The cursor does not move.
        """
        return polling.tail(
            self._db.read,
            session,
            polling.limit_of(limit),
            include_expired=include_expired,
            now=self._db.now(),
        )

    def poll(
        self,
        session: str = DEFAULT_SESSION,
        *,
        agent: str | None = None,
        topics: str | Iterable[str] | None = None,
        limit: int | None = None,
        consume_skipped: bool = True,
    ) -> list[MessageRecord]:
        """
        Return the messages that *agent* (default: ours) received in a session since its last poll.

        Each is returned at most once: the cursor is committed first. It also moves past messages
        that *topics* exclude; with *consume_skipped* False those are left for another poll. Senders
        learn that messages before the cursor were processed. While the file is paused nothing is
        returned and nothing moves.

        Raises:
            TopicError: a topic breaks its rule, or is not one of the session's;
                the cursor did not move.
            InvalidArgument: a limit breaks its rule.
            UnknownRecipient: the home has no such agent.

        """
        db = self._file(agent)
        wanted = None if topics is None else self._topics.of(session).check_filter(topics)
        left = polling.limit_of(limit)
        plain_text("session", session)
        found: list[MessageRecord] = []
        reach, more = ScanPosition(), not disabled_by_environment()
        while more and left:
            asked = Poll(
                session=session, topics=wanted, consume_skipped=consume_skipped, limit=left
            )
            step = db.write(partial(self._step, db=db, asked=asked, reach=reach))
            found += [row.record() for row in step.rows]
            reach, more, left = step.reach, step.more, left - len(step.rows)
        return found

    def _step(
        self, tx: StoreTransaction, *, db: Database, asked: Poll, reach: ScanPosition
    ) -> PollResult:
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

    def _file(self, agent: str | None) -> Database:
        found = self._db if agent is None else self._files.file(agent_name(agent))
        if found is None:
            msg = f"the home has no agent {agent!r}: create its file first: onceward init {agent}"
            raise UnknownRecipient(msg)
        return found


def _events(agent: str, at: Millis, asked: Poll, step: PollResult) -> Iterator[Event]:
    for row in step.rows:
        session, kind = session_and_type(row.frame)
        yield Processed(
            agent=agent,
            at=at,
            message_id=row.id,
            peer=row.sender,
            session=session,
            type=kind,
            outcome="processed",
        )
    yield Polled(
        agent=agent,
        at=at,
        session=asked.session,
        topics=asked.topics or (),
        matched=len(step.rows),
        cursor_from=step.cursor_from,
        cursor_to=step.cursor_to,
    )


def sessions_of(opening: Opening) -> Sessions:
    """Return the sessions of an opening."""
    return Sessions(opening.deps, opening.files)
