"""Confirm an action, then do it, and log both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onceward.errors import OncewardError
from onceward.message.clock import iso
from onceward.message.topics import WILD
from onceward.ops.inspector.actions import ACTIONS, FILTERS, MOST, Action, Given, perform
from onceward.ops.inspector.guard import FORM, form_mark, form_token, is_own_form
from onceward.ops.inspector.refresher import page_reader
from onceward.ops.inspector.site import NOT_FOUND, Site, Undo, address, site_of
from onceward.ops.inspector.visit import VISIT, local
from onceward.ops.views.expected import ReplyField, expected_fields, reply_of
from onceward.ops.views.listing import Conditions, listing, literal

LARGEST: Final = 16_384
"""Bytes of the largest form."""
FORBIDDEN: Final = 403
FIELD: Final = "field:"
"""Prefix of the name of an answer field's input."""
SELECTED: Final = 200
"""Maximum messages of one action."""


def confirm(request: Request) -> Response:
    """Answer with the confirmation page of an action."""
    site, action = _allowed(request)
    key = request.path_params["key"]
    given = _given(action, request.query_params)
    return form_page(
        site,
        request,
        "confirm.html",
        action=action,
        given=given,
        fields=_expected(site, key, action, given),
        matching=_matching(site, key, given) if action.in_bulk else None,
        back=_back(key, action, given),
    )


async def act(request: Request) -> Response:
    """Do the confirmed action, and redirect to the page that shows its outcome."""
    _, action = _allowed(request)
    site, form = await own_form(request)
    given = _given(action, form)
    key = request.path_params["key"]
    filled = partial(_reply, site, key, action, given, form)
    reply = filled if action.has_fields and not given.body else None
    told, undo = await run_in_threadpool(_done, site, request, action, given, reply)
    return told_at(site, _back(key, action, given), told, undo)


async def undo(request: Request) -> Response:
    """Undo an action in the files that it changed, and redirect back."""
    site, _ = await own_form(request)
    found = site.undo(request.path_params["name"])
    if found is None:
        raise HTTPException(NOT_FOUND, "this can no longer be undone: see its page")
    told = await run_in_threadpool(_undone, site, request, found)
    return told_at(site, found.back, told)


def _undone(site: Site, request: Request, found: Undo) -> str:
    action, done, errors = ACTIONS[found.verb], 0, list[str]()
    request.path_params["verb"] = found.verb
    for key, given in found.targets:
        entry = _entry(given)
        audit(site, request, key, entry, "asked")
        try:
            outcome = perform(site.path(key), action, given)
            done, told = done + outcome.done, outcome.told
        except OncewardError as error:
            told = f"not done: {error}"
            errors.append(f"{key}: {error}")
        audit(site, request, key, entry, told)
    site.refresher.refresh()
    lost = f"; not done in {len(errors)} agents, first {errors[0]}" if errors else ""
    return f"Undo: {action.short}: {done:,} of {found.count:,}{lost}"


def _done(
    site: Site, request: Request, action: Action, given: Given, reply: Callable[[], Any] | None
) -> tuple[str, Undo | None]:
    key, undo = request.path_params["key"], None
    entry = _entry(given)
    audit(site, request, key, entry, "asked")
    try:
        whole = given if reply is None else replace(given, body=json.dumps(reply()))
        outcome = perform(site.path(key), action, whole)
        told, undo = outcome.told, Undo.of(action, [(key, outcome)], _back(key, action, given))
    except OncewardError as error:
        told = f"not done: {error}"
    audit(site, request, key, entry, told)
    site.refresher.refresh()
    return f"{action.title}: {told}", undo


def _entry(given: Given) -> dict[str, Any]:
    """Return the logged objects of an action, without answers."""
    named: dict[str, Any] = dict(given.which)
    if given.ids:
        named["id"] = given.id if len(given.ids) == 1 else [*given.ids]
    return named


def audit(site: Site, request: Request, key: str, given: Mapping[str, Any], outcome: str) -> None:
    """Log a reader's request, or its outcome."""
    known = site.snapshot(key)
    entry: dict[str, Any] = {
        "op": f"inspect.{request.path_params['verb']}",
        "ts": iso(site.now()),
        "agent_id": known.agent if known else key,
        "by": reader_of(request),
        **given,
        "outcome": outcome,
    }
    assert site.audit is not None  # noqa: S101 - otherwise the action was refused
    site.audit.write([entry])


