"""Make the span of a call of a step's function, inside of that of its attempt."""

from __future__ import annotations

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from onceward.hooks import StepFacts, Stepping
from onceward.integrations.otel import names
from onceward.integrations.otel.sending import class_name
from onceward.message.error_text import message_of, shown


class TracedStep(Stepping):
    """One call of a step's function and its span, which is the current one meanwhile."""

    def __init__(self, step: StepFacts, tracer: Tracer) -> None:
        self._span = tracer.start_span(
            f"step {step.name}",
            kind=SpanKind.INTERNAL,
            attributes={
                names.AGENT: step.agent,
                names.SESSION: step.session,
                names.MESSAGING_MESSAGE_ID: step.message_id,
                names.STEP: step.name,
                names.STEP_ATTEMPT: step.number,
            },
        )
        self._token = contexts.attach(trace.set_span_in_context(self._span))

    def ended(self, error: BaseException | None) -> None:
        """End the span; say what the function raised."""
        contexts.detach(self._token)
        if error is not None:
            self._span.set_attribute(names.ERROR_TYPE, class_name(type(error)))
            self._span.set_status(Status(StatusCode.ERROR, message_of(error)))
            self._span.record_exception(shown(error))
        self._span.end()
