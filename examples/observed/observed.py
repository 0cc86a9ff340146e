"""
An order that fails once and is paid then, as logs, metrics and traces of one run show it.

    python3 examples/observed/observed.py [FOLDER]

It needs ``onceward[otel]`` and ``opentelemetry-sdk``. The SDK's exporters keep everything in
memory; an application exports to its collector instead, and changes nothing else.
"""

import sys
import tempfile
from pathlib import Path

import structlog
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import LogCapture

from onceward import Agent, Context, Msg, Postbox, Retry
from onceward.events import Retried
from onceward.hooks import LogHook
from onceward.integrations.otel import add_trace_ids, instrument


class Order(Msg, type="order.placed"):
    """An order to be paid."""

    cents: int


class Paid(Msg, type="order.paid"):
    """The order is paid."""

    cents: int


log = structlog.get_logger("billing")
billing = Agent("billing")


@billing.on(Order)
def pay(order: Order, ctx: Context) -> Paid:
    """Pay at the second attempt: the bank does not answer at first."""
    log.info("asking the bank", message_id=ctx.message.id, attempt=ctx.message.attempt)
    if ctx.message.attempt == 1:
        raise Retry(after=0.01)
    return Paid(cents=order.cents)


def run(folder: Path, tracers: TracerProvider, meters: MeterProvider) -> None:
    """Let the shop ask billing to be paid, within a span of its own."""
    instrument(billing, tracers, meters)
    tracer = tracers.get_tracer("shop")
    with (
        Postbox(folder / "billing.db", agent=billing) as box,
        Postbox(folder / "shop.db", agent="shop") as shop,
        tracer.start_as_current_span("checkout"),
    ):
        instrument(shop, tracers, meters)
        box.on(Retried, LogHook())
        log.info("paid", cents=shop.ask("billing", Order(cents=1999), reply=Paid).cents)


def show_logs(lines: list[structlog.typing.EventDict], spans: dict[str, ReadableSpan]) -> None:
    """Print the lines in their order, each with the span that it was written in."""
    for line in lines:
        span = spans.get(line.get("span_id", ""))
        within = "no span" if span is None else span.name
        print(f"log     {line['log_level']:5} {line['event']:16} in {within}")


def show_metrics(reader: InMemoryMetricReader) -> None:
    """Print how often each instrument was used for billing."""
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for metric in sorted(resource.scope_metrics[0].metrics, key=lambda each: each.name):
            points = [
                getattr(point, "count", getattr(point, "value", 0))
                for point in metric.data.data_points
                if (point.attributes or {}).get("messaging.destination.name") == "billing"
            ]
            print(f"metric  {metric.name:36} {sum(points)}")


def show_trace(spans: dict[str, ReadableSpan], parent: str | None = None, depth: int = 0) -> None:
    """Print the spans as a tree, in the order of their beginnings."""
    for name, span in sorted(spans.items(), key=lambda each: each[1].start_time or 0):
        above = None if span.parent is None else f"{span.parent.span_id:016x}"
        if above == parent:
            outcome = (span.attributes or {}).get("messaging.onceward.outcome", "")
            print(f"trace   {'  ' * depth}{span.name} {outcome}".rstrip())
            show_trace(spans, name, depth + 1)


def main(folder: Path) -> None:
    """Run once and show what was seen."""
    seen, kept, reader = LogCapture(), InMemorySpanExporter(), InMemoryMetricReader()
    structlog.configure(processors=[add_trace_ids, structlog.stdlib.add_log_level, seen])
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(kept))
    run(folder, tracers, meters)
    spans = {f"{span.context.span_id:016x}": span for span in kept.get_finished_spans()}
    show_logs([line for line in seen.entries if line["log_level"] != "debug"], spans)
    show_metrics(reader)
    show_trace(spans)
    print(f"traces  {len({span.context.trace_id for span in spans.values()})}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
