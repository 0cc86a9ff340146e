"""Wait for what comes from outside of an agent run: a person's approval, what a webhook brings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final, Unpack, overload

from pydantic import BaseModel, JsonValue
from pydantic_ai.durable_exec import ExternalEventError, ExternalEventWaiter

from onceward import AsyncContext, AsyncPostbox, AsyncRun, Msg, Postbox, step
from onceward.errors import AnswerTimeout, InvalidArgument
from onceward.integrations.pydantic_ai.scopes import scope_here
from onceward.message.body import message_type
from onceward.message.options import SendOptions

PARTS: Final = 3


class Resolved(Msg, type="pydantic-ai.resolved"):
    """The end of a wait of an agent run; declare it: ``agent.waits(Resolved)``."""

    token: str
    """The token that the run has handed out."""
    payload: JsonValue = None
    """The value that the wait returns."""
    error: str | None = None
    """The reason why no value comes; the wait raises it."""


@overload
def resolve(
    box: Postbox, token: str, payload: JsonValue = ..., *, error: str | None = ...
) -> str: ...


@overload
def resolve(
    box: AsyncPostbox, token: str, payload: JsonValue = ..., *, error: str | None = ...
) -> Coroutine[Any, Any, str]: ...


def resolve(
    box: Postbox | AsyncPostbox, token: str, payload: JsonValue = None, *, error: str | None = None
) -> Any:
    """
    Send what an agent run waits for to the agent that waits; await it with an AsyncPostbox.

    Return the id of the message. Raises InvalidArgument for a text that is not such a token.
    """
    parts = token.split("/", PARTS - 1)
    if len(parts) != PARTS:
        msg = f"{token!r} is not a token of an agent run: pass the one that was handed to ask"
        raise InvalidArgument(msg)
    _, agent, session = parts
    return box.session(session).send(
        agent, Resolved(token=token, payload=payload, error=error), key=f"resolved:{token}"
    )


class AskContext:
    """The ``step.context`` of ``ask``: its messages are sent once, after it has returned."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, to: str, body: Any, **options: Unpack[SendOptions]) -> Awaitable[None]:
        """Send a message, as ``ctx.send`` does; a coroutine may await it."""
        if isinstance(body, BaseModel):
            options = {"type": message_type(type(body)), **options}
            body = body.model_dump(mode="json")
        self.messages.append([to, body, options])
        return _Done()


class _Done:
    def __await__(self) -> Generator[None]:
        """Return at once."""
        yield from ()


async def _asked(ask: Callable[[str], Awaitable[JsonValue]], token: str) -> Any:
    context = AskContext()
    with step._offering(context):
        answer = await ask(token)
    return {"answer": answer, "messages": context.messages}


def _send(messages: list[Any]) -> None:
    for to, body, options in messages:
        step.tx.send(to, body, **options)


class MessageWaiter(ExternalEventWaiter):
    """Waits by messages: the call of the handler ends until one comes, for days."""

    def __init__(self, context: AsyncContext | AsyncRun, agent_name: str) -> None:
        self._context, self._agent_name = context, agent_name

    async def wait(
        self,
        name: str,
        *,
        ask: Callable[[str], Awaitable[JsonValue]],
        timeout: timedelta | None,
    ) -> JsonValue:
        """
        Hand a token to *ask*, and return its answer, or what the token is resolved with.

        Raises:
            ExternalEventError: the time is over, or the token was resolved with an error.

        """
        scope = scope_here(self._context)
        step_name = scope.step_name(f"{self._agent_name}__external_event.{name}", None)
        token = _token(self._context, step_name)

        asked = await self._context.step(partial(_asked, ask), token, name=step_name)
        if asked["messages"]:
            await self._context.step(
                partial(_send, asked["messages"]), tx=True, name=f"{step_name}.send"
            )
        if asked["answer"] is not None:
            answer: JsonValue = asked["answer"]
            return answer
        return await self._come(token, timeout)

    async def _come(self, token: str, timeout: timedelta | None) -> JsonValue:
        while True:
            try:
                found = await self._context.wait(Resolved, timeout=timeout)
            except AnswerTimeout as error:
                raise ExternalEventError(f"no resolution arrived within {timeout}") from error
            if found.token != token:  # of a wait that has ended
                continue
            if found.error is not None:
                raise ExternalEventError(found.error)
            return found.payload


def _token(context: AsyncContext | AsyncRun, step_name: str) -> str:
    """Return a token that says where its resolution goes; the same at each call of the handler."""
    message = context.message
    digest = sha256(f"{message.id}\0{step_name}".encode()).hexdigest()[:32]
    return f"{digest}/{message.frame.recipient}/{context.session}"