def form_page(site: Site, request: Request, template: str, **context: Any) -> Response:
    """Return a page with forms, and the cookie by which they are known as ours."""
    mark = form_mark(request)
    answer = site.html(request, template, form=form_token(site.secret, mark), **context)
    answer.set_cookie(FORM, mark, path=local("/"), httponly=True, samesite="strict")
    return answer


def told_at(site: Site, where: str, told: str, undo: Undo | None = None) -> Response:
    """Redirect to a page, which tells what was done."""
    sign = "&" if "?" in where else "?"
    return RedirectResponse(f"{where}{sign}notice={site.notice(told, undo)}", 303)


def reader_of(request: Request) -> str:
    """Return the name of the reader, or the address from which a page is read."""
    if name := VISIT.get().reader.name:
        return name
    return request.client.host if request.client else ""


def _allowed(request: Request) -> tuple[Site, Action]:
    site = site_of(request)
    action = ACTIONS.get(request.path_params["verb"])
    if action is None:
        raise HTTPException(NOT_FOUND, "there is no such action")
    _writes(site)
    return site, action


def _writes(site: Site) -> None:
    if not site.write:
        how = "start with --write, or mount with audit= and a Reader that may write"
        raise HTTPException(FORBIDDEN, f"these pages are read-only: {how}")


async def own_form(request: Request) -> tuple[Site, QueryParams]:
    """Return the fields of our form; raise a 403 for another one, or if pages are read-only."""
    site = site_of(request)
    _writes(site)
    given = await _sent(request)
    if not is_own_form(request, site.secret, given.get("form", "")):
        raise HTTPException(FORBIDDEN, "this form is not from this inspector: confirm it again")
    return site, given


def _given(action: Action, sent: QueryParams) -> Given:
    ids = tuple(dict.fromkeys(filter(None, sent.getlist("id")))) if action.needs_id else ()
    if action.needs_id and not ids:
        raise HTTPException(
            NOT_FOUND, "nothing is selected: select a message, or open the action on its page"
        )
    if len(ids) > (SELECTED if action.several else 1):
        raise HTTPException(NOT_FOUND, f"this applies to at most {SELECTED} messages")
    names = FILTERS if action.in_bulk else ()
    which = {name: sent[name] for name in names if sent.get(name)}
    if WILD & set(which.get("topic", "")):
        raise HTTPException(NOT_FOUND, "a topic here is not a pattern: name one topic")
    return Given(
        ids=ids,
        which=which,
        body=sent.get("body", "") if action.asks else "",
        session=sent.get("session", "") if action.of_session else "",
    )


async def _sent(request: Request) -> QueryParams:
    """Return the fields of a form; raise a 413 for a large one."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise HTTPException(413, "this form is too large")
    return QueryParams(body.decode("utf-8", "replace"))


def _expected(site: Site, key: str, action: Action, given: Given) -> tuple[ReplyField, ...]:
    """Return the fields of the form; none if it has a single text."""
    if not action.has_fields:
        return ()
    with page_reader(site.path(key)) as reader:
        if action.of_reply:
            return expected_fields(reader, given.id)
        return () if action.form is None else action.form(reader, "".join(given.ids[:1]))


def _reply(site: Site, key: str, action: Action, given: Given, form: QueryParams) -> Any:
    """Return the answer from the fields of a form; a browser also sends those that are empty."""
    named = {name.removeprefix(FIELD): form[name] for name in form if name.startswith(FIELD)}
    filled = {name: text for name, text in named.items() if text}
    return reply_of(_expected(site, key, action, given), filled)


def _matching(site: Site, key: str, given: Given) -> str:
    """Return the number of dead letters of an action, as text."""
    wanted: dict[str, Any] = {name: literal(value) for name, value in given.which.items()}
    with page_reader(site.path(key)) as reader:
        found = listing(reader, "dead", Conditions(**wanted), rows=MOST)
    return f"{len(found.messages):,}{'' if found.next is None else ' or more'}"


def _back(key: str, action: Action, given: Given) -> str:
    if action.back == "message" and len(given.ids) == 1:
        return address(key, "messages", given.id)
    if action.back in {"sessions", "schedules"}:
        name = given.session if action.of_session else given.id
        return address(key, action.back, name) if name else address(key)
    if action.back == "dead" or action.undo == "cancel":
        return address(key, "messages", box="dead")
    return address(key, "messages") if action.back == "message" else address(key)
