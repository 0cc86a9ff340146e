"""Instrument an agent or a postbox."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider, get_tracer

from onceward import Agent, OncewardError, Postbox
from onceward.events import DeadLettered
from onceward.hooks import Attempt, Observer, SendFacts, StepFacts, observe
from onceward.integrations.otel import names, trace_context
from onceward.integrations.otel.handling import TracedAttempt
from onceward.integrations.otel.logs import trace_ids
from onceward.integrations.otel.meters import OperationMeters
from onceward.integrations.otel.sending import TracedSend, operation
from onceward.integrations.otel.stepping import TracedStep
from onceward.message.frame import Frame
from onceward.message.log import add_fields

if TYPE_CHECKING:
    from onceward import AsyncPostbox

DEAD_LETTER = "dead_letter"


def instrument(
    target: Agent | Postbox | AsyncPostbox,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    *,
    continue_traces: bool = True,
    baggage: bool = False,
) -> Callable[[], None]:
    """
    Trace and measure each send and each attempt of a postbox, or of all that open an agent.

    An agent is instrumented before it is opened: its workers begin with the opening. Call it
    once. Providers that are None are the global ones. The span of an attempt at one message
    goes on with the trace of that message, and links to it; with *continue_traces* False,
    for agents that strangers write to, it only links. W3C baggage is carried, and taken
    over, with *baggage* only. Returns the call that ends it.
    """
    telemetry = Telemetry(tracer_provider, meter_provider, continue_traces, baggage)
    add_fields(trace_ids)
    if not isinstance(target, Agent):
        return telemetry.attach(target)
    target.at_open(telemetry.attach)
    return telemetry.detach


class Telemetry(Observer):
    """Observes postboxes and tells OpenTelemetry."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        continue_traces: bool,  # noqa: FBT001 - handed on from instrument
        baggage: bool,  # noqa: FBT001 - as above
    ) -> None:
        release = version("onceward")
        self._tracer = get_tracer(
            names.SCOPE, release, tracer_provider, schema_url=names.SCHEMA_URL
        )
        self._meters = OperationMeters(meter_provider, release)
        self._continue_traces, self._baggage = continue_traces, baggage
        self._offs: list[Callable[[], None]] = []
        self._ended = False

    def attach(self, box: Postbox | AsyncPostbox) -> Callable[[], None]:
        """Observe an open postbox; do nothing after ``detach``."""
        if self._ended:
            return self.detach
        plain = box if isinstance(box, Postbox) else box._plain
        self._offs += (
            observe(plain, self),
            plain.on(DeadLettered, lambda event: self._dead(plain, event)),
        )
        return self.detach

    def detach(self) -> None:
        """Observe nothing more."""
        self._ended = True
        while self._offs:
            self._offs.pop()()

    def sending(self, send: SendFacts) -> TracedSend:
        """Begin the span of a send."""
        return TracedSend(send, self._tracer, self._meters, baggage=self._baggage)

    def handling(self, attempt: Attempt) -> TracedAttempt:
        """Begin the span of an attempt."""
        return TracedAttempt(
            attempt,
            self._tracer,
            self._meters,
            continue_traces=self._continue_traces,
            baggage=self._baggage,
        )

    def stepping(self, step: StepFacts) -> TracedStep:
        """Begin the span of a call of a step's function."""
        return TracedStep(step, self._tracer)

    def _dead(self, box: Postbox, event: DeadLettered) -> None:
        """Make a span of a message's end as a dead letter, in the trace of the message."""
        frame = _frame(box, event)
        created = None if frame is None else trace_context.read(frame.headers)
        destination = event.agent if frame is None else frame.recipient
        attributes: dict[str, Any] = {
            **operation(DEAD_LETTER, "settle", destination),
            names.AGENT: event.agent,
            names.SESSION: event.session,
            names.TYPE: event.type,
            names.MESSAGING_MESSAGE_ID: event.message_id,
            names.REASON: event.reason,
            names.ERROR_TYPE: event.reason,
        }
        span = self._tracer.start_span(
            f"{DEAD_LETTER} {destination}",
            context=None
            if created is None or not self._continue_traces
            else trace_context.as_parent(created, trace_context.EMPTY),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=[] if created is None else [Link(created)],
        )
        span.set_status(Status(StatusCode.ERROR, event.error))
        span.end()


def _frame(box: Postbox, event: DeadLettered) -> Frame | None:
    """Return the frame of a dead letter; None if it is gone or damaged."""
    with suppress(OncewardError):
        dead = box.dead_letters.get(event.message_id, peer=event.peer)
        return None if dead is None else dead.frame
    return None
