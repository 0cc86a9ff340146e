"""Define the reading tools, which change nothing; a model reads their docstrings."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import anyio
from anyio import to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from onceward import AsyncPostbox
from onceward.errors import AnswerTimeout, RequestFailed
from onceward.message.clock import Millis, SystemClock, iso
from onceward.message.redaction import Redaction, visible
from onceward.ops.mcp.advice import refused
from onceward.ops.mcp.answers import (
    Accepted,
    AgentCard,
    AgentList,
    Asked,
    Body,
    Conversation,
    Dead,
    DeadList,
    Entry,
    FailedSend,
    Inbox,
    Reason,
    Reasons,
    Waiting,
    about,
)
from onceward.ops.mcp.arrivals import Arrivals
from onceward.ops.mcp.asking import ask
from onceward.ops.mcp.bodies import GLANCE, WHOLE, shown
from onceward.ops.mcp.progress import how_far
from onceward.ops.views.beside import why_of_message
from onceward.ops.views.messages import body_part, root_of
from onceward.ops.views.waiting import FailedSent, Glimpse, failed_sends, newest, waiting
from onceward.ops.views.why import Why, agent_whys
from onceward.types import AgentInfo

DAY: Final = 86_400_000
"""Milliseconds for which a rejected message is listed."""
REASONS: Final = 20
"""Most reasons of an agent."""
HIDE: Final = Redaction()
"""Errors of handlers may have secrets in them."""
SCHEMAS: Final = 3
"""Most agents whose schemas a list shows: a model searches for those that it writes to."""
ANSWER_STEP: Final = 2.0
"""Seconds between two reports of progress."""
Call: TypeAlias = Context[Any, Any]
Id = Annotated[str, Field(max_length=256)]
Session = Annotated[
    str | None, Field(description="A conversation by name; default: all conversations.")
]
Limit = Annotated[int, Field(ge=1, le=50)]
Wait = Annotated[float, Field(ge=0, le=600, description="Seconds to wait.")]


class ReadingTools:
    """The tools of a read-only server."""

    def __init__(self, box: AsyncPostbox, arrivals: Arrivals) -> None:
        self._box, self._arrivals, self._from_seq = box, arrivals, 0

    async def check_inbox(
        self, *, session: Session = None, limit: Limit = 10, wait_seconds: Wait = 0
    ) -> Inbox:
        """
        List the messages that wait for this agent, oldest first, without changing anything.

        It also lists own messages that a recipient rejected.

        With wait_seconds it waits that long for one. To work on a message call claim_message.
        """
        until = anyio.current_time() + wait_seconds
        found = await self._inbox(session, limit)
        while not found.messages and (left := until - anyio.current_time()) > 0:
            await self._arrivals.wait(min(left, ANSWER_STEP))
            found = await self._inbox(session, limit)
        return found

    async def _inbox(self, session: str | None, limit: int) -> Inbox:
        last, first = await ask(self._box, newest), self._from_seq
        rows = await ask(
            self._box, waiting, from_seq=first, session=session, most=GLANCE, limit=limit + 1
        )
        if session is None:  # what has ended never waits again: the next look begins behind it
            self._from_seq = rows[0].seq if rows else last + 1
        messages = [_waiting(row) for row in rows[:limit]]
        lost = await ask(self._box, failed_sends, since=SystemClock().now() - DAY)
        failed = [_failed(each) for each in lost]
        more = len(rows) > limit
        return Inbox(agent=self._box.agent, messages=messages, more=more, failed=failed)

    async def read_message(
        self, *, message_id: Id, offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    ) -> Body:
        """Return a truncated message body from a character offset."""
        part = await ask(self._box, body_part, message_id, first=offset + 1, most=WHOLE)
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

    async def conversation(self, *, message_id: Id, limit: Limit = 20) -> Conversation:
        """Return the newest messages of the conversation that a message belongs to."""
        root = await ask(self._box, root_of, message_id)
        page = await self._box.history(correlation_id=root, limit=limit, count=False)
        if page.has_more:  # of a long conversation only its end is read
            entries = page.messages[::-1]
        else:
            entries = await self._box.thread(message_id)
        if not entries:
            raise _unknown(message_id)
        listed = [_entry(each) for each in entries[-limit:]]
        return Conversation(messages=listed, more=page.has_more or len(entries) > limit)

    async def list_agents(
        self,
        *,
        search: Annotated[str, Field(description="Words in name or description.")] = "",
        limit: Limit = 50,
        after: Annotated[str, Field(description="next_after of the page before.")] = "",
    ) -> AgentList:
        """
        List the agents that messages can be sent to: what they do, and which types they accept.

        A list of up to 3 agents has the JSON schemas of their bodies: search by name.
        """
        found = await self._box.agents.list(search=search, limit=limit + 1, after=after)
        cards = [_card(each, schemas=len(found) <= SCHEMAS) for each in found[:limit]]
        more = cards[-1].name if len(found) > limit else None
        peers = await self._box.peers.list()
        elsewhere = [peer.name for peer in peers if peer.url and not peer.url.startswith("file:")]
        return AgentList(agents=cards, elsewhere=elsewhere, next_after=more)

    async def dead_letters(self, *, limit: Limit = 20) -> DeadList:
        """
        List messages that ended badly and are kept, with the reason, newest first.

        Only the user replays them: onceward dead replay ID.
        """
        found = await self._box.dead_letters.list(limit=limit + 1)
        return DeadList(messages=[_dead(each) for each in found[:limit]], more=len(found) > limit)

    async def why(self, *, message_id: Id | None = None) -> Reasons:
        """Say why a message waits, sent or received; without an id, what holds this agent back."""
        now = SystemClock().now()
        if message_id is None:
            whys = await ask(self._box, agent_whys, now)
            return Reasons(reasons=[_reason(each, now) for each in whys[:REASONS]])
        found = await to_thread.run_sync(why_of_message, self._box.file.path, message_id, now)
        if found is None:
            raise _unknown(message_id)
        return Reasons(reasons=[_reason(found, now)])

    async def get_answer(self, *, ticket: Id, ctx: Call, wait_seconds: Wait = 0) -> Asked:
        """
        Return the answer to a question that was asked before, also before a restart.

        With wait_seconds it waits that long. An answer may be fetched again.
        """
        return await self.answer(ticket, wait_seconds, ctx)

    async def answer(self, ticket: str, wait_seconds: float, ctx: Call) -> Asked:
        """Wait for the answer to a ticket, and report progress meanwhile."""
        begun = anyio.current_time()
        while True:
            waited = anyio.current_time() - begun
            step = max(0.0, min(ANSWER_STEP, wait_seconds - waited))
            try:
                found = await self._box.result(ticket, reply=object, timeout=step)
            except AnswerTimeout as error:
                if waited + step >= wait_seconds:
                    return Asked(status="waiting", ticket=ticket)
                parts = [f"the question is {error.reason}", await how_far(self._box, ticket)]
                text = "; ".join([*filter(None, parts), "no answer yet"])
                await ctx.report_progress(waited + step, wait_seconds, text)
            except RequestFailed as error:
                return Asked(status="failed", ticket=ticket, reason=shown(error.reason, WHOLE)[0])
            else:
                text, cut = shown(found, WHOLE)
                return Asked(status="answered", ticket=ticket, answer=text, cut=cut)


def _unknown(message_id: str) -> ToolError:
    what = f"there is no message {message_id} in this file"
    return refused(what, "Take a message_id from check_inbox, or that of a sent message.")


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


def _failed(each: FailedSent) -> FailedSend:
    return about(FailedSend, each)


def _entry(each: Any) -> Entry:
    body, cut = shown(each.body, GLANCE)
    return about(Entry, each, body=body, cut=cut)


def _dead(each: Any) -> Dead:
    body, cut = shown("" if each.frame.data_base64 else each.body, GLANCE)
    error = visible(each.last_error[:GLANCE]) if each.last_error else None
    return about(Dead, each, last_error=error, body=body, cut=cut)
