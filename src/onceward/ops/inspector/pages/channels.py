"""Show channels and mailboxes of the homes, with their members and readers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import OncewardError
from onceward.file.read_only import FileReader, opened_any
from onceward.message.mailbox import MailboxInfo
from onceward.ops.inspector.refresher import LONGEST, Snapshot, page_reader
from onceward.ops.inspector.site import NOT_FOUND, Site, site_of
from onceward.ops.views import directory
from onceward.ops.views.channel import LOOK, waits_in_channel
from onceward.ops.views.directory import ListedChannel
from onceward.ops.views.lists import MailboxReader

ROWS: Final = 100
MEMBERS: Final = 20
"""Maximum members of a channel whose files are checked for unreceived messages."""


def channels(request: Request) -> Response:
    """Answer with the page of all channels and mailboxes."""
    site, after = site_of(request), request.query_params
    listed, boxes = list[ListedChannel](), list[MailboxInfo]()
    for path in site.targets.directories():
        with directory_reader(path) as reader:
            listed += directory.channels(reader, after=after.get("channel", ""), limit=ROWS + 1)
            boxes += directory.mailboxes(reader, after=after.get("mailbox", ""), limit=ROWS + 1)
    readers = [(each, one) for each in site.refresher.snapshots.values() for one in each.readers]
    return site.html(
        request,
        "channels.html",
        channels=listed,
        mailboxes=boxes,
        readers=sorted(readers, key=_by_mailbox)[: ROWS + 1],
        received={each.key: _received(each) for each, _ in readers},
        most=ROWS,
    )


def _by_mailbox(pair: tuple[Snapshot, MailboxReader]) -> tuple[str, str, str]:
    found, reader = pair
    return (reader.mailbox, found.agent, reader.name)


def _received(found: Snapshot) -> int:
    return found.overview.stats["received"] if found.overview else 0


def channel(request: Request) -> Response:
    """Answer with the page of one channel: its members, and each one's unreceived messages."""
    site, name = site_of(request), str(request.path_params["name"])
    for path in site.targets.directories():
        with directory_reader(path) as reader:
            one = directory.channel(reader, name)
            if one is None:
                continue
            after = request.query_params.get("member", "")
            members = directory.members(reader, name, after=after, limit=ROWS + 1)
            subscriptions = directory.subscriptions(reader, name, ROWS + 1)
        waiting = {each.agent: _waiting(site, each.agent, name) for each in members[:MEMBERS]}
        return site.html(
            request,
            "channel.html",
            one=one,
            members=members,
            subscriptions=subscriptions,
            waiting=waiting,
            look=LOOK,
            most=ROWS,
        )
    raise HTTPException(NOT_FOUND, f"there is no channel {name} here")


def _waiting(site: Site, agent: str, channel_name: str) -> int | None:
    """Return how many messages of a channel a member has not received; None if unknown."""
    key = site.key_of(agent)
    if key is None:
        return None
    try:
        with page_reader(site.path(key)) as reader:
            return waits_in_channel(reader, channel_name)
    except OncewardError:  # the page of the agent shows why
        return None


@contextmanager
def directory_reader(path: Path) -> Iterator[FileReader]:
    """Open the directory of a home for a page."""
    with opened_any(path, longest=LONGEST) as reader:
        yield reader
