"""Look at an agent's messages for a model; nothing here changes or consumes anything."""

from __future__ import annotations

from typing import Any, Final

from onceward import AsyncPostbox
from onceward.message.body import decode
from onceward.message.clock import iso
from onceward.message.frame import Frame
from onceward.message.visible import visible
from onceward.ops.mcp.advice import refused
from onceward.ops.mcp.answers import (
    AgentCard,
    AgentList,
    Body,
    Conversation,
    Dead,
    DeadList,
    Entry,
    Inbox,
    Waiting,
)
from onceward.ops.mcp.bodies import GLANCE, WHOLE, shown
from onceward.ops.mcp.queries import BODY, NEWEST, ROOT, WAITING

COLUMNS: Final = (
    "seq", "message_id", "sender", "session", "type", "topic", "state", "attempts", "received_at",
    "correlation_id", "body", "length",
)  # fmt: skip


class Desk:
    """The view that a model has of one agent's file."""

    def __init__(self, box: AsyncPostbox) -> None:
        self.box = box
        self._from_seq = 0

    async def inbox(self, session: str | None, limit: int) -> Inbox:
        """Return the messages that wait, oldest first."""
        [newest] = await self.box.query(NEWEST) or [(0,)]
        asked = {"session": session, "limit": limit + 1, "most": GLANCE}
        rows = await self.box.query(WAITING, asked | {"from_seq": self._from_seq})
        if session is None:  # what has ended never waits again: the next look begins behind it
            self._from_seq = rows[0][0] if rows else newest[0] + 1
        messages = [_waiting(dict(zip(COLUMNS, row, strict=True))) for row in rows[:limit]]
        return Inbox(agent=self.box.agent, messages=messages, more=len(rows) > limit)

    async def body(self, message_id: str, offset: int) -> Body:
        """Return a part of a body; raise ToolError for a message that is not in the file."""
        asked = {"id": message_id, "from_char": offset + 1, "most": WHOLE}
        rows = await self.box.query(BODY, asked)
        if not rows:
            what = f"there is no message {message_id} in this file"
            raise refused(what, "Take a message_id from check_inbox or conversation.")
        sender, text, length = rows[0]
        end = offset + WHOLE
        return Body(
            message_id=message_id,
            sender=sender,
            body=visible(text or ""),
            length=length or 0,
            next_offset=end if end < (length or 0) else None,
        )

    async def conversation(self, message_id: str, limit: int) -> Conversation:
        """Return the newest messages of a conversation, oldest first."""
        [(root,)] = await self.box.query(ROOT, {"id": message_id}) or [(message_id,)]
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
        cards = [
            AgentCard(
                name=each.name,
                description=visible(each.description),
                capabilities=[visible(able) for able in each.capabilities],
                last_seen_at=iso(each.last_seen_at),
            )
            for each in found[:limit]
        ]
        more = cards[-1].name if len(found) > limit else None
        peers = await self.box.peers.list()
        elsewhere = [peer.name for peer in peers if peer.url and not peer.url.startswith("file:")]
        return AgentList(agents=cards, elsewhere=elsewhere, next_after=more)

    async def dead(self, limit: int) -> DeadList:
        """Return dead letters, oldest first."""
        found = await self.box.dead_letters.list(limit=limit + 1)
        return DeadList(messages=[_dead(each) for each in found[:limit]], more=len(found) > limit)


def _waiting(row: dict[str, Any]) -> Waiting:
    length = row.pop("length") or 0
    del row["seq"], row["correlation_id"]
    text = visible(row.pop("body") or "")
    received_at = iso(row.pop("received_at"))
    return Waiting(**row, received_at=received_at, body=text, cut=length > GLANCE)


def _entry(each: Any) -> Entry:
    body, cut = shown(each.body, GLANCE)
    return Entry(
        message_id=each.id,
        sender=each.sender,
        recipient=each.recipient,
        type=each.type,
        state=each.state,
        at=iso(each.at),
        body=body,
        cut=cut,
    )


def _dead(each: Any) -> Dead:
    frame = Frame.parse(each.frame)
    body, cut = shown(decode(frame.data, None, None) if not frame.data_base64 else "", GLANCE)
    return Dead(
        message_id=each.id,
        sender=each.sender,
        recipient=each.recipient,
        type=each.type,
        reason=each.reason,
        last_error=visible(each.last_error[:GLANCE]) if each.last_error else None,
        attempts=each.attempts,
        dead_at=iso(each.dead_at),
        body=body,
        cut=cut,
    )
