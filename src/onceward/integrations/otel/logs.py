"""Name the current trace on log lines."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from opentelemetry import trace


def trace_ids() -> dict[str, str]:
    """Return the ids of the current trace and span; none if there is no span."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def add_trace_ids(
    logger: object, method: str, fields: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add ``trace_id`` and ``span_id`` to a line: a processor for ``structlog.configure``."""
    del logger, method
    fields.update(trace_ids())
    return fields
