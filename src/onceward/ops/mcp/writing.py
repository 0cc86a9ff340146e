"""Define the tools that send and settle; each is durable, and takes effect once per key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import anyio
from pydantic import Field

from onceward import AsyncPostbox
from onceward.errors import OutcomeUnknown
from onceward.message.names import quoted
from onceward.message.times import seconds
from onceward.ops.mcp.advice import advised, refused
from onceward.ops.mcp.answers import (
    Asked,
    Claim,
    Claimed,
    Extended,
    Finished,
    Published,
    Sent,
    about,
)
from onceward.ops.mcp.arrivals import Arrivals
from onceward.ops.mcp.bodies import WHOLE, shown
from onceward.ops.mcp.calls import key_of
from onceward.ops.mcp.claims import Claims, Ending, OpenClaim, Outcome
from onceward.ops.mcp.fitting import refuse_unfit
from onceward.ops.mcp.options import McpOptions
from onceward.ops.mcp.rates import SendLimit
from onceward.ops.mcp.reading import Call, Id, ReadingTools, Session, Wait

T = TypeVar("T")
To = Annotated[str, Field(description="Name of an agent, as list_agents gives it.")]
JsonBody = Annotated[
    str | dict[str, Any] | list[Any], Field(description="Text, or a JSON object or array.")
]
Key = Annotated[
    str | None,
    Field(
        max_length=200,
        description="A name of your own for this call. Repeat a failed call with the same key and "
        "the same arguments: it takes effect once.",
    ),
]
Type = Annotated[
    str | None,
    Field(description="The type that the recipient accepts, as list_agents gives it."),
]
InSession = Annotated[
    str | None, Field(description="The conversation to send in; the default one if left out.")
]
Lease = Annotated[float, Field(gt=0, le=86_400, description="Seconds.")]


class WritingTools(ReadingTools):
    """All tools of a server, within what its options allow."""

    def __init__(self, box: AsyncPostbox, arrivals: Arrivals, options: McpOptions) -> None:
        super().__init__(box, arrivals)
        self._options = options
        self._claims = Claims(box)
        self._rate = SendLimit(options.limit)

    async def send_message(
        self,
        *,
        to: To,
        body: JsonBody,
        ctx: Call,
        type: Type = None,
        session: InSession = None,
        key: Key = None,
    ) -> Sent:
        """
        Send a message to an agent; it is stored at once and delivered exactly once.

        No answer is awaited: for one, call ask. check_inbox tells if the recipient rejects it.
        """
        name = self._allowed(to, key_of("send", key, ctx))
        with advised(name, key):
            await refuse_unfit(self._box, to, type, body)
            source = self._box if session is None else self._box.session(session)
            sent = await _surely(lambda: source.send(to, body, type=type, key=name))
            return Sent(message_id=sent, to=to)

    async def ask(
        self,
        *,
        to: To,
        body: JsonBody,
        ctx: Call,
        type: Type = None,
        session: InSession = None,
        wait_seconds: Wait = 30,
        key: Key = None,
    ) -> Asked:
        """
        Send a question to an agent and wait for the answer.

        Where none comes in time, status is waiting: call get_answer with the ticket later.
        """
        name = self._allowed(to, key_of("ask", key, ctx))
        with advised(name, key):
            await refuse_unfit(self._box, to, type, body)
            source = self._box if session is None else self._box.session(session)
            ticket = await _surely(lambda: source.request(to, body, type=type, key=name))
            return await self.answer(ticket.id, wait_seconds, ctx)

    async def publish(
        self, *, topic: str, body: JsonBody, ctx: Call, type: Type = None, key: Key = None
    ) -> Published:
        """Send a message to every agent that subscribed to a topic, such as build.done."""
        name = key_of("publish", key, ctx)
        self._rate.count(f"{topic} {name}")
        with advised(name, key):
            ids = await _surely(lambda: self._box.publish(topic, body, type=type, key=name))
        return Published(topic=topic, message_ids=ids)

    async def claim_message(
        self,
        *,
        ctx: Call,
        session: Session = None,
        type: Annotated[str | None, Field(description="Only messages of this type.")] = None,
        lease_seconds: Annotated[
            Lease | None, Field(description="How long you need; the server's default if left out.")
        ] = None,
        key: Key = None,
    ) -> Claim:
        """
        Take the next message to work on; no other reader gets it until its lease ends.

        Then call finish_message. If you never do, the message comes back after the lease.
        """
        lease = seconds("lease", lease_seconds or self._options.lease)
        found = await self._claims.claim(key_of("claim", key, ctx), session, type, lease)
        return Claim(message=None if found is None else _claimed(found))

    async def extend_claim(self, *, claim: Id, lease_seconds: Lease) -> Extended:
        """Keep a claimed message for so many seconds from now."""
        await self._claims.extend(claim, lease_seconds)
        return Extended(claim=claim, lease_seconds=lease_seconds)

    async def finish_message(
        self,
        *,
        claim: Id,
        outcome: Annotated[
            Outcome,
            Field(description="done; retry: it comes again; reject: it becomes a dead letter."),
        ] = "done",
        reply: Annotated[
            JsonBody | None, Field(description="With done: the answer to the sender.")
        ] = None,
        reason: Annotated[
            str | None, Field(max_length=1000, description="Why, if not done.")
        ] = None,
        retry_after_seconds: Annotated[float | None, Field(ge=0, le=604_800)] = None,
    ) -> Finished:
        """
        End a claim: the message is done, comes again, or is rejected.

        A reply and the end are one commit. Calling it again changes nothing.
        """
        if reply is not None:
            await self._refuse_reply(claim, outcome)
        ending = Ending(outcome=outcome, reply=reply, reason=reason, after=retry_after_seconds)
        return await self._claims.finish(claim, ending)

    async def _refuse_reply(self, claim: str, outcome: Outcome) -> None:
        """Raise ToolError if the reply would not or must not be sent."""
        if outcome != "done":
            what = f"a reply does not go with {outcome}"
            raise refused(what, "Leave it out, or finish as done.")
        message = await self._claims.message(claim)
        if message is not None:
            self._allowed(message.frame.replyto or message.sender, f"reply {claim}")

    def _allowed(self, to: str, key: str) -> str:
        """Return *key* if the options allow a message to an agent now; raise ToolError if not."""
        peers = self._options.peers
        if peers is not None and to not in peers:
            what = f"this server does not write to {quoted(to)}, only to {', '.join(sorted(peers))}"
            raise refused(what, "Nothing was sent. Only the user can allow it: tell the user.")
        self._rate.count(f"{to} {key}")  # for another agent it is another message
        return key


async def _surely(send: Callable[[], Awaitable[T]]) -> T:
    """Send, and again if COMMIT raised: under the same key that is one message."""
    try:
        return await send()
    except OutcomeUnknown:
        return await send()


def _claimed(claim: OpenClaim) -> Claimed:
    message = claim.message
    body, cut = shown(message.body, WHOLE)
    return about(
        Claimed,
        message,
        claim=claim.name,
        wants_reply=message.frame.replyto is not None,
        lease_seconds=round(max(0.0, claim.ends - anyio.current_time()), 1),
        body=body,
        cut=cut,
    )
