"""What OpenTelemetry was told, kept in memory by its SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from onceward import Agent, AsyncPostbox, Postbox
from onceward.integrations.otel import instrument


@dataclass
class Telemetry:
    """The spans and metrics of one test."""

    spans: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        """Build the providers over the exporters."""
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)

    @property
    def tracer(self) -> Tracer:
        """The tracer of the test's own spans."""
        return self.tracer_provider.get_tracer("test")

    def observe(self, target: Agent | Postbox | AsyncPostbox, **options: Any) -> Callable[[], None]:
        """Instrument an agent or a postbox."""
        return instrument(target, self.tracer_provider, self.meter_provider, **options)

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the ended spans of a name, in the order of their ends."""
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only ended span of a name."""
        [span] = self.named(name)
        return span

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """Return by metric its points: attributes, and the sum or the count."""
        data = self.reader.get_metrics_data()
        return {
            metric.name: [
                (dict(point.attributes or {}), getattr(point, "value", getattr(point, "count", 0)))
                for point in metric.data.data_points
            ]
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Spans and metrics in memory."""
    found = Telemetry()
    yield found
    found.tracer_provider.shutdown()
    found.meter_provider.shutdown()


def span_id(span: ReadableSpan) -> int:
    """Return the id of a span."""
    return int(span.context.span_id)


def trace_id(span: ReadableSpan) -> int:
    """Return the id of a span's trace."""
    return int(span.context.trace_id)


def parent_id(span: ReadableSpan) -> int | None:
    """Return the id of a span's parent; None for a root."""
    return None if span.parent is None else int(span.parent.span_id)


def linked(span: ReadableSpan) -> list[int]:
    """Return the ids of the spans that a span links to."""
    return [int(link.context.span_id) for link in span.links]
