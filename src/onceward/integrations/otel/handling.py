"""Make the consumer span of an attempt: a handler's call or a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from onceward.errors import Drop, Paused
from onceward.hooks import Attempt, Handling
from onceward.integrations.otel import names, trace_context
from onceward.integrations.otel.clock import Stopwatch
from onceward.integrations.otel.meters import OperationMeters
from onceward.integrations.otel.sending import class_name, operation
from onceward.message.error_text import message_of, shown
from onceward.message.frame import Frame
from onceward.message.vocabulary import Dead, Done, RetryAt, Settlement, Waits

PROCESS = "process"


class TracedAttempt(Handling):
    """
    One attempt and its span, which is the current one while the handler runs.

    It links to the context in which each message was created; where there are several, what
    is said of one of them is on its link. The context of a single message is its parent, too,
    unless configured to begin its own trace.
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
        self._frames = attempt.frames
        self._attributes = operation(PROCESS, PROCESS, attempt.agent)
        within = contexts.get_current()
        if baggage and len(self._frames) == 1:
            within = trace_context.with_baggage(self._frames[0].headers, within)
        parent, links = _placed(self._frames, within, continue_traces=continue_traces)
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
        found = max(settlements, key=_weight, default=None)
        failed = _failure(found, error)
        if failed is not None:
            self._attributes[names.ERROR_TYPE] = failed
            self._span.set_attribute(names.ERROR_TYPE, failed)
            self._span.set_status(Status(StatusCode.ERROR, _text(found, error)))
            if error is not None:
                self._span.record_exception(shown(error), timestamp=end)
        if found is not None:
            self._span.set_attribute(names.OUTCOME, _outcome(found))
        for frame, settlement in zip(self._frames, settlements, strict=False):
            of_one = _message(frame) if len(self._frames) != 1 else {}
            _tell(self._span, settlement, of_one, end)
        self._meters.handled(len(self._frames), seconds, self._attributes)
        self._span.end(end)


def _placed(
    frames: Sequence[Frame], within: Context, *, continue_traces: bool
) -> tuple[Context, list[Link]]:
    """Return the context that a span begins in, and its links."""
    created = [(frame, trace_context.read(frame.headers)) for frame in frames]
    if len(frames) != 1:
        return within, [Link(each, _message(frame)) for frame, each in created if each is not None]
    [(_, only)] = created
    links = [] if only is None else [Link(only)]
    if only is None or not continue_traces:
        return within, links
    ambient = trace.get_current_span(within).get_span_context()
    if ambient.is_valid:
        links.append(Link(ambient))
    return trace_context.as_parent(only, within), links


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
    return found | _message(attempt.frames[0])


def _message(frame: Frame) -> dict[str, str]:
    """Return what is said of one message."""
    return {
        names.MESSAGING_MESSAGE_ID: frame.id,
        names.MESSAGING_MESSAGE_CONVERSATION_ID: frame.correlationid or frame.id,
        names.TYPE: frame.type,
    }


def _failure(found: Settlement | None, error: BaseException | None) -> str | None:
    """Return the kind of failure: the class of what was raised, or the reason; None for none."""
    if isinstance(error, Drop | Paused):
        return None
    if error is not None:
        return class_name(type(error))
    if isinstance(found, Dead):
        return found.reason
    return "_OTHER" if isinstance(found, RetryAt) and found.counted else None


def _weight(found: Settlement) -> int:
    """Return how bad the end of a message is: a span that has several tells the worst."""
    match found:
        case Dead():
            return 3
        case RetryAt(counted=counted):
            return 1 + counted
        case Done():
            return 0


def _text(found: Settlement | None, error: BaseException | None) -> str:
    if isinstance(found, Dead | RetryAt):
        return found.error
    return "" if error is None else message_of(error)


def _outcome(found: Settlement) -> str:
    """Return how a message went on."""
    match found:
        case Done(outcome=outcome):
            return outcome
        case Waits():
            return "waiting"
        case RetryAt():
            return "retry"
        case Dead():
            return "dead"


def _tell(span: Span, found: Settlement, of_one: Mapping[str, str], at: int) -> None:
    """Say what becomes of a message that is not done and waits for no reply."""
    match found:
        case RetryAt(due_at=due_at) if not isinstance(found, Waits):
            span.add_event("retry", {**of_one, names.DUE_AT: due_at}, at)
        case Dead(reason=reason):
            span.add_event("dead_letter", {**of_one, names.REASON: reason}, at)
