"""The messages of one agent: a box, filtered, newest first; dead letters are one of the boxes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.message.redaction import pretty, visible
from onceward.message.vocabulary import INBOX_STATES, OUTBOX_STATES, REASONS
from onceward.ops.inspector.site import NOT_FOUND, Site, site_of
from onceward.ops.views.asking import NEVER
from onceward.ops.views.listing import LARGE, Conditions, Visible, before, listing
from onceward.ops.views.messages import VIEWS, whole_frame

FILTERS: Final = ("state", "peer", "type", "session", "topic", "text")
STATES: Final = {
    "outbox": (*sorted({*OUTBOX_STATES, "sending"}),),
    "inbox": (*sorted({*INBOX_STATES, "processing"}),),
    "dead": (*sorted(REASONS),),
}
DIGITS: Final = 18


def messages(request: Request) -> Response:
    """Answer with a page of messages."""
    site = site_of(request)
    asked = request.query_params
    box = asked.get("box", "outbox")
    if box not in VIEWS:
        raise HTTPException(NOT_FOUND, "a box is outbox, inbox or dead")
    named = {name: asked.get(name) or None for name in FILTERS}
    wanted = Conditions(**named)
    until = _moment(asked.get("until", ""))
    with site.reading(request) as (key, reader):
        start = _before(asked.get("before", ""))
        if until is not None and "before" not in asked:
            start = before(reader, box, until)
        found = listing(reader, box, wanted, before=start, visible=shows(site, wanted.text))
    return site.html(
        request,
        "messages.html",
        key=key,
        keys=(key,),
        box=box,
        boxes=[*VIEWS],
        states=STATES[box],
        wanted=named | {"until": asked.get("until") or None},
        found=found,
        large=LARGE,
        first="before" not in asked,
    )


def _moment(text: str) -> int | None:
    """Return a moment of an address, of UTC unless it says otherwise; None where it has none."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise HTTPException(NOT_FOUND, f"{text} is not a moment: 2026-01-31T12:00") from error
    return int(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1000)


def _before(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else NEVER


def shows(site: Site, text: str | None) -> Visible:
    """Return a call that tells whether a text occurs in what is shown of a body, not hidden."""

    def visible(body: str) -> bool:
        shown, sought = site.redaction.json(body), text or ""
        return sought in shown or sought in shown.replace("\n", "").replace('": ', '":')

    return visible


def body(request: Request) -> Response:
    """Answer with a stored frame as text, however large; a damaged one could show secrets."""
    site = site_of(request)
    box, seq = request.path_params["box"], request.path_params["seq"]
    with site.reading(request) as (_, reader):
        frame = whole_frame(reader, box, seq) if box in VIEWS and seq < NEVER else None
    if frame is None:
        raise HTTPException(NOT_FOUND, "this message is not stored here any more")
    try:
        text = pretty(site.redaction.value(json.loads(frame.decode("utf-8", "replace"))))
    except (ValueError, RecursionError) as error:
        raise HTTPException(NOT_FOUND, f"the stored frame is damaged: {error}") from error
    return Response(visible(text), media_type="text/plain; charset=utf-8")
