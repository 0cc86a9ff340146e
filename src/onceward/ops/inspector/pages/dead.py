"""Show dead letters of all agents, grouped by agent, reason and type."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import InvalidArgument
from onceward.ops.inspector.refresher import Snapshot
from onceward.ops.inspector.site import site_of
from onceward.ops.views.filters import Filter, parse, told
from onceward.ops.views.overview import DeadGroup

NAMES: Final = ("reason", "type")
ROWS: Final = 200
TYPES: Final = 200
"""Types that the page suggests."""


def dead(request: Request) -> Response:
    """Answer with the page of dead letters."""
    site = site_of(request)
    query, wrong = request.query_params.get("q", "").strip(), None
    try:
        wanted = parse(query, site.now(), NAMES)
    except InvalidArgument as error:
        wanted, wrong = Filter(), str(error)
    letters: list[tuple[Snapshot, DeadGroup]] = [
        (each, group) for each in site.refresher.snapshots.values() for group in each.dead
    ]
    types = {group.type for _, group in letters}
    found = [
        (each, group)
        for each, group in letters
        if fits(group.reason, wanted.reason) and fits(group.type, wanted.type)
    ]
    found.sort(key=lambda pair: (-pair[1].count, -pair[1].newest_at, pair[0].key))
    return site.html(
        request,
        "dead.html",
        groups=found[:ROWS],
        found=len(found),
        letters=sum(group.count for _, group in found),
        words=[
            *(told(reason=each) for each in sorted({group.reason for _, group in letters})),
            *(told(type=each) for each in sorted(types)[:TYPES]),
        ],
        q=query,
        wrong=wrong,
        example="reason:rejected type:task.*",
    )


def fits(name: str, wanted: str | None) -> bool:
    """Return whether a name matches a pattern, in which ``*`` matches any characters."""
    parts = map(re.escape, (wanted or "*").split("*"))
    return re.fullmatch(".*".join(parts), name, re.DOTALL) is not None
