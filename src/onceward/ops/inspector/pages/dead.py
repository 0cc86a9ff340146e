"""Dead letters of all agents, grouped by agent, reason and type."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onceward.ops.inspector.refresher import Snapshot
from onceward.ops.inspector.site import site_of
from onceward.ops.views.overview import DeadGroup

ROWS: Final = 200
TYPES: Final = 200
"""Types that the page suggests."""


def dead(request: Request) -> Response:
    """Answer with the page of dead letters."""
    site = site_of(request)
    asked = request.query_params
    reason, kind = asked.get("reason", ""), asked.get("type", "")
    letters: list[tuple[Snapshot, DeadGroup]] = [
        (each, group) for each in site.refresher.snapshots.values() for group in each.dead
    ]
    types = {group.type for _, group in letters}
    found = [
        (each, group)
        for each, group in letters
        if reason in {"", group.reason} and kind in {"", group.type}
    ]
    found.sort(key=lambda pair: (-pair[1].count, -pair[1].newest_at, pair[0].key))
    return site.html(
        request,
        "dead.html",
        groups=found[:ROWS],
        found=len(found),
        letters=sum(group.count for _, group in found),
        reasons=sorted({group.reason for _, group in found} | ({reason} - {""})),
        reason=reason,
        types=sorted(types)[:TYPES],
        type=kind,
    )
