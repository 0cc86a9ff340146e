"""Metrics for Prometheus, in a program of your own; needs ``onceward[metrics]``."""

try:
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
except ModuleNotFoundError as error:
    msg = (
        f"onceward.metrics needs {error.name}, which is not installed:"
        " pip install 'onceward[metrics]'"
    )
    raise ModuleNotFoundError(msg, name=error.name) from error

__all__ = [
    "FileMetrics",
    "ListenerMetrics",
    "MessageMetrics",
    "MetricsServer",
    "are_ready",
    "asgi_app",
    "new_registry",
    "text_of",
]
