"""
Carry a trace in the frame of a message, as CloudEvents' distributed tracing extension does.

Attributes that arrive are untrusted: one that breaks a rule counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"
PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
"""Version 00: the only one that is defined."""
MEMBER: Final = re.compile(
    r"(?:[a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
STATE_MEMBERS: Final = 32
STATE_LENGTH: Final = 512
BAGGAGE_LENGTH: Final = 8192

EMPTY: Final = Context()

_baggage = W3CBaggagePropagator()


def written(context: SpanContext) -> dict[str, str]:
    """Return the extension attributes of a span's context; none if it is invalid."""
    if not context.is_valid:
        return {}
    flags = int(context.trace_flags) & 0xFF
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"
    state = context.trace_state.to_header()
    kept = state and len(state) <= STATE_LENGTH
    return {TRACEPARENT: parent, TRACESTATE: state} if kept else {TRACEPARENT: parent}


def read(headers: Mapping[str, Any]) -> SpanContext | None:
    """Return the context that a message was created in; None if it carries none."""
    parent = headers.get(TRACEPARENT)
    found = PARENT.fullmatch(parent) if isinstance(parent, str) else None
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    context = SpanContext(
        trace_id,
        span_id,
        is_remote=True,
        trace_flags=TraceFlags(flags),
        trace_state=_state(headers.get(TRACESTATE)),
    )
    return context if context.is_valid else None


def _state(text: object) -> TraceState:
    """Return a trace state; an empty one for text that breaks a rule."""
    if not isinstance(text, str) or len(text) > STATE_LENGTH:
        return TraceState()
    members = [part.strip(" \t") for part in text.split(",") if part.strip(" \t")]
    pairs = [member.partition("=")[::2] for member in members]
    names = {name for name, _ in pairs}
    fits = len(pairs) <= STATE_MEMBERS and len(names) == len(pairs)
    return TraceState(pairs if fits and all(map(MEMBER.fullmatch, members)) else ())


def written_baggage() -> dict[str, str]:
    """Return the extension attribute of the current baggage; none if there is none."""
    found: dict[str, str] = {}
    _baggage.inject(found)
    text = found.get(BAGGAGE, "")
    return {BAGGAGE: text} if 0 < len(text) <= BAGGAGE_LENGTH and text.isprintable() else {}


def with_baggage(headers: Mapping[str, Any], context: Context) -> Context:
    """Return *context* with the baggage of a message, unchanged where there is none."""
    text = headers.get(BAGGAGE)
    if not isinstance(text, str) or len(text) > BAGGAGE_LENGTH:
        return context
    found = _baggage.extract({BAGGAGE: text}, Context())
    for name, value in baggage.get_all(found).items():
        context = baggage.set_baggage(name, value, context)
    return context


def as_parent(parent: SpanContext, context: Context) -> Context:
    """Return *context* with *parent* as its span."""
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
