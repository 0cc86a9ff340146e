"""Search all agents for an agent's name, an id prefix, or a text in bodies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import OncewardError
from onceward.file.read_only import FileReader
from onceward.message.clock import monotonic
from onceward.ops.inspector.pages.home import number
from onceward.ops.inspector.pages.messages import shows
from onceward.ops.inspector.refresher import Snapshot, page_reader
from onceward.ops.inspector.site import Site, site_of
from onceward.ops.views.listing import LARGE, Conditions, listing
from onceward.ops.views.messages import StoredMessage, body_text, ids

BUDGET: Final = 0.1
"""Seconds after which a page ends; the next one continues with the next file."""
AGENTS: Final = 20
PER_FILE: Final = 10
PER_BOX: Final = 0.03
"""Maximum seconds of one box of one file."""
AROUND: Final = 50
"""Characters before and after a found text."""
ID: Final = re.compile(r"[0-9A-Za-z._:-]{4,128}")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A found text with its surroundings."""

    before: str
    found: str
    after: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One found message."""

    key: str
    agent: str
    box: str
    id: str
    message: StoredMessage | None = None
    """Its row, if it was found by its body."""
    snippet: Snippet | None = None
    """The text in its body."""


def search(request: Request) -> Response:
    """Answer with the results from some files, and where to continue."""
    site = site_of(request)
    asked = request.query_params
    text, first = asked.get("q", "").strip(), asked.get("first", "")
    files = sorted(site.refresher.snapshots.values(), key=lambda each: each.key)
    position = number(first)
    names = [each for each in files if text.lower() in each.agent.lower()] if text else []
    hits, position = _hits(site, text, files, position) if text else ([], len(files))
    return site.html(
        request,
        "search.html",
        q=text,
        names=names[:AGENTS] if position and not first else [],
        hits=hits,
        first=bool(first),
        next=position if position < len(files) else None,
        files=len(files),
        large=LARGE,
    )


def _hits(site: Site, text: str, files: list[Snapshot], position: int) -> tuple[list[Hit], int]:
    until = monotonic() + BUDGET
    found: list[Hit] = []
    while position < len(files) and (not found or monotonic() < until):
        each = files[position]
        try:
            with page_reader(each.path) as reader:
                found += _in_file(site, reader, each, text)
        except OncewardError:
            pass  # the page of the agent tells why
        position += 1
        if monotonic() > until:
            break
    return found, position


def _in_file(site: Site, reader: FileReader, each: Snapshot, text: str) -> list[Hit]:
    """Return the messages of one file whose id begins with a text, or whose body contains it."""
    by_id = ids(reader, text, PER_FILE) if ID.fullmatch(text) else []
    hits = [Hit(each.key, each.agent, box, message_id) for message_id, box in by_id]
    if hits:
        return hits
    wanted, visible = Conditions(text=text), shows(site, text)
    for box in ("outbox", "inbox", "dead"):
        found = listing(reader, box, wanted, rows=PER_FILE, budget=PER_BOX, visible=visible)
        for row in found.messages:
            shown = site.redaction.json(body_text(reader, box, row.seq))
            hits.append(Hit(each.key, each.agent, box, row.id, row, snippet(shown, text)))
    return hits


def snippet(shown: str, text: str) -> Snippet | None:
    """Return the position of a text in a shown body; None if it is not on one line."""
    line = " ".join(shown.split())
    at = line.find(text)
    if at < 0:
        line = line.replace('": ', '":')  # as the sender may have written it
        at = line.find(text)
    if at < 0:
        return None
    begin, end = max(0, at - AROUND), at + len(text) + AROUND
    before = f"{'…' if begin else ''}{line[begin:at]}"
    after = f"{line[at + len(text) : end]}{'…' if end < len(line) else ''}"
    return Snippet(before, text, after)
