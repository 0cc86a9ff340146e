"""Look into the sessions of a file, set their queues and abort their runs."""

from __future__ import annotations

from typing import Any

from onceward.features.polling import polling
from onceward.features.runs.api import SessionQueues
from onceward.message.names import DEFAULT_SESSION
from onceward.message.record import MessageRecord


class Sessions(SessionQueues):
    """The sessions of an agent, their messages, queues and runs."""

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
