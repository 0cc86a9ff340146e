"""Keep the messages that models have claimed, and settle each once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import anyio

from onceward import AsyncMessage, AsyncPostbox
from onceward.errors import InvalidArgument, LeaseLost
from onceward.ops.mcp.advice import refused
from onceward.ops.mcp.answers import Finished

OPEN: Final = 100
"""Maximum claimed messages: stops a model that claims without finishing."""
REMEMBERED: Final = 10_000
"""Maximum ended claims that are remembered for repeated calls."""

LONGEST: Final = 86_400.0
"""Maximum seconds of a lease."""

Outcome = Literal["done", "retry", "reject"]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The requested end of a claim."""

    outcome: Outcome
    reply: Any = None
    reason: str | None = None
    after: float | None = None
    """Seconds until the message may be claimed again."""


@dataclass
class OpenClaim:
    """A claimed message, the end of its lease by the loop's clock, and its result."""

    name: str
    message: AsyncMessage[Any]
    ends: float
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    result: Finished | None = None


class Claims:
    """The claims of all clients of one server; the leases themselves are in the file."""

    def __init__(self, box: AsyncPostbox) -> None:
        self._box = box
        self._open: OrderedDict[str, OpenClaim] = OrderedDict()
        self._ended: OrderedDict[str, Finished] = OrderedDict()
        self._by_key: dict[str, str] = {}
        self._claiming = anyio.Lock()
        """Serialises calls, so that a repeated call sees the first one's claim."""

    async def claim(
        self, key: str, session: str | None, type: str | None, seconds: float
    ) -> OpenClaim | None:
        """
        Lease the next message; a repeated call returns the same one; None if there is none.

        It is not cancelled halfway, so no message stays leased for *seconds* without a claim.
        """
        async with self._claiming:
            self._drop_over()
            known = self._open.get(self._by_key.get(key, ""))
            return known or await self._claim_next(key, session, type, seconds)

    async def _claim_next(
        self, key: str, session: str | None, type: str | None, seconds: float
    ) -> OpenClaim | None:
        if len(self._open) >= OPEN:
            what = f"{OPEN} messages are already claimed"
            raise refused(what, "Finish some of them first.")
        with anyio.CancelScope(shield=True):
            source = self._box if session is None else self._box.session(session)
            message = await source.receive(type)
            if message is None:
                return None
            await message.extend(seconds)
            name, ends = await message.detach(), anyio.current_time() + seconds
            made = OpenClaim(name, await self._attached(name), ends)
            self._open[made.name] = made
            self._by_key[key] = made.name
        return made

    async def extend(self, name: str, seconds: float) -> None:
        """Keep a claimed message for *seconds* from now; raise ToolError or LeaseLost."""
        found = await self._found(name)
        try:
            await found.message.extend(seconds)
        except LeaseLost:
            self._forget(found)
            raise
        found.ends = anyio.current_time() + seconds

    async def finish(self, name: str, ending: Ending) -> Finished:
        """Settle a claim once; a repeated settlement returns the first result."""
        known = self._ended.get(name)
        if known is None:
            claim = await self._found(name)
            async with claim.lock:
                if claim.result is None:
                    return await self._end(claim, ending)
                known = claim.result
        if known.outcome != ending.outcome:
            what = f"the claim was already finished as {known.outcome}"
            raise refused(what, "Nothing was changed: continue with other work.")
        return known.model_copy(update={"repeated": True})

    async def message(self, name: str) -> AsyncMessage[Any] | None:
        """Return the message of an open claim; None if it is already finished."""
        return None if name in self._ended else (await self._found(name)).message

    async def _end(self, claim: OpenClaim, ending: Ending) -> Finished:
        try:
            with anyio.CancelScope(shield=True):  # remember the committed result
                reply_id = await self._settle(claim.message, ending)
        except LeaseLost:
            self._forget(claim)
            raise
        result = Finished(message_id=claim.message.id, outcome=ending.outcome, reply_id=reply_id)
        claim.result = self._ended[claim.name] = result
        self._forget(claim)
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        return result

    async def _settle(self, message: AsyncMessage[Any], ending: Ending) -> str | None:
        if ending.outcome == "retry":
            await message.retry(ending.after, ending.reason or "its reader put it back")
        elif ending.outcome == "reject":
            await message.reject(ending.reason or "its reader rejected it")
        elif ending.reply is None:
            await message.ack()
        else:
            async with self._box.begin():  # the reply and the mark are one commit
                reply_id: str = await message.reply(ending.reply)
                await message.ack()
            return reply_id
        return None

    async def _found(self, name: str) -> OpenClaim:
        """Return an open claim; a claim of an earlier server is found in the file."""
        found = self._open.get(name)
        if found is None:
            try:
                message = await self._attached(name)
            except (InvalidArgument, LeaseLost):
                what = "there is no such open claim: it was finished, or its lease ended"
                cure = "Nothing was changed. Call claim_message: a message that waits comes again."
                raise refused(what, cure) from None
            found = self._open[name] = OpenClaim(name, message, anyio.current_time() + LONGEST)
        return found

    async def _attached(self, name: str) -> AsyncMessage[Any]:
        """Return the message of a claim; its lease, proved by its name, survives a server."""
        found = await self._box.attach(name)
        assert found is not None  # noqa: S101 - otherwise its lease is lost
        return found

    def _drop_over(self) -> None:
        """Forget claims whose leases have ended: others may get their messages."""
        now = anyio.current_time()
        for claim in [each for each in self._open.values() if each.ends < now]:
            if not claim.lock.locked():
                self._forget(claim)

    def _forget(self, claim: OpenClaim) -> None:
        self._open.pop(claim.name, None)
        self._by_key = {key: name for key, name in self._by_key.items() if name in self._open}
