"""Parcels through a real NATS server pass the suites of transports and listeners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.transports.nats_server import NatsServer, nats_server

from onceward.core.deliver.transport import Listener, Transport, TransportContext
from onceward.testing.conformance import TransportConformance
from onceward.testing.listener_conformance import ListenerConformance
from onceward.testing.transport_fixture import FarEnd
from onceward.transports.network.nats import NatsTransport
from onceward.transports.network.nats_listener import NatsListener

pytestmark = pytest.mark.broken("the suite leaves forged receipts; it checks what it leaves itself")


class TestNats(TransportConformance):
    """Parcels between two postboxes through a server."""

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path) -> Iterator[None]:
        with nats_server(tmp_path) as self.server:
            yield

    server: NatsServer

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Listen for the far end at the server."""
        listener = NatsListener(self.server.url())(replace(far.context, agent=far.agent))
        far.at_the_end.callback(listener.close)
        listener.listen(far.agent, far.accept)
        transport = NatsTransport(far.context)
        far.at_the_end.callback(transport.close)
        return transport, self.server.url(far.agent)

    def nowhere(self, far: FarEnd) -> str:
        """Return the url of a server that was never started."""
        return NatsServer(far.path.parent).url("absent")


class TestNatsListener(ListenerConformance):
    """Agents that take their parcels from a server."""

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path) -> Iterator[None]:
        with nats_server(tmp_path) as self.server:
            yield

    server: NatsServer

    def make(self, context: TransportContext) -> Listener:
        """Listen at the server."""
        return NatsListener(self.server.url())(context)

    def way(
        self, listener: Listener, context: TransportContext, name: str
    ) -> tuple[Transport, str]:
        """Return the url of an agent at the server."""
        del listener
        return NatsTransport(context), self.server.url(name)
