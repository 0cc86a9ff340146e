"""The journey of one message over the files of its two agents."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import OncewardError
from onceward.file.read_only import FileReader
from onceward.message.redaction import Redaction, pretty
from onceward.ops.inspector import journey
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
from onceward.ops.views.why import Why, message_why

NOTHING: Final = FoundMessage()
BODIES: Final = ("data", "data_base64")
UNENDED: Final = frozenset({"pending", "sending", "sent", "processing"})
"""States in which a message may still be cancelled."""
RELATED: Final = 50
"""Replies and other consequences that the page lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The stored frame as the page shows it."""

    body: str | None
    """None where the frame is too large to be shown, or damaged."""
    attributes: dict[str, str]
    problem: str | None


def journey_page(request: Request) -> Response:
    """Answer with the page of one message."""
    site = site_of(request)
    key, message_id = request.path_params["key"], request.path_params["id"]
    with page_reader(site.path(key)) as reader:
        found = message(reader, message_id)
        one = found.any
        if one is None:
            raise HTTPException(NOT_FOUND, f"message {message_id} is not stored in this file")
        size = frame_size(reader, one.box, one.seq)
        frame = whole_frame(reader, one.box, one.seq) if size <= LARGE else None
    sender, recipient, missing = _both(site, key, found, message_id)
    why = _why(site, key, one, message_id)
    root = one.correlation_id or message_id
    parts, _ = gather(site, root, [one.sender, one.recipient])
    shown = show(site.redaction, frame)
    return site.html(
        request,
        "message.html",
        key=key,
        keys=[each for each in (site.key_of(one.sender), site.key_of(one.recipient)) if each],
        id=message_id,
        one=one,
        sender=sender,
        recipient=recipient,
        missing=missing,
        why=why,
        steps=journey.steps(sender, recipient),
        bar=_bar(journey.phases(sender, recipient), site.now()),
        box=one.box,
        size=size,
        view=VIEWS[one.box],
        file=site.path(key),
        shown=shown,
        root=root,
        causes=_causes(parts, message_id, shown),
        effects=_effects(parts, message_id),
        cancellable=_states(found) & UNENDED,
        answerable="replyto" in shown.attributes and "pending" in _states(found, sent=False),
        dead=next(iter(found.dead), None),
    )


def _states(found: FoundMessage, *, sent: bool = True) -> set[str]:
    """Return the states of a message's rows, as it was received and, if asked, as it was *sent*."""
    rows = (found.sent, *found.received) if sent else found.received
    return {each.state for each in rows if each is not None}


def _both(
    site: Site, key: str, found: FoundMessage, message_id: str
) -> tuple[FoundMessage, FoundMessage, list[str]]:
    """Return what the sender's and the recipient's file store, and which could not be read."""
    here = {"sender": NOTHING, "recipient": NOTHING}
    missing: list[str] = []
    one = found.any
    assert one is not None  # noqa: S101 - the page is that of a message found
    for role, name in (("sender", one.sender), ("recipient", one.recipient)):
        other = site.key_of(name)
        if other == key:
            here[role] = found
        elif other is None:
            missing.append(f"the file of {name} is not shown here")
        else:
            try:
                with page_reader(site.path(other)) as reader:
                    here[role] = message(reader, message_id)
            except OncewardError as error:
                missing.append(f"the file of {name} cannot be read: {error}")
    if found not in here.values():
        here["sender" if found.sent else "recipient"] = found
    return here["sender"], here["recipient"], missing


def _why(site: Site, key: str, one: StoredMessage, message_id: str) -> Why | None:
    """Return why the message is where it is, from the files that can be read."""
    with ExitStack() as stack:
        sides: list[FileReader | None] = []
        for name in (one.sender, one.recipient):
            other = site.key_of(name)
            try:
                path = None if other is None else site.path(other)
                sides.append(None if path is None else stack.enter_context(page_reader(path)))
            except OncewardError:  # the page names the file
                sides.append(None)
        if sides == [None, None]:
            sides = [stack.enter_context(page_reader(site.path(key)))] * 2
        return message_why(sides[0], sides[1], message_id, site.now())


def show(redaction: Redaction, frame: bytes | None) -> Shown:
    """
    Return a stored frame laid out, with what is secret hidden; None is one that is too large.

    Nothing is shown of a damaged one: which fields it has cannot be told, nor what is secret.
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
    return Shown(body=pretty(redaction.value(body)), attributes=told, problem=told.get("bodyerror"))


def _bar(phases: list[journey.Phase], now: int) -> list[dict[str, Any]]:
    """Return the places of the phases on a line of 1,000 units; each has at least a few."""
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


def _causes(parts: list[Part], message_id: str, shown: Shown) -> list[Exchange]:
    """Return the message that this one answers, or in whose handler it was sent."""
    names = {shown.attributes.get("inreplyto"), shown.attributes.get("causationid")} - {None}
    return [each for each in exchanges(parts) if each.id in names and each.id != message_id]


def _effects(parts: list[Part], message_id: str) -> list[Exchange]:
    """Return the messages that answer this one, or that its handler sent."""
    return [each for each in exchanges(parts) if each.cause == message_id][:RELATED]
