"""Show the first page: all agents with their backlog, problems and rates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from onceward.message.clock import Millis
from onceward.ops.inspector.chart import Chart, chosen, numbers, together
from onceward.ops.inspector.grouping import gather
from onceward.ops.inspector.refresher import RANGES, Snapshot
from onceward.ops.inspector.site import site_of, with_query
from onceward.ops.inspector.visit import local
from onceward.ops.views.rates import Rates
from onceward.ops.views.vocabulary import SEVERITY, UNREADABLE, WELL

ROWS: Final = 100
DIGITS: Final = 9
CARDS: Final = 6
"""Maximum problems on the first page."""


def _rank(each: Snapshot, now: Millis) -> tuple[int, int, int]:
    """Return the sort key of an agent: worst problem, number of problems, backlog."""
    words, numbers = trouble(each, now), each.overview
    waits = numbers.outgoing + numbers.incoming if numbers else 0
    return (SEVERITY.index(words[0] if words else WELL), -len(words), -waits)


SORTS: Final[dict[str, Callable[[Snapshot, Millis], Any]]] = {
    "trouble": _rank,
    "agent": lambda each, _: each.agent.lower(),
    "out": lambda each, _: -(each.overview.outgoing if each.overview else -1),
    "in": lambda each, _: -(each.overview.incoming if each.overview else -1),
    "oldest": lambda each, _: (each.overview and each.overview.oldest_at) or 1 << 62,
    "failing": lambda each, _: -(each.overview.lanes.failing if each.overview else -1),
    "dead": lambda each, _: -(each.overview.dead_letters if each.overview else -1),
    "rate": lambda each, _: -(each.rates_of["hour"].total if each.rates_of else -1),
    "wal": lambda each, _: -each.wal_bytes,
}
"""Sort keys by column; the largest value comes first."""


def trouble(each: Snapshot, now: Millis) -> tuple[str, ...]:
    """Return an agent's problems as words, those that ``onceward top`` shows, the worst first."""
    if each.overview is None:
        return (UNREADABLE,)
    return tuple(sorted((*each.overview.trouble, *each.idle(now)), key=SEVERITY.index))


def home(request: Request) -> Response:
    """Answer with the page of all agents."""
    site = site_of(request)
    asked, now = request.query_params, site.now()
    found = [*site.refresher.snapshots.values()]
    sort = asked.get("sort", "")
    sort = sort if sort in SORTS else "trouble"
    silences = site.silences.now(now)
    every = [each for each in gather(found, now) if each.acts]
    problems = [each for each in every if each.fingerprint not in silences]
    chosen = sorted(
        (each for each in found if _fits(each, asked.get("q", ""), asked.get("show", ""), now)),
        key=lambda each: (SORTS[sort](each, now), each.agent),
    )
    first = number(asked.get("first", ""))
    range_, summed = _rates(request)
    return site.html(
        request,
        "home.html",
        totals=_totals(found),
        problems=problems[:CARDS],
        found=len(problems),
        silent=len(every) - len(problems),
        oldest_at=min((each.first_at for each in problems if each.first_at), default=None),
        rows=chosen[first : first + ROWS],
        matching=len(chosen),
        first=first,
        size=ROWS,
        sort=sort,
        q=asked.get("q", ""),
        show=asked.get("show", ""),
        trouble=partial(trouble, now=now),
        looked_at=site.refresher.looked_at,
        files=len(site.targets.files()),
        chart=Chart(with_query(local("/rates.json"), range=range_), range_, tuple(RANGES), summed),
    )


def _fits(each: Snapshot, text: str, show: str, now: Millis) -> bool:
    return text.lower() in each.agent.lower() and (show != "trouble" or bool(trouble(each, now)))


def number(text: str) -> int:
    """Return a number in an address; 0 if there is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else 0


def _totals(found: list[Snapshot]) -> dict[str, Any]:
    """Return the sums over all agents."""
    known = [each.overview for each in found if each.overview]
    return {
        "agents": len(found),
        "outgoing": sum(each.outgoing for each in known),
        "incoming": sum(each.incoming for each in known),
        "oldest_at": min((each.oldest_at for each in known if each.oldest_at), default=None),
        "failing": sum(each.lanes.failing for each in known),
        "breakers": sum(each.breakers_open for each in known),
        "dead": sum(each.dead_letters for each in known),
        "problems": len(found) - len(known),
    }


def _rates(request: Request) -> tuple[str, Rates | None]:
    """Return the range in an address, and the rates of all agents in it."""
    range_ = chosen(request.query_params.get("range", ""), RANGES)
    found = site_of(request).refresher.snapshots.values()
    return range_, together(each.rates_of[range_] for each in found if each.rates_of)


def rates(request: Request) -> Response:
    """Answer with the rates of all agents together, for the chart."""
    return JSONResponse(numbers(_rates(request)[1]))
