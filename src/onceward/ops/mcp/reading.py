"""Look at an agent's messages for a model; nothing here changes or consumes anything."""

from __future__ import annotations

from typing import Any, Final

from anyio import to_thread

from onceward import AsyncPostbox
from onceward.message.clock import Millis, SystemClock, iso
from onceward.message.redaction import Redaction, visible
from onceward.ops.mcp.advice import refused
from onceward.ops.mcp.answers import (
    Accepted,
    AgentCard,
    AgentList,
    Body,
    Conversation,
    Dead,
    DeadList,
    Entry,
    Inbox,
    Reason,
    Reasons,
    Waiting,
    about,
)
from onceward.ops.mcp.asking import ask
from onceward.ops.mcp.bodies import GLANCE, WHOLE, shown
from onceward.ops.views.beside import why_of_message
from onceward.ops.views.messages import body_part, root_of
from onceward.ops.views.waiting import Glimpse, newest, waiting
from onceward.ops.views.why import Why, agent_whys
from onceward.types import AgentInfo

REASONS: Final = 20
"""Most reasons of an agent."""
HIDE: Final = Redaction()
"""Errors of handlers may have secrets in them."""
SCHEMAS: Final = 3
"""Most agents whose schemas a list shows: a model searches for those that it writes to."""


class Desk:
    """The view that a model has of one agent's file."""

    def __init__(self, box: AsyncPostbox) -> None:
        self.box = box
        self._from_seq = 0

    async def inbox(self, session: str | None, limit: int) -> Inbox:
        """Return the messages that wait, oldest first."""
        last, first = await ask(self.box, newest), self._from_seq
        rows = await ask(
            self.box, waiting, from_seq=first, session=session, most=GLANCE, limit=limit + 1
        )
        if session is None:  # what has ended never waits again: the next look begins behind it
            self._from_seq = rows[0].seq if rows else last + 1
        messages = [_waiting(row) for row in rows[:limit]]
        return Inbox(agent=self.box.agent, messages=messages, more=len(rows) > limit)

    async def body(self, message_id: str, offset: int) -> Body:
        """Return a part of a body; raise ToolError for a message that is not in the file."""
        part = await ask(self.box, body_part, message_id, first=offset + 1, most=WHOLE)
        if part is None:
            what = f"there is no message {message_id} in this file"
            raise refused(what, "Take a message_id from check_inbox or conversation.")
        length, end = part.length or 0, offset + WHOLE
        return Body(
            message_id=message_id,
            sender=part.sender,
            body=visible(part.text or ""),
            length=length,
            next_offset=end if end < length else None,
        )

    async def conversation(self, message_id: str, limit: int) -> Conversation:
        """Return the newest messages of a conversation, oldest first."""
        root = await ask(self.box, root_of, message_id)
        page = await self.box.history(correlation_id=root, limit=limit, count=False)
        if page.has_more:  # of a long conversation only its end is read
            entries = page.messages[::-1]
        else:
            entries = await self.box.thread(message_id)
        if not entries:
            what = f"there is no message {message_id} in this file"
            raise refused(what, "Take a message_id from check_inbox, or that of a sent message.")
        shown = [_entry(each) for each in entries[-limit:]]
        return Conversation(messages=shown, more=page.has_more or len(entries) > limit)

    async def agents(self, search: str, limit: int, after: str) -> AgentList:
        """Return the other agents of the home by name."""
        found = await self.box.agents.list(search=search, limit=limit + 1, after=after)
        cards = [_card(each, schemas=len(found) <= SCHEMAS) for each in found[:limit]]
        more = cards[-1].name if len(found) > limit else None
        peers = await self.box.peers.list()
        elsewhere = [peer.name for peer in peers if peer.url and not peer.url.startswith("file:")]
        return AgentList(agents=cards, elsewhere=elsewhere, next_after=more)

    async def dead(self, limit: int) -> DeadList:
        """Return dead letters, oldest first."""
        found = await self.box.dead_letters.list(limit=limit + 1)
        return DeadList(messages=[_dead(each) for each in found[:limit]], more=len(found) > limit)

    async def why(self, message_id: str | None) -> Reasons:
        """Return why a message, or this agent, waits; raise ToolError for an unknown message."""
        now = SystemClock().now()
        if message_id is None:
            whys = await ask(self.box, agent_whys, now)
            return Reasons(reasons=[_reason(each, now) for each in whys[:REASONS]])
        found = await to_thread.run_sync(why_of_message, self.box.file.path, message_id, now)
        if found is None:
            what = f"there is no message {message_id} in this file"
            raise refused(what, "Take a message_id from check_inbox, or that of a sent message.")
        return Reasons(reasons=[_reason(found, now)])


def _reason(found: Why, now: Millis) -> Reason:
    return Reason(
        level=found.level,
        text=visible(HIDE.text(found.text(now))),
        until_at=None if found.until_at is None else iso(found.until_at),
        cure=found.cure,
    )


def _card(each: AgentInfo, *, schemas: bool) -> AgentCard:
    accepts = [
        Accepted(type=visible(one.type), body_schema=one.schema if schemas else None)
        for one in each.accepts
    ]
    return AgentCard(
        name=each.name,
        description=visible(each.description),
        capabilities=[visible(able) for able in each.capabilities],
        accepts=accepts,
        last_seen_at=iso(each.last_seen_at),
    )


def _waiting(row: Glimpse) -> Waiting:
    return about(Waiting, row, body=visible(row.text or ""), cut=(row.length or 0) > GLANCE)


def _entry(each: Any) -> Entry:
    body, cut = shown(each.body, GLANCE)
    return about(Entry, each, body=body, cut=cut)


def _dead(each: Any) -> Dead:
    body, cut = shown("" if each.frame.data_base64 else each.body, GLANCE)
    error = visible(each.last_error[:GLANCE]) if each.last_error else None
    return about(Dead, each, last_error=error, body=body, cut=cut)
