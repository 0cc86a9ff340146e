"""Show the messages of one agent: a box (outbox, inbox, dead), filtered, newest first."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import InvalidArgument
from onceward.file.read_only import FileReader
from onceward.message.clock import Millis
from onceward.message.redaction import pretty, visible
from onceward.message.vocabulary import INBOX_STATES, OUTBOX_STATES, REASONS
from onceward.ops.inspector.site import NOT_FOUND, Site, site_of
from onceward.ops.inspector.words import size
from onceward.ops.views import lists
from onceward.ops.views.asking import NEVER
from onceward.ops.views.filters import EXAMPLE, Filter, parse, told
from onceward.ops.views.listing import (
    LARGE,
    Listing,
    Preview,
    Visible,
    before,
    listing,
    previews,
)
from onceward.ops.views.messages import VIEWS, whole_frame

STATES: Final = {
    "outbox": (*sorted({*OUTBOX_STATES, "sending"}),),
    "inbox": (*sorted({*INBOX_STATES, "processing"}),),
    "dead": (),
}
STATE: Final = re.compile(r"(?:^|(?<=\s))(?:state|reason):\S+")
VERBS: Final = {"outbox": ("cancel",), "inbox": ("cancel",), "dead": ("replay", "discard")}
"""Actions on selected messages."""
SUGGESTED: Final = 50
"""Maximum peers, and sessions, suggested for a filter."""
LINE: Final = 110
"""Maximum characters of a body in a list."""
DIGITS: Final = 18


def messages(request: Request) -> Response:
    """Answer with a page of messages."""
    site = site_of(request)
    asked = request.query_params
    query = asked.get("q", "").strip()
    wanted, wrong = _filter(query, site.now())
    box = "dead" if wanted.is_of_dead else asked.get("box", "outbox")
    if box not in VIEWS:
        raise HTTPException(NOT_FOUND, "the box must be outbox, inbox or dead")
    with site.reading(request) as reader:
        found = _found(site, reader, box, wanted, _before(asked.get("before", "")))
        previewed = {seq: _line(site, each) for seq, each in previews(reader, box, found).items()}
        peers = [each.name for each in lists.peers(reader, limit=SUGGESTED)]
    return site.html(
        request,
        "messages.html",
        box=box,
        boxes=[*VIEWS],
        q=query,
        query=_without_state(query, wanted),
        wrong=wrong,
        wanted=wanted,
        words=_words(box, found, peers),
        found=found,
        previews=previewed,
        verbs=VERBS[box],
        large=LARGE,
        example=EXAMPLE,
        first="before" not in asked,
    )


def _filter(query: str, now: Millis) -> tuple[Filter, str | None]:
    """Return the filter in an address, and its error, if any."""
    try:
        return parse(query, now), None
    except InvalidArgument as error:
        return Filter(), str(error)


def _without_state(query: str, wanted: Filter) -> str:
    """Return the text of a filter for the other boxes, which have other states."""
    return STATE.sub("", query).strip() if wanted.state else query


def _found(site: Site, reader: FileReader, box: str, wanted: Filter, start: int) -> Listing:
    """Return a page of matching messages, starting at the number *start*."""
    conditions, position = wanted.conditions, start
    if wanted.until_at is not None:
        position = min(position, before(reader, box, wanted.until_at))
    if wanted.since_at is not None:
        conditions = replace(conditions, first=before(reader, box, wanted.since_at))
    seen = shows(site, wanted.text)
    return listing(reader, box, conditions, before=position, visible=seen)


def _line(site: Site, each: Preview) -> str:
    """Return the beginning of a body on one line, or its size if it is large."""
    if each.body is None:
        return f"({size(each.size)})"
    line = " ".join(site.redaction.json(each.body).split())
    return line if len(line) <= LINE else f"{line[:LINE]}…"


def _words(box: str, found: Listing, peers: list[str]) -> list[str]:
    """Return the suggestions for a filter: names and existing values."""
    types = dict.fromkeys(each.type for each in found.messages)
    sessions = list(dict.fromkeys(each.session for each in found.messages))[:SUGGESTED]
    return [
        *(told(state=each) for each in STATES[box]),
        *(told(reason=each) for each in (sorted(REASONS) if box == "dead" else ())),
        *(told(type=each) for each in types),
        *(told(peer=each) for each in peers),
        *(told(session=each) for each in sessions),
        "since:15m", "since:1h", "since:1d", "until:1h", "topic:", "text:",
    ]  # fmt: skip


def _before(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else NEVER


def shows(site: Site, text: str | None) -> Visible:
    """Return a function that checks whether a text occurs in the shown part of a body."""

    def visible(body: str) -> bool:
        shown, sought = site.redaction.json(body), text or ""
        return sought in shown or sought in shown.replace("\n", "").replace('": ', '":')

    return visible


def body(request: Request) -> Response:
    """Answer with a stored frame of any size as text; a damaged one could show secrets."""
    site = site_of(request)
    box, seq = request.path_params["box"], request.path_params["seq"]
    with site.reading(request) as reader:
        frame = whole_frame(reader, box, seq) if box in VIEWS and seq < NEVER else None
    if frame is None:
        raise HTTPException(NOT_FOUND, "this message is no longer stored here")
    try:
        text = pretty(site.redaction.value(json.loads(frame.decode("utf-8", "replace"))))
    except (ValueError, RecursionError) as error:
        raise HTTPException(NOT_FOUND, f"the stored frame is damaged: {error}") from error
    return Response(visible(text), media_type="text/plain; charset=utf-8")
