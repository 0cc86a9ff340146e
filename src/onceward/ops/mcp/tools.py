"""Define the reading tools; a model reads their docstrings and descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import anyio
from mcp.server.mcpserver import Context
from pydantic import Field

from onceward.errors import AnswerTimeout, RequestFailed
from onceward.ops.mcp.advice import advised
from onceward.ops.mcp.answers import AgentList, Asked, Body, Conversation, DeadList, Inbox, Reasons
from onceward.ops.mcp.arrivals import Arrivals
from onceward.ops.mcp.bodies import WHOLE, shown
from onceward.ops.mcp.progress import how_far
from onceward.ops.mcp.reading import Desk

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

    def __init__(self, desk: Desk, arrivals: Arrivals) -> None:
        self._desk, self._arrivals, self._box = desk, arrivals, desk.box

    async def check_inbox(
        self, *, session: Session = None, limit: Limit = 10, wait_seconds: Wait = 0
    ) -> Inbox:
        """
        List the messages that wait for this agent, oldest first, without changing anything.

        With wait_seconds it waits that long for one. To work on a message call claim_message.
        """
        until = anyio.current_time() + wait_seconds
        with advised():
            found = await self._desk.inbox(session, limit)
            while not found.messages and (left := until - anyio.current_time()) > 0:
                await self._arrivals.wait(min(left, ANSWER_STEP))
                found = await self._desk.inbox(session, limit)
        return found

    async def read_message(
        self, *, message_id: Id, offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    ) -> Body:
        """Return a truncated message body from a character offset."""
        with advised():
            return await self._desk.body(message_id, offset)

    async def conversation(self, *, message_id: Id, limit: Limit = 20) -> Conversation:
        """Return the newest messages of the conversation that a message belongs to."""
        with advised():
            return await self._desk.conversation(message_id, limit)

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
        with advised():
            return await self._desk.agents(search, limit, after)

    async def dead_letters(self, *, limit: Limit = 20) -> DeadList:
        """
        List messages that ended badly and are kept, with the reason.

        Only the user replays them: onceward dead replay ID.
        """
        with advised():
            return await self._desk.dead(limit)

    async def why(self, *, message_id: Id | None = None) -> Reasons:
        """Say why a message waits, sent or received; without an id, what holds this agent back."""
        with advised():
            return await self._desk.why(message_id)

    async def get_answer(self, *, ticket: Id, ctx: Call, wait_seconds: Wait = 0) -> Asked:
        """
        Return the answer to a question that was asked before, also before a restart.

        With wait_seconds it waits that long. An answer may be fetched again.
        """
        with advised():
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
