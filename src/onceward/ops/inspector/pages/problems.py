"""Show problems of all agents, grouped, each with its repair."""

from __future__ import annotations

from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import InvalidArgument, OncewardError
from onceward.message.times import millis
from onceward.ops.inspector.actions import Action, Outcome, perform
from onceward.ops.inspector.grouping import Affected, Problem, gather
from onceward.ops.inspector.pages.act import (
    FORBIDDEN,
    audit,
    form_page,
    own_form,
    reader_of,
    told_at,
)
from onceward.ops.inspector.refresher import page_reader
from onceward.ops.inspector.silences import REASON, Silence
from onceward.ops.inspector.site import NOT_FOUND, Site, Undo, site_of
from onceward.ops.inspector.visit import local

ROWS: Final = 200
"""Maximum problems on the page."""
AGENTS: Final = 100
"""Maximum agents on the page of one problem."""
PREVIEWED: Final = 5
"""Maximum agents whose messages that page shows."""
MESSAGES: Final = 5
"""Maximum messages of each of them."""
UNTIL: Final = ("1h", "8h", "1d", "7d", "30d")
"""Durations for which a problem can be silenced."""


def problems(request: Request) -> Response:
    """Answer with the page of all problems."""
    site = site_of(request)
    now = site.now()
    found = gather(site.refresher.snapshots.values(), now)
    silences = site.silences.now(now)
    loud = [each for each in found if each.fingerprint not in silences]
    silent = [each for each in found if each.fingerprint in silences]
    return site.html(
        request,
        "problems.html",
        problems=loud[:ROWS],
        found=len(loud),
        silent=silent[:ROWS],
        silences=silences,
    )


def problem(request: Request) -> Response:
    """Answer with the page of one problem, with the effects of a repair."""
    site = site_of(request)
    found = _wanted(request)
    return form_page(
        site,
        request,
        "problem.html",
        problem=found,
        shown=found.agents[:AGENTS],
        samples=_samples(site, found),
        silence=site.silences.now(site.now()).get(found.fingerprint),
        spans=UNTIL,
        longest=REASON,
    )


def _samples(site: Site, found: Problem) -> dict[str, tuple[str, ...]]:
    """Return the oldest messages of the first agents that a repair would change."""
    samples: dict[str, tuple[str, ...]] = {}
    for each in found.agents[:PREVIEWED] if found.of_messages else ():
        try:
            with page_reader(site.path(each.key)) as reader:
                samples[each.key] = found.given(reader, each).ids[:MESSAGES]
        except (OncewardError, HTTPException):  # the page of the agent tells why
            samples[each.key] = ()
    return samples


async def repair(request: Request) -> Response:
    """Repair a problem in all files that have it, and redirect to the list."""
    site, given = await own_form(request)
    found = _wanted(request)
    verb = request.path_params["verb"]
    action = found.repairs.get(verb)
    if action is None:
        raise HTTPException(NOT_FOUND, "this problem has no such repair")
    if action.destroys and not given.get("sure"):
        raise HTTPException(FORBIDDEN, "tick the box: this cannot be undone")
    told, undo = await run_in_threadpool(_repaired, site, request, found, action)
    return told_at(site, local("/problems"), told, undo)


def _repaired(
    site: Site, request: Request, found: Problem, action: Action
) -> tuple[str, Undo | None]:
    """Repair each file in turn; a failure does not stop the others."""
    done: list[tuple[str, Outcome]] = []
    failed: list[str] = []
    for each in found.agents:
        entry = {"problem": found.fingerprint} | ({"id": each.sample} if each.sample else {})
        audit(site, request, each.key, entry, "asked")
        try:
            outcome = _in_file(site, each, found, action)
            done.append((each.key, outcome))
            told = f"{action.short}: {outcome.done}"
        except OncewardError as error:
            told = f"not done: {error}"
            failed.append(f"{each.key}: {error}")
        audit(site, request, each.key, entry, told)
    site.refresher.refresh()
    lost = f"; not done in {len(failed)} agents, first {failed[0]}" if failed else ""
    wanted = found.count if found.of_messages else len(found.agents)
    count = sum(outcome.done for _, outcome in done)
    return f"{action.short}: {count:,} of {wanted:,}{lost}", Undo.of(
        action, done, local("/problems")
    )


def _in_file(site: Site, each: Affected, found: Problem, action: Action) -> Outcome:
    path = site.path(each.key)
    with page_reader(path) as reader:
        given = found.given(reader, each)
    return perform(path, action, given) if given.ids or not action.needs_id else Outcome("", (), 0)


async def silence(request: Request) -> Response:
    """Silence a problem until a moment, or end its silence, and redirect to the list."""
    site, given = await own_form(request)
    fingerprint, now = request.path_params["fingerprint"], site.now()
    if given.get("end"):
        site.silences.end(fingerprint, now)
        told = "The silence is ended"
    else:
        found, span = _wanted(request), given.get("for", "")
        if span not in UNTIL:
            raise InvalidArgument(f"for how long? {', '.join(UNTIL)}")
        reason, by = given.get("reason", "")[:REASON], reader_of(request)
        until_at = now + millis("for", span)
        await run_in_threadpool(
            site.silences.add, Silence(found.fingerprint, until_at, reason, by, now)
        )
        told = f"Silenced for {span}: {found.error[:120]}"
    request.path_params["verb"] = "silence"
    audit(site, request, "", {"problem": fingerprint}, told)
    return told_at(site, local("/problems"), told)


def _wanted(request: Request) -> Problem:
    """Return the problem in an address; raise a 404 if it no longer exists."""
    mark, site = request.path_params["fingerprint"], site_of(request)
    for each in gather(site.refresher.snapshots.values(), site.now()):
        if each.fingerprint == mark:
            return each
    raise HTTPException(
        NOT_FOUND, "this problem no longer exists: it was repaired, or now has another error"
    )
