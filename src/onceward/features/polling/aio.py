"""The async version of sessions."""

from __future__ import annotations

from onceward.core.run.async_face import AsyncFace, awaitable
from onceward.features.polling.api import Sessions


class AsyncSessions(AsyncFace[Sessions]):
    """The sessions of a file; see ``Sessions``."""

    stats = awaitable(Sessions.stats)
    poll = awaitable(Sessions.poll)
    tail = awaitable(Sessions.tail)
