"""Export metrics for Prometheus from your own program; needs ``onceward[metrics]``."""

from onceward.message.extras import needs

with needs("metrics", "onceward.metrics"):
    from onceward.ops.observe.exposition import (
        MetricsServer,
        are_ready,
        asgi_app,
        new_registry,
        text_of,
    )
    from onceward.ops.observe.file_metrics import FileMetrics
    from onceward.ops.observe.listener_metrics import ListenerMetrics
    from onceward.ops.observe.message_metrics import MessageMetrics
    from onceward.ops.observe.nats_metrics import NatsMetrics

__all__ = [
    "FileMetrics",
    "ListenerMetrics",
    "MessageMetrics",
    "MetricsServer",
    "NatsMetrics",
    "are_ready",
    "asgi_app",
    "new_registry",
    "text_of",
]
