"""Show a conversation as a sequence diagram between agents."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import OncewardError
from onceward.file.read_only import FileReader
from onceward.message.clock import monotonic
from onceward.ops.inspector.refresher import page_reader
from onceward.ops.inspector.sequence import diagram, exchanges
from onceward.ops.inspector.site import NOT_FOUND, Site, site_of
from onceward.ops.views.conversation import Part, part
from onceward.ops.views.messages import root_of

FILES: Final = 20
"""Maximum files that one page reads."""
BUDGET: Final = 0.1
"""Seconds after which no more files are read."""
SHOWN: Final = 150
NOT_OPEN: Final[Mapping[str, FileReader]] = MappingProxyType({})


def conversation(request: Request) -> Response:
    """Answer with the page of the conversation that a message belongs to."""
    site = site_of(request)
    key, message_id = request.path_params["key"], request.path_params["id"]
    with page_reader(site.path(key)) as reader:
        root = root_of(reader, message_id)
        here = part(reader, root)
    if not here.all:
        raise HTTPException(NOT_FOUND, f"message {message_id} is not stored in this file")
    names = {name for each in here.all for name in (each.sender, each.recipient)}
    parts, unread = gather(site, root, sorted(names))
    found = exchanges([here, *parts])
    return site.html(
        request,
        "conversation.html",
        keys=[each for name in names if (each := site.key_of(name))],
        id=message_id,
        root=root,
        messages=found[:SHOWN],
        more=len(found) > SHOWN,
        drawn=diagram(found[:SHOWN]),
        unread=unread,
    )


def gather(
    site: Site, root: str, names: Iterable[str], opened: Mapping[str, FileReader] = NOT_OPEN
) -> tuple[list[Part], list[str]]:
    """
    Return a conversation from the agents' files, and the agents that were not read.

    Files that are *opened*, by their key, are not opened again.
    """
    until = monotonic() + BUDGET
    left, seen = deque(names), set[str]()
    parts, unread = list[Part](), list[str]()
    while left:
        name = left.popleft()
        if name in seen:
            continue
        seen.add(name)
        key = site.key_of(name)
        if key is None or len(parts) >= FILES or monotonic() > until:
            unread.append(name)
            continue
        try:
            known = opened.get(key)
            with page_reader(site.path(key)) if known is None else nullcontext(known) as reader:
                parts.append(part(reader, root))
        except OncewardError:
            unread.append(name)
            continue
        left.extend(other for each in parts[-1].all for other in (each.sender, each.recipient))
    return parts, unread
