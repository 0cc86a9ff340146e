"""Show the journey of one message through the files of its two agents."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import OncewardError
from onceward.file.read_only import FileReader
from onceward.message.redaction import Redaction, pretty
from onceward.ops.inspector import journey
from onceward.ops.inspector.attempts import attempts
from onceward.ops.inspector.pages.conversation import gather
from onceward.ops.inspector.refresher import page_reader
from onceward.ops.inspector.sequence import Exchange, exchanges
from onceward.ops.inspector.site import NOT_FOUND, Site, site_of
from onceward.ops.views.conversation import Part
from onceward.ops.views.listing import LARGE
from onceward.ops.views.messages import (
    VIEWS,
    FoundMessage,
    StoredMessage,
    frame_size,
    message,
    whole_frame,
)
from onceward.ops.views.why import message_why

NOTHING: Final = FoundMessage()
BODIES: Final = ("data", "data_base64")
UNENDED: Final = frozenset({"pending", "sending", "sent", "processing"})
"""States in which a message may still be cancelled."""
RELATED: Final = 50
"""Maximum messages of each kind on the page."""
FIRST: Final = 16_384
"""Maximum characters of a body on the page; a longer one has its own page."""
TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
"""A ``traceparent`` of the W3C, with the id of its trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The stored frame in the form of the page."""

    body: str | None
    """None if the frame is too large or damaged; its beginning if *cut*."""
    attributes: dict[str, str]
    problem: str | None
    value: Any = None
    """The body as a value, if it is an object or a list that is shown completely."""
    cut: bool = False

    @property
    def trace_id(self) -> str | None:
        """The id of the trace in which it was sent, or None."""
        found = TRACE.fullmatch(self.attributes.get("traceparent", ""))
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Files:
    """The files that are involved in a message, each opened once."""

    opened: dict[str, FileReader]
    """Open files by key, including the page's own."""
    sender: FileReader | None
    recipient: FileReader | None
    missing: list[str]
    """Why a file could not be read."""


def journey_page(request: Request) -> Response:
    """Answer with the page of one message."""
    site = site_of(request)
    key, message_id = str(request.path_params["key"]), str(request.path_params["id"])
    with ExitStack() as stack:
        reader = stack.enter_context(page_reader(site.path(key)))
        found = message(reader, message_id)
        one = found.any
        if one is None:
            raise HTTPException(NOT_FOUND, f"message {message_id} is not stored in this file")
        size = frame_size(reader, one.box, one.seq)
        frame = whole_frame(reader, one.box, one.seq) if size <= LARGE else None
        files = _files(site, stack, key, reader, one)
        root = one.correlation_id or message_id
        facts = _facts(site, files, key, found, message_id)
        parts, _ = gather(site, root, [one.sender, one.recipient], files.opened)
    shown = show(site.redaction, frame)
    causes, depths, others = _related(parts, message_id, shown)
    return site.html(
        request,
        "message.html",
        keys=[*files.opened],
        id=message_id,
        one=one,
        missing=files.missing,
        **facts,
        box=one.box,
        size=size,
        first=FIRST,
        view=VIEWS[one.box],
        file=site.path(key),
        shown=shown,
        trace=site.trace(shown.trace_id),
        causes=causes,
        effects=[*depths],
        depths={each.id: depth for each, depth in depths.items()},
        others=others,
        cancellable=_states(found) & UNENDED,
        answerable="replyto" in shown.attributes and "pending" in _states(found, sent=False),
        dead=next(iter(found.dead), None),
    )


def _facts(
    site: Site, files: Files, key: str, found: FoundMessage, message_id: str
) -> dict[str, Any]:
    """Return the content about a message from the files of both sides."""
    now = site.now()
    sender, recipient = _both(files, files.opened[key], found, message_id)
    sides = files.sender, files.recipient
    if sides == (None, None):
        sides = files.opened[key], files.opened[key]
    return {
        "why": message_why(*sides, message_id, now),
        "steps": journey.steps(sender, recipient),
        "bar": _bar(journey.phases(sender, recipient), now),
        "attempts": attempts(recipient),
        "results": recipient.results,
    }


def _states(found: FoundMessage, *, sent: bool = True) -> set[str]:
    """Return the states of a message's received row and, with *sent*, its sent row."""
    rows = (found.sent, *found.received) if sent else found.received
    return {each.state for each in rows if each is not None}


