"""Put out what a model streams, for readers that follow the message."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)

from onceward import AsyncContext, AsyncRun

Chunks = Callable[[ModelResponseStreamEvent], object]
"""Returns the chunk that an event of a model is put out as; None for none."""


def text(event: ModelResponseStreamEvent) -> str | None:
    """Return the text that an event of a model adds to its answer."""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content or None
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta or None
    return None


def putting_out(
    context: AsyncContext | AsyncRun, chunks: Chunks, then: EventStreamHandler[Any] | None
) -> EventStreamHandler[Any]:
    """Return a handler of a model's events that puts chunks out, and passes all events on."""

    async def put_out(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
        # Inside of the step: its stream begins again with the step, and is stored with it.
        stream = context.stream()

        async def seen() -> AsyncIterator[Any]:
            async for event in events:
                chunk = chunks(event)
                if chunk is not None:
                    await stream.append(chunk)
                yield event

        if then is not None:
            await then(ctx, seen())
            return
        async for _ in seen():
            pass

    return put_out
