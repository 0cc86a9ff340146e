"""Show schedules of all agents, and one schedule with its dates."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import OncewardError
from onceward.message.clock import Millis
from onceward.message.dates import Schedule
from onceward.ops.inspector.refresher import Snapshot
from onceward.ops.inspector.site import NOT_FOUND, site_of
from onceward.ops.views import lists
from onceward.ops.views.messages import StoredMessage
from onceward.ops.views.schedule import sent_by

ROWS: Final = 200
"""Maximum schedules on the page."""
DATES: Final = 10
PAST: Final = 20
"""Maximum messages on the page of a schedule."""
ORDER: Final = ("cannot send", "late", "on time", "withdrawn", "paused")
"""States, the ones that need a person first."""


def schedules(request: Request) -> Response:
    """Answer with the page of all schedules."""
    site, now = site_of(request), site_of(request).now()
    asked = request.query_params
    text, show = asked.get("q", "").lower(), asked.get("show", "")
    found = [
        (each, schedule)
        for each in site.refresher.snapshots.values()
        for schedule in each.schedules
        if text in f"{each.agent} {schedule.name}".lower() and (show in {"", schedule.state(now)})
    ]
    found.sort(key=lambda pair: _place(pair, now))
    return site.html(
        request,
        "schedules.html",
        rows=found[:ROWS],
        found=len(found),
        states=ORDER,
        q=asked.get("q", ""),
        show=show,
        dates=dates,
    )


def _place(pair: tuple[Snapshot, Schedule], now: Millis) -> tuple[int, Millis, str]:
    found, schedule = pair
    return (ORDER.index(schedule.state(now)), schedule.next_at, found.agent)


def dates(schedule: Schedule, count: int) -> tuple[Millis, ...]:
    """Return the next dates; only the stored one if the others cannot be computed here."""
    try:
        return schedule.dates(count)
    except OncewardError:  # an extra is missing, or the expression is another version's
        return (schedule.next_at,)


def schedule(request: Request) -> Response:
    """Answer with the page of one schedule: its state, next dates and sent messages."""
    site, name = site_of(request), str(request.path_params["name"])
    with site.reading(request) as reader:
        found = lists.schedule(reader, name)
        if found is None:
            raise HTTPException(NOT_FOUND, f"{request.path_params['key']} has no schedule {name}")
        past: tuple[StoredMessage, ...] = sent_by(reader, found, PAST)
    now = site.now()
    due = dates(found, DATES) if found.paused_at is None else ()
    return site.html(
        request,
        "schedule.html",
        one=found,
        missed=[at for at in due if found.is_late(now) and at <= now],
        coming=[at for at in due if at > now],
        past=past,
    )
