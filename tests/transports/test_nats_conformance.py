"""Parcels by way of a real NATS server pass the suites of transports and listeners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.transports.nats_server import NatsServer, nats_server

from onceward.model.clock import SystemClock
from onceward.model.settings import Settings
from onceward.testing.conformance import TransportConformance
from onceward.testing.transport_fixture import FarEnd
from onceward.transports.base import Transport, TransportContext
from onceward.transports.nats import NatsTransport
from onceward.transports.nats_listener import NatsListener

pytestmark = pytest.mark.broken("the suite leaves forged receipts; it checks what it leaves itself")


def context(folder: Path, agent: str = "near", deliver_timeout: float = 20.0) -> TransportContext:
    """Return what a transport is made of."""
    return TransportContext(
        agent=agent,
        folder=folder,
        settings=Settings(deliver_timeout=deliver_timeout),
        clock=SystemClock(),
    )


class TestNats(TransportConformance):
    """Parcels between two postboxes by way of a server."""

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path) -> Iterator[None]:
        with nats_server(tmp_path) as self.server:
            yield

    server: NatsServer

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Listen for the far end at the server."""
        listener = NatsListener(self.server.url())(context(far.path.parent, far.agent))
        far.at_the_end.callback(listener.close)
        listener.listen(far.agent, far.accept)
        transport = NatsTransport(context(far.path.parent))
        far.at_the_end.callback(transport.close)
        return transport, self.server.url(far.agent)

    def nowhere(self, far: FarEnd) -> str:
        """Return the url of a server that was never started."""
        return NatsServer(far.path.parent).url("absent")
