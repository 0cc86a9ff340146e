"""Make the consumer span of an attempt: a handler's call or a run."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer

from onceward.errors import Drop
from onceward.hooks import Attempt, Handling
from onceward.integrations.otel import names, trace_context
from onceward.integrations.otel.clock import Stopwatch
from onceward.integrations.otel.meters import OperationMeters
from onceward.integrations.otel.sending import class_name, operation
from onceward.model.states import Dead, Done, RetryAt, Settlement

PROCESS = "process"


class TracedAttempt(Handling):
    """
    One attempt and its span, which is the current one while the handler runs.

    It links to the context in which each message was created. The context of a single
    message is its parent, too, unless it is told to begin a trace of its own.
    """

    def __init__(
        self,
        attempt: Attempt,
        tracer: Tracer,
        meters: OperationMeters,
        *,
        continue_traces: bool,
        baggage: bool,
    ) -> None:
        self._meters, self._watch = meters, Stopwatch()
        self._count = len(attempt.frames)
        self._attributes = operation(PROCESS, PROCESS, attempt.agent)
        created = [trace_context.read(frame.headers) for frame in attempt.frames]
        within = contexts.get_current()
        if baggage and self._count == 1:
            within = trace_context.with_baggage(attempt.frames[0].headers, within)
        parent, links = _placed(created, within, continue_traces=continue_traces)
        self._span = tracer.start_span(
            f"{PROCESS} {attempt.agent}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={**self._attributes, **_described(attempt)},
            links=links,
            start_time=self._watch.started_at,
        )
        self._token = contexts.attach(trace.set_span_in_context(self._span, parent))

    def ended(self, settlements: Sequence[Settlement], error: BaseException | None) -> None:
        """End the span; say how the attempt ended and what becomes of the messages."""
        contexts.detach(self._token)
        end, seconds = self._watch.now()
        found = next((each for each in settlements if not isinstance(each, Done)), None)
        failed = _failure(found, error)
        if failed is not None:
            self._attributes[names.ERROR_TYPE] = failed
            self._span.set_attribute(names.ERROR_TYPE, failed)
            self._span.set_status(Status(StatusCode.ERROR, _text(found, error)))
            if error is not None:
                self._span.record_exception(error, timestamp=end)
        _tell(self._span, found or next(iter(settlements), None), end)
        self._meters.handled(self._count, seconds, self._attributes)
        self._span.end(end)


def _placed(
    created: Sequence[SpanContext | None], within: Context, *, continue_traces: bool
) -> tuple[Context, list[Link]]:
    """Return the context that a span begins in, and its links."""
    known = {(each.trace_id, each.span_id): each for each in created if each is not None}
    links = [Link(each) for each in known.values()]
    ambient = trace.get_current_span(within).get_span_context()
    if not (continue_traces and len(created) == 1 and created[0] is not None):
        return within, links
    if ambient.is_valid:
        links.append(Link(ambient))
    return trace_context.as_parent(created[0], within), links


def _described(attempt: Attempt) -> dict[str, str | int]:
    """Return what is said of an attempt on its span alone."""
    found: dict[str, str | int] = {
        names.AGENT: attempt.agent,
        names.SESSION: attempt.session,
        names.ATTEMPT: attempt.number,
    }
    if attempt.run_id is not None:
        found[names.RUN_ID] = attempt.run_id
    if len(attempt.frames) != 1:
        return found | {names.MESSAGING_BATCH_MESSAGE_COUNT: len(attempt.frames)}
    [frame] = attempt.frames
    return found | {
        names.MESSAGING_MESSAGE_ID: frame.id,
        names.MESSAGING_MESSAGE_CONVERSATION_ID: frame.correlationid or frame.id,
        names.TYPE: frame.type,
    }


def _failure(found: Settlement | None, error: BaseException | None) -> str | None:
    """Return the kind of failure: the class of what was raised, or the reason; None for none."""
    if isinstance(found, RetryAt) and not found.counted:
        return None  # paused: it goes on later
    if found is None and error is not None and isinstance(error, Drop):
        return None
    if error is not None:
        return class_name(type(error))
    if isinstance(found, Dead):
        return found.reason
    return None if found is None else "_OTHER"


def _text(found: Settlement | None, error: BaseException | None) -> str:
    return found.error if isinstance(found, Dead | RetryAt) else str(error)


def _tell(span: Span, found: Settlement | None, at: int) -> None:
    """Say what becomes of the messages."""
    match found:
        case Done(outcome=outcome):
            span.set_attribute(names.OUTCOME, outcome)
        case RetryAt(due_at=due_at):
            span.set_attribute(names.OUTCOME, "retry")
            span.add_event("retry", {names.DUE_AT: due_at}, at)
        case Dead(reason=reason):
            span.set_attribute(names.OUTCOME, "dead")
            span.add_event("dead_letter", {names.REASON: reason}, at)
