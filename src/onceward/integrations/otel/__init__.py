"""
Trace and measure messages with OpenTelemetry; needs ``onceward[otel]``.

``instrument`` takes an agent before it is opened, or an open postbox. The application brings
the SDK and its exporters.

Imports the public names and message.
"""

from onceward.integrations.otel.instrument import instrument
from onceward.integrations.otel.logs import add_trace_ids

__all__ = ["add_trace_ids", "instrument"]
