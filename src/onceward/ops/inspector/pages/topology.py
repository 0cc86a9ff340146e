"""Show agents and the messages between them, as a drawing and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onceward.ops.inspector.pages.home import trouble
from onceward.ops.inspector.refresher import Snapshot
from onceward.ops.inspector.site import site_of
from onceward.ops.inspector.topology import MOST, Flow, Flows, drawing, merged
from onceward.ops.views.vocabulary import WELL

ROWS: Final = 200
"""Maximum rows of the table."""
NAMES: Final = 200
"""Maximum agents that the page suggests."""


def topology(request: Request) -> Response:
    """Answer with the page of all agents, or of one and its neighbours."""
    site = site_of(request)
    now, agent = site.now(), request.query_params.get("agent", "")
    snapshots = {each.agent: each for each in site.refresher.snapshots.values()}
    flows = gather(snapshots.values())
    if agent:
        flows = around(flows, agent)
    order = ("act", "wait", "ok")
    rows = sorted(flows.values(), key=lambda each: (order.index(each.level(now)), -each.rate))
    states = {name: next(iter(trouble(each, now)), WELL) for name, each in snapshots.items()}
    return site.html(
        request,
        "topology.html",
        agent=agent,
        names=sorted(snapshots)[:NAMES],
        drawn=drawing(flows, now),
        rows=rows[:ROWS],
        found=len(rows),
        agents=len({name for key in flows for name in key}),
        most=MOST,
        states=states,
    )


def gather(found: Iterable[Snapshot]) -> Flows:
    """Return the flows between agents from their files, by sender and recipient."""
    flows: dict[tuple[str, str], Flow] = {}
    for each in (flow for snapshot in found for flow in _of(snapshot)):
        key = (each.sender, each.recipient)
        flows[key] = merged(flows.get(key), each)
    return flows


def _of(found: Snapshot) -> Iterator[Flow]:
    """Yield the flows in one file."""
    agent = found.agent
    for link in found.links:
        if link.sent:
            yield Flow(agent, link.peer, rate=link.sent)
        if link.received:
            yield Flow(link.peer, agent, rate=link.received)
    for peer, since_at in found.overview.outbox if found.overview else ():
        yield Flow(agent, peer, waits_since=since_at)
    for failure in found.failures:
        if failure.kind == "peer":
            yield Flow(agent, failure.sample, error=failure.error)


def around(flows: Flows, agent: str) -> Flows:
    """Return the flows of one agent, and those between the agents that it talks with."""
    near = {name for key in flows if agent in key for name in key}
    return {key: flow for key, flow in flows.items() if near.issuperset(key)}
