"""Report the progress of a question's recipient to the waiting client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import anyio.to_thread

from onceward import AsyncPostbox, Postbox
from onceward.errors import OncewardError
from onceward.file.read_only import opened
from onceward.message.redaction import visible
from onceward.ops.mcp.asking import BoxSource
from onceward.ops.mcp.bodies import shown
from onceward.ops.views.messages import FoundMessage, message

LONGEST: Final = 0.5
"""Seconds that one statement on the recipient's file may take."""
MOST: Final = 200
"""Maximum characters of the handler's own report."""


async def how_far(box: AsyncPostbox, ticket: str) -> str:
    """
    Return the progress of a question's handler, as text; empty if unknown.

    Its steps and its output are read if the recipient's file is beside ours.
    """
    return await anyio.to_thread.run_sync(_how_far, box._plain, ticket)


def _how_far(box: Postbox, ticket: str) -> str:
    try:
        said = box.progress_of(ticket)
        found = _at_recipient(box, ticket)
    except (
        OncewardError
    ):  # the file is busy, missing, or of another version: the answer may still come
        return ""
    parts = [] if said is None else [shown(said, MOST)[0]]
    return "; ".join([*parts, *_parts(found)])


def _at_recipient(box: Postbox, ticket: str) -> FoundMessage:
    """Return the recipient's stored data about a question; None if its file is elsewhere."""
    sent = message(BoxSource(box), ticket, window=0).sent
    ours = box.file.path
    path = None if sent is None else ours.with_name(f"{sent.recipient}{ours.suffix}")
    if path is None or not path.exists():
        return FoundMessage()
    with opened(path, wait=LONGEST, longest=LONGEST) as reader:
        return message(reader, ticket, window=0)


def _parts(found: FoundMessage) -> Iterator[str]:
    done = [each for each in found.steps if each.state == "done"]
    if done:
        yield f"{len(done)} steps done, the last is {visible(done[-1].name)}"
    for each in found.steps:
        if each.state in {"waiting", "retrying"}:
            yield f"{visible(each.name)} is {each.state}"
    chunks = sum(each.chunks for each in found.streams)
    if chunks:
        yield f"{chunks} chunks of output, {sum(each.bytes for each in found.streams)} bytes"
