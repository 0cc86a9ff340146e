"""Confirm an action, then do it, and write both down."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onceward.errors import OncewardError
from onceward.message.clock import iso
from onceward.message.topics import WILD
from onceward.ops.inspector.actions import ACTIONS, FILTERS, MOST, Action, Given, perform
from onceward.ops.inspector.guard import FORM, form_mark, form_token, is_own_form
from onceward.ops.inspector.refresher import page_reader
from onceward.ops.inspector.site import NOT_FOUND, Site, address, site_of
from onceward.ops.views.expected import ReplyField, expected_fields, reply_of
from onceward.ops.views.listing import Conditions, listing

LARGEST: Final = 16_384
"""Bytes of the largest form."""
FORBIDDEN: Final = 403
NAMES: Final = ("id", *FILTERS)
FIELD: Final = "field:"
"""Begins the name of an input for a field of the answer."""


def confirm(request: Request) -> Response:
    """Answer with the question whether an action is meant."""
    site, action = _allowed(request)
    key = request.path_params["key"]
    given = _given(action, dict(request.query_params))
    mark = form_mark(request)
    answer = site.html(
        request,
        "confirm.html",
        key=key,
        action=action,
        given=given,
        fields=_expected(site, key, given) if action.asks else (),
        matching=_matching(site, key, given) if action.in_bulk else None,
        back=_back(key, action, given),
        form=form_token(site.secret, mark),
    )
    answer.set_cookie(FORM, mark, httponly=True, samesite="strict")
    return answer


async def act(request: Request) -> Response:
    """Do what was confirmed, and go back to the page that shows its outcome."""
    site, action = _allowed(request)
    given_form = await sent(request)
    if not is_own_form(request, site.secret, given_form.get("form", "")):
        raise HTTPException(FORBIDDEN, "this form is not from a page of ours: confirm it again")
    given = _given(action, given_form)
    told = await run_in_threadpool(_done, site, request, action, given)
    key = request.path_params["key"]
    where = _back(key, action, given)
    sign = "&" if "?" in where else "?"
    return RedirectResponse(f"{where}{sign}notice={site.notice(told)}", 303)


def _done(site: Site, request: Request, action: Action, given: Given) -> str:
    key = request.path_params["key"]
    audit(site, request, key, given, "asked")
    try:
        told = perform(site.path(key), action, _answering(site, key, action, given))
    except OncewardError as error:
        told = f"not done: {error}"
    audit(site, request, key, given, told)
    site.refresher.refresh()
    return f"{action.title}: {told}"


def audit(site: Site, request: Request, key: str, given: Given, outcome: str) -> None:
    """Write down what a reader asked for, or how it ended."""
    known = site.snapshot(key)
    entry: dict[str, Any] = {
        "op": f"inspect.{request.path_params['verb']}",
        "ts": iso(site.now()),
        "agent_id": known.agent if known else key,
        "by": request.client.host if request.client else "",
        **{name: value for name, value in given.items() if name in NAMES},
        "outcome": outcome,
    }
    assert site.audit is not None  # noqa: S101 - or the action had been refused
    site.audit.write([entry])


def _allowed(request: Request) -> tuple[Site, Action]:
    site = site_of(request)
    action = ACTIONS.get(request.path_params["verb"])
    if action is None:
        raise HTTPException(NOT_FOUND, "there is no such action")
    if not site.write:
        raise HTTPException(FORBIDDEN, "these pages only read: start with --write to change things")
    return site, action


def _given(action: Action, sent: dict[str, str]) -> Given:
    names: tuple[str, ...] = ("id", "body") if action.asks else ("id",)
    names = (*names, "session") if action.of_session else names
    names = names if action.needs_id else FILTERS if action.in_bulk else ()
    found = {name: sent[name] for name in names if sent.get(name)}
    if action.asks:
        found |= {name: value for name, value in sent.items() if name.startswith(FIELD)}
    if action.needs_id and "id" not in found:
        raise HTTPException(NOT_FOUND, "the address does not say of what")
    if WILD & set(found.get("topic", "")):
        raise HTTPException(NOT_FOUND, "a topic here is not a pattern: name one topic")
    return found


async def sent(request: Request) -> dict[str, str]:
    """Return the fields of a form; raise a 413 for a large one."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise HTTPException(413, "this form is too large")
    return dict(parse_qsl(body.decode("utf-8", "replace")))


def _expected(site: Site, key: str, given: Given) -> tuple[ReplyField, ...]:
    """Return the fields of the answer, which the form has; none where it has one text."""
    with page_reader(site.path(key)) as reader:
        return expected_fields(reader, given["id"])


def _answering(site: Site, key: str, action: Action, given: Given) -> Given:
    """Return what was given, with the answer as JSON where the form has its fields."""
    if not action.asks or "body" in given:
        return given
    filled = {name.removeprefix(FIELD): given[name] for name in given if name.startswith(FIELD)}
    body = reply_of(_expected(site, key, given), filled)
    return {"id": given["id"], "body": json.dumps(body)}


def _matching(site: Site, key: str, given: Given) -> str:
    """Return how many dead letters an action is about, in words."""
    named = {("state" if name == "reason" else name): value for name, value in given.items()}
    with page_reader(site.path(key)) as reader:
        found = listing(reader, "dead", Conditions(**named), rows=MOST)
    return f"{len(found.messages):,}{'' if found.next is None else ' or more'}"


def _back(key: str, action: Action, given: Given) -> str:
    if action.back == "message":
        return address(key, "messages", given["id"])
    if action.back in {"sessions", "schedules"}:
        name = given.get("session") if action.of_session else given["id"]
        return address(key) if name is None else address(key, action.back, name)
    if action.back == "dead":
        return address(key, "messages", box="dead")
    return address(key)
