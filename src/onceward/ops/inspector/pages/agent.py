"""The page of one agent: boxes by state, lanes, leases, peers, limits, runs and queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from onceward.file.read_only import FileReader
from onceward.message.clock import Millis
from onceward.ops.inspector.chart import Chart, chosen, numbers
from onceward.ops.inspector.pages.home import number
from onceward.ops.inspector.site import address, site_of
from onceward.ops.views import lists
from onceward.ops.views.asking import NEVER
from onceward.ops.views.groups import groups
from onceward.ops.views.handler_limits import handler_limits
from onceward.ops.views.overview import overview
from onceward.ops.views.pools import worst_members
from onceward.ops.views.rates import Rates
from onceward.ops.views.rates import rates as rates_of
from onceward.ops.views.why import agent_whys, lane_why

RANGES: Final = {"hour": (60_000, 60), "day": (1_800_000, 48), "week": (10_800_000, 56)}
ROWS: Final = 50
"""Maximum rows of each list; a longer list shows that there are more."""


def agent(request: Request) -> Response:
    """Answer with the page of one agent."""
    site, key = site_of(request), request.path_params["key"]
    with site.reading(request) as reader:
        facts = _facts(reader, request.query_params, site.now())
        range_, found = _rates(request, reader, site.now())
    return site.html(
        request,
        "agent.html",
        **facts,
        chart=Chart(address(key, "rates.json", range=range_), range_, tuple(RANGES), found),
        owners=_owners(facts),
        most=ROWS,
        file=site.path(key),
        snapshot=site.snapshot(key),
    )


def rates(request: Request) -> Response:
    """Answer with the rates of one agent, for the chart."""
    site = site_of(request)
    with site.reading(request) as reader:
        return JSONResponse(numbers(_rates(request, reader, site.now())[1]))


def _rates(request: Request, reader: FileReader, now: Millis) -> tuple[str, Rates]:
    """Return the range in an address, and the agent's rates in it."""
    range_ = chosen(request.query_params.get("range", ""), RANGES)
    span, count = RANGES[range_]
    return range_, rates_of(reader, now, span=span, count=count)


def _facts(reader: FileReader, after: Mapping[str, str], now: Millis) -> dict[str, Any]:
    """Return the content of the page; its lists continue after the names in the address."""
    most, run = ROWS + 1, number(after.get("run", "")) or NEVER
    numbers = overview(reader)
    lanes = (*lists.held_lanes(reader, most), *lists.ready_lanes(reader, most))
    return {
        "overview": numbers,
        "whys": [each for each in agent_whys(reader, now, numbers) if each.level != "ok"][:ROWS],
        "oldest_by_peer": dict(numbers.outbox),
        "lanes": lanes,
        "lane_whys": [lane_why(reader, each, now).text(now) for each in lanes[:ROWS]],
        "members": worst_members(reader, most),
        "peers": lists.peers(reader, after=after.get("peer", ""), limit=most),
        "runs": lists.runs(reader, before=run, limit=most),
        "queues": lists.session_queues(reader, after=after.get("queue", ""), limit=most),
        "schedules": lists.schedules(reader, after=after.get("schedule", ""), limit=most),
        "readers": lists.mailbox_readers(reader, most),
        "limits": lists.limits(reader, most),
        "handler_limits": handler_limits(reader),
        "groups": groups(reader, most),
    }


def _owners(facts: dict[str, Any]) -> dict[str, int]:
    """Return how many leases each worker and dispatcher holds, by its name."""
    lanes = [each.owner for each in facts["lanes"] if each.state == "leased"]
    runs = [each.owner for each in facts["runs"] if each.state == "open"]
    owners = [*lanes, *runs, *(each.owner for each in facts["peers"])]
    return dict(Counter(owner for owner in owners if owner))
