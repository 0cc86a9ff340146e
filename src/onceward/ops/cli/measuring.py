"""The options of commands that serve metrics for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from onceward import Postbox
from onceward.ops.cli.options import Several
from onceward.ops.cli.output import note

if TYPE_CHECKING:
    from onceward.http import HttpListener
    from onceward.nats import NatsListener

Watch = Callable[[Postbox], None]
TOKEN: Final = "ONCEWARD_METRICS_TOKEN"  # noqa: S105 - the name of a variable


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Where a command serves metrics."""

    metrics: str | None = None
    """Serve /metrics here: 127.0.0.1:9464; other machines need ONCEWARD_METRICS_TOKEN."""
    metrics_type: Annotated[Several, Parameter(name="--metrics-type")] = None
    """A message type whose durations are measured separately; may be repeated."""

    @contextmanager
    def serving(
        self,
        boxes: Iterable[Postbox],
        places: Iterable[Path],
        listeners: Iterable[object] = (),
    ) -> Iterator[Watch]:
        """
        For a block, measure *boxes* and serve their metrics and those of the files in *places*.

        The connections of HTTP *listeners* are included, and the streams of NATS listeners.

        Yields a function that adds a postbox. Without an address nothing is loaded or measured.

        Raises:
            MissingExtra: the extra is not installed.
            InvalidArgument: the address cannot be used, or needs a token.

        """
        if self.metrics is None:
            yield lambda _: None
            return
        from onceward import metrics  # noqa: PLC0415 - an extra

        registry = metrics.new_registry()
        registry.register(metrics.FileMetrics(places))
        over_http, over_nats = _by_kind(listeners)
        registry.register(metrics.ListenerMetrics(over_http))
        registry.register(metrics.NatsMetrics(over_nats))
        measured = metrics.MessageMetrics(registry, types=self.metrics_type or ())
        opened = list(boxes)
        server = metrics.MetricsServer(
            registry,
            self.metrics,
            token=os.environ.get(TOKEN, ""),
            ready=partial(metrics.are_ready, opened),
        )
        offs = [measured.watch(box) for box in opened]
        note(f"metrics at {server.url}")
        try:
            yield lambda box: offs.append(measured.watch(box))
        finally:
            server.close()
            for off in offs:
                off()

    def words(self, index: int) -> list[str]:
        """Return the options for the process of that index, which has its own port."""
        if self.metrics is None:
            return []
        host, _, port = self.metrics.rpartition(":")
        port = str(int(port) + index) if port.isdecimal() and int(port) else port
        kinds = [word for kind in self.metrics_type or () for word in ("--metrics-type", kind)]
        return ["--metrics", f"{host}:{port}", *kinds]


def _by_kind(listeners: Iterable[Any]) -> tuple[list[HttpListener], list[NatsListener]]:
    """Return the listeners of HTTP and of NATS without importing either extra."""
    given = list(listeners)
    return (
        [each for each in given if hasattr(each, "connections")],
        [each for each in given if hasattr(each, "streams")],
    )


MEASURING: Final = Measuring()
