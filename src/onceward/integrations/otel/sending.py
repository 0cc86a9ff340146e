"""Make the producer span of a send: from composing its messages to their commit."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer

from onceward.hooks import ComposedMessage, SendFacts, Sending, SendOutcome
from onceward.integrations.otel import names, trace_context
from onceward.integrations.otel.clock import Stopwatch
from onceward.integrations.otel.meters import Attributes, OperationMeters

SEND = "send"


class TracedSend(Sending):
    """
    One send and its span, whose context all of its messages carry.

    A context that the caller put into the headers stays as it is: the span links to it.
    """

    def __init__(
        self, send: SendFacts, tracer: Tracer, meters: OperationMeters, *, baggage: bool
    ) -> None:
        self._meters, self._watch, self._count = meters, Stopwatch(), len(send.recipients)
        destination = _destination(send)
        self._attributes: Attributes = operation(SEND, SEND, destination)
        given = trace_context.read(send.headers)
        self._span = tracer.start_span(
            SEND if destination is None else f"{SEND} {destination}",
            kind=SpanKind.PRODUCER if given is None else SpanKind.CLIENT,
            attributes={**self._attributes, names.AGENT: send.agent, names.SESSION: send.session},
            links=[] if given is None else [Link(given)],
            start_time=self._watch.started_at,
        )
        if trace_context.TRACEPARENT not in send.headers:
            self.headers = trace_context.written(self._span.get_span_context())
        if baggage:
            self.headers = {**trace_context.written_baggage(), **self.headers}

    def composed(self, messages: Sequence[ComposedMessage]) -> None:
        """Name the message, or how many there are."""
        self._count = len(messages)
        if len(messages) != 1:
            self._span.set_attribute(names.MESSAGING_BATCH_MESSAGE_COUNT, len(messages))
            return
        [message] = messages
        conversation = message.correlation_id or message.id
        self._span.set_attribute(names.MESSAGING_MESSAGE_ID, message.id)
        self._span.set_attribute(names.MESSAGING_MESSAGE_CONVERSATION_ID, conversation)
        self._span.set_attribute(names.TYPE, message.type)

    def ended(self, outcome: SendOutcome, refused: type[BaseException] | None) -> None:
        """End the span; only what was committed or refused is counted."""
        end, seconds = self._watch.now()
        self._span.set_attribute(names.OUTCOME, "refused" if refused else outcome)
        if refused is not None:
            self._attributes[names.ERROR_TYPE] = class_name(refused)
            self._span.set_attribute(names.ERROR_TYPE, class_name(refused))
            self._span.set_status(Status(StatusCode.ERROR))
        if (outcome == "committed" or refused is not None) and self._count:
            self._meters.sent(self._count, seconds, self._attributes)
        self._span.end(end)


def operation(name: str, kind: str, destination: str | None) -> Attributes:
    """Return the attributes that spans and metrics of an operation share."""
    shared: Attributes = {
        names.MESSAGING_SYSTEM: names.SCOPE,
        names.MESSAGING_OPERATION_NAME: name,
        names.MESSAGING_OPERATION_TYPE: kind,
    }
    if destination is not None:
        shared[names.MESSAGING_DESTINATION_NAME] = destination
    return shared


def class_name(kind: type[BaseException]) -> str:
    """Return the full name of an exception's class; that of a builtin one is its own."""
    builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if builtin else f"{kind.__module__}.{kind.__qualname__}"


def _destination(send: SendFacts) -> str | None:
    """Return the recipient, or what several recipients share: a channel or a topic."""
    if len(set(send.recipients)) == 1:
        return str(send.recipients[0])
    return send.channel or send.topic
