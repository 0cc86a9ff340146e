"""Show the timeline of one session of an agent."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onceward.ops.inspector.site import site_of
from onceward.ops.views import lists
from onceward.ops.views.session import session_events
from onceward.ops.views.waiting import questions
from onceward.ops.views.why import session_why

EVENTS: Final = 100
"""Maximum messages of each box, and maximum runs, on the page."""
QUEUED: Final = 50


def session(request: Request) -> Response:
    """Answer with the page of a session: its queue and its events."""
    site = site_of(request)
    name = str(request.path_params["session"])
    with site.reading(request) as reader:
        return site.html(
            request,
            "session.html",
            session=name,
            queue=lists.session_queue(reader, name),
            why=session_why(reader, name),
            queued=lists.queued(reader, name, QUEUED + 1),
            most=QUEUED,
            events=session_events(reader, name, EVENTS),
            questions=questions(reader, name, QUEUED),
        )
