"""Create the web application of the inspector."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from onceward.errors import InvalidArgument, OncewardError, StoreUnusable
from onceward.hooks import AuditLog
from onceward.message.clock import Clock
from onceward.message.hosts import LOOPBACK
from onceward.message.redaction import Redaction
from onceward.ops.inspector.guard import PageGuard
from onceward.ops.inspector.pages import (
    act,
    agent,
    channels,
    conversation,
    dead,
    groups,
    home,
    live,
    message,
    messages,
    problems,
    report,
    schedules,
    search,
    session,
    topology,
)
from onceward.ops.inspector.refresher import Refresher
from onceward.ops.inspector.site import (
    HERE,
    TRACE_ID,
    Site,
    site_of,
)
from onceward.ops.inspector.targets import Targets
from onceward.ops.observe.snapshots import FileSnapshot

Endpoint = Callable[[Request], Awaitable[Response]]


def app(
    targets: Iterable[str | os.PathLike[str]],
    *,
    write: bool = False,
    token: str | None = None,
    redact: Iterable[str] = (),
    hosts: Iterable[str] = (),
    audit: str | os.PathLike[str] | None = None,
    report_at: str | os.PathLike[str] | None = None,
    trace_url: str | None = None,
    metrics: bool = False,
    clock: Clock | None = None,
) -> Starlette:
    """
    Return the inspector of agents' files as an ASGI application.

    *targets* are homes and files. Nothing is changed unless *write* is true; then each
    action is written to the file *audit*. With a *token* each reader must give it once,
    as ``?token=`` or as a bearer. It answers to loopback names and to *hosts*. *redact*
    are regular expressions of what is hidden; *report_at* is where a fleet's report is;
    *trace_url* is the address of a trace, with ``{trace_id}`` in it. With *metrics*, which needs
    their extra, ``/metrics`` answers from the snapshots of the pages.

    Raises:
        InvalidArgument: no target, actions without an audit file, or an invalid pattern.

    """
    if write and audit is None:
        raise InvalidArgument("write=True needs audit=FILE: each action is written there")
    made = made_of(
        targets,
        audit=audit if write else None,
        redact=redact,
        report_at=report_at,
        trace_url=trace_url,
        metrics=metrics,
        clock=clock,
    )
    made.add_middleware(PageGuard, hosts={*LOOPBACK, *hosts}, token=token)
    return made


def made_of(
    targets: Iterable[str | os.PathLike[str]],
    *,
    audit: str | os.PathLike[str] | None = None,
    redact: Iterable[str] = (),
    report_at: str | os.PathLike[str] | None = None,
    trace_url: str | None = None,
    secret: str | None = None,
    metrics: bool = False,
    clock: Clock | None = None,
    mounted: bool = False,
) -> Starlette:
    """Return the application without a guard; see ``app`` and ``inspector``."""
    places = [Path(place) for place in targets]
    if not places:
        raise InvalidArgument("which files? Name a home or agents' files")
    if audit is not None and not isinstance(audit, str | os.PathLike):
        raise InvalidArgument(
            f"audit={audit!r} must be the path of the file for the log of actions"
        )
    found = Targets(places)
    site = Site(
        found,
        Refresher(found, clock=clock),
        redaction=Redaction(redact),
        audit=None if audit is None else AuditLog(audit),
        report=None if report_at is None else Path(report_at),
        trace_url=_trace_url(trace_url),
        secret=secret,
    )
    made = Starlette(
        routes=_routes(_metrics(site) if metrics else None),
        lifespan=partial(_running, site),
        exception_handlers={HTTPException: _refused, OncewardError: _failed},
    )
    made.state.site = site
    made.state.streams = live.Streams(live.MOUNTED if mounted else None)
    return made


def _trace_url(given: str | None) -> str | None:
    """Return the address of traces; raise if it is invalid or has no placeholder for the id."""
    if given is not None and (
        not given.startswith(("http://", "https://")) or TRACE_ID not in given
    ):
        raise InvalidArgument(f"trace_url must be http(s)://… with {TRACE_ID} in it, not {given!r}")
    return given


def _routes(metrics: Endpoint | None) -> list[BaseRoute]:
    one = "/agents/{key}"
    more = [] if metrics is None else [Route("/metrics", metrics)]
    return [
        *more,
        Route("/", home.home),
        Route("/rates.json", home.rates),
        Route(one, agent.agent),
        Route(f"{one}/rates.json", agent.rates),
        Route(f"{one}/messages", messages.messages),
        Route(f"{one}/messages/{{id:path}}", message.journey_page),
        Route(f"{one}/frames/{{box}}/{{seq:int}}", messages.body),
        Route(f"{one}/conversations/{{id:path}}", conversation.conversation),
        Route(f"{one}/sessions/{{session:path}}", session.session),
        Route(f"{one}/groups/{{id}}", groups.group),
        Route(f"{one}/schedules/{{name:path}}", schedules.schedule),
        Route(f"{one}/act/{{verb}}", act.confirm, methods=["GET"]),
        Route(f"{one}/act/{{verb}}", act.act, methods=["POST"]),
        Route("/problems", problems.problems),
        Route("/problems/{fingerprint}", problems.problem),
        Route("/problems/{fingerprint}/silence", problems.silence, methods=["POST"]),
        Route("/undo/{name}", act.undo, methods=["POST"]),
        Route("/problems/{fingerprint}/{verb}", problems.repair, methods=["POST"]),
        Route("/dead", dead.dead),
        Route("/topology", topology.topology),
        Route("/schedules", schedules.schedules),
        Route("/channels", channels.channels),
        Route("/channels/{name}", channels.channel),
        Route("/search", search.search),
        Route("/report", report.report),
        Route("/report/content", report.content),
        Route("/events", live.events),
        Route("/live", alive),
        Route("/ready", ready),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]


def _metrics(site: Site) -> Endpoint:
    """Return the endpoint of /metrics, which uses the snapshots of the pages and opens no file."""
    from onceward.metrics import FileMetrics, new_registry  # noqa: PLC0415 - an extra
    from onceward.ops.observe.exposition import endpoint  # noqa: PLC0415 - an extra

    def taken() -> list[FileSnapshot]:
        known = site.refresher.snapshots
        return [known[key] for key in sorted(known)]

    registry = new_registry()
    registry.register(FileMetrics((), taken=taken, clock=site.refresher.clock))
    return endpoint(registry)


@asynccontextmanager
async def _running(site: Site, made: Starlette) -> AsyncIterator[None]:
    site.refresher.start()
    try:
        yield
    finally:
        made.state.streams.stopped = True
        site.refresher.stop()


def alive(_: Request) -> Response:
    """Answer that the program runs."""
    return PlainTextResponse("alive")


def ready(request: Request) -> Response:
    """Answer whether every file has been read."""
    refresher = site_of(request).refresher
    if refresher.version or not refresher.targets.files():
        return PlainTextResponse("ready")
    return PlainTextResponse("files are being read", 503)


def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 400
    text = error.detail if isinstance(error, HTTPException) else str(error)
    return site_of(request).html(request, "error.html", status=status, title=status, text=text)


def _failed(request: Request, error: Exception) -> Response:
    unusable = isinstance(error, StoreUnusable)
    status = 404 if unusable else 400 if isinstance(error, InvalidArgument) else 503
    title = "This file cannot be read"
    return site_of(request).html(request, "error.html", status=status, title=title, text=str(error))