def _files(site: Site, stack: ExitStack, key: str, reader: FileReader, one: StoredMessage) -> Files:
    """Open the files of the sender and the recipient; the page's own is already open."""
    opened, missing = {key: reader}, list[str]()
    sides: list[FileReader | None] = []
    for name in (one.sender, one.recipient):
        other = site.key_of(name)
        if other is None:
            missing.append(f"the file of {name} is not shown here")
        elif other not in opened:
            try:
                opened[other] = stack.enter_context(page_reader(site.path(other)))
            except OncewardError as error:
                missing.append(f"the file of {name} cannot be read: {error}")
        sides.append(None if other is None else opened.get(other))
    return Files(opened, sides[0], sides[1], missing)


def _both(
    files: Files, here: FileReader, found: FoundMessage, message_id: str
) -> tuple[FoundMessage, FoundMessage]:
    """Return the content of the sender's and the recipient's file."""

    def told(side: FileReader | None) -> FoundMessage:
        if side is None:
            return NOTHING
        return found if side is here else message(side, message_id)

    sender = told(files.sender)
    recipient = sender if files.recipient is files.sender else told(files.recipient)
    if here in (files.sender, files.recipient):
        return sender, recipient
    return (found, recipient) if found.sent else (sender, found)


def show(redaction: Redaction, frame: bytes | None) -> Shown:
    """
    Return a stored frame, formatted, with secrets hidden; None means too large.

    A damaged frame is not shown at all, because its fields and secrets are unknown.
    """
    if frame is None:
        return Shown(body=None, attributes={}, problem=None)
    try:
        parsed = json.loads(frame.decode("utf-8", "replace"))
        if isinstance(parsed, dict):
            return _laid_out(redaction, parsed)
        problem = "the stored frame is not an object"
    except (ValueError, RecursionError) as error:
        problem = f"the stored frame is damaged: {error}"
    return Shown(body=None, attributes={}, problem=problem)


def _laid_out(redaction: Redaction, parsed: dict[str, Any]) -> Shown:
    body = next((parsed[name] for name in BODIES if name in parsed), None)
    attributes = redaction.value({name: parsed[name] for name in parsed if name not in BODIES})
    told = {
        name: each if isinstance(each, str) else pretty(each) for name, each in attributes.items()
    }
    value = redaction.value(body)
    text = pretty(value)
    cut = len(text) > FIRST
    return Shown(
        body=text[:FIRST],
        attributes=told,
        problem=told.get("bodyerror"),
        value=value if isinstance(value, dict | list) and value and not cut else None,
        cut=cut,
    )


def _bar(phases: list[journey.Phase], now: int) -> list[dict[str, Any]]:
    """Return the positions of the phases on a line of 1,000 units, each with a minimum width."""
    if not phases:
        return []
    spans = [max(0, (each.end_at or max(now, each.begin_at)) - each.begin_at) for each in phases]
    least = 60
    left = 1000 - least * len(spans)
    total = sum(spans) or 1
    widths = [least + left * span // total for span in spans]
    return [
        {"name": each.name, "x": sum(widths[:at]), "width": widths[at], "span": spans[at],
         "open": each.end_at is None}
        for at, each in enumerate(phases)
    ]  # fmt: skip


def _related(
    parts: list[Part], message_id: str, shown: Shown
) -> tuple[list[Exchange], dict[Exchange, int], list[Exchange]]:
    """Return the causes of a message, the tree of those that it caused, and the others."""
    names = {shown.attributes.get("inreplyto"), shown.attributes.get("causationid")} - {None}
    found = [each for each in exchanges(parts) if each.id != message_id]
    causes = [each for each in found if each.id in names]
    effects = _tree(found, message_id)
    others = [each for each in found if each not in causes and each not in effects]
    return causes, dict(islice(effects.items(), RELATED)), others[:RELATED]


def _tree(found: list[Exchange], message_id: str) -> dict[Exchange, int]:
    """Return the messages that one has caused with their depths, each before those it caused."""
    caused: dict[str | None, list[Exchange]] = {}
    for each in found:
        caused.setdefault(each.cause, []).append(each)
    tree: dict[Exchange, int] = {}
    ahead = [(each, 0) for each in reversed(caused.get(message_id, []))]
    while ahead:
        each, depth = ahead.pop()
        if each not in tree:
            tree[each] = depth
            ahead += [(child, depth + 1) for child in reversed(caused.get(each.id, []))]
    return tree
