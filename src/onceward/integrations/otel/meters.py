"""Measure operations with the instruments of the messaging conventions."""

from __future__ import annotations

from opentelemetry.metrics import MeterProvider, get_meter

from onceward.integrations.otel import names

Attributes = dict[str, str | int]


class OperationMeters:
    """The instruments of one meter provider; their attributes are bounded by agents and classes."""

    def __init__(self, provider: MeterProvider | None, version: str) -> None:
        meter = get_meter(names.SCOPE, version, provider, schema_url=names.SCHEMA_URL)
        self._sent = meter.create_counter(
            names.MESSAGING_CLIENT_SENT_MESSAGES,
            unit="{message}",
            description="Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            names.MESSAGING_CLIENT_CONSUMED_MESSAGES,
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )
        self._operation = meter.create_histogram(
            names.MESSAGING_CLIENT_OPERATION_DURATION,
            unit="s",
            description="Duration of an operation that a producer or consumer client began.",
            explicit_bucket_boundaries_advisory=names.BOUNDARIES,
        )
        self._process = meter.create_histogram(
            names.MESSAGING_PROCESS_DURATION,
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=names.BOUNDARIES,
        )

    def sent(self, count: int, seconds: float, attributes: Attributes) -> None:
        """Count the messages of a send, and how long it took until its commit."""
        by_name = {k: v for k, v in attributes.items() if k != names.MESSAGING_OPERATION_TYPE}
        self._sent.add(count, by_name)
        self._operation.record(seconds, attributes)

    def handled(self, count: int, seconds: float, attributes: Attributes) -> None:
        """Count the messages of an attempt, and how long it took."""
        by_name = {k: v for k, v in attributes.items() if k != names.MESSAGING_OPERATION_TYPE}
        self._consumed.add(count, by_name)
        self._process.record(seconds, by_name)
