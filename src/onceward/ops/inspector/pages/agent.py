"""The page of one agent: boxes by state, lanes, leases, peers, limits, runs and queues."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from onceward.ops.inspector.pages.home import chart, number
from onceward.ops.inspector.queries.agent import ROWS, After, agent_facts, minutes
from onceward.ops.inspector.reading import NEVER
from onceward.ops.inspector.site import site_of


def agent(request: Request) -> Response:
    """Answer with the page of one agent."""
    site = site_of(request)
    with site.reading(request) as (key, reader):
        asked = request.query_params
        run = number(asked.get("run", "")) or NEVER
        names = {name: asked.get(name, "") for name in ("peer", "queue", "schedule")}
        after = After(run=run, **names)
        facts = agent_facts(reader, site.now(), after)
    return site.html(
        request,
        "agent.html",
        key=key,
        keys=(key,),
        facts=facts,
        most=ROWS,
        file=site.path(key),
        snapshot=site.snapshot(key),
    )


def rates(request: Request) -> Response:
    """Answer with the rates of one agent, for the chart."""
    site = site_of(request)
    with site.reading(request) as (_, reader):
        return JSONResponse(chart(minutes(reader, site.now())))
