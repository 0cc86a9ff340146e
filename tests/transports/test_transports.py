"""The transports of the house pass the suite that strangers' transports must pass."""

from pathlib import Path

import pytest

from onceward.core.accept.accept import Receiver
from onceward.core.deliver.transport import Listener, Transport, TransportContext
from onceward.file.database import Database
from onceward.message.frame import Frame
from onceward.message.parcel import Receipt
from onceward.testing.conformance import TransportConformance
from onceward.testing.listener_conformance import ListenerConformance
from onceward.testing.transport_fixture import LIMITS, FarEnd
from onceward.transports.file import FileTransport, Opened
from onceward.transports.function import FunctionTransport
from onceward.transports.memory import MemoryListener, MemoryTransport

pytestmark = pytest.mark.broken(
    "the far end of a function is not a file; the suite checks what it leaves itself"
)


class TestMemory(TransportConformance):
    """Parcels between postboxes of one process."""

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Listen under the far end's name."""
        listener = MemoryListener()
        listener.listen(far.agent, far.accept)
        far.at_the_end.callback(listener.close)
        return MemoryTransport(), f"memory:{far.agent}"

    def nowhere(self, far: FarEnd) -> str:
        """Return a name under which no agent listens."""
        del far
        return "memory:nobody"


class TestMemoryListener(ListenerConformance):
    """Agents that other agents of the process reach."""

    def make(self, context: TransportContext) -> Listener:
        """Return a listener, which needs nothing of its context."""
        del context
        return MemoryListener()

    def way(
        self, listener: Listener, context: TransportContext, name: str
    ) -> tuple[Transport, str]:
        """Return the url of a name in this process."""
        del listener, context
        return MemoryTransport(), f"memory:{name}"


class TestFile(TransportConformance):
    """Parcels written straight into the far end's file."""

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Open the far end's file when the first parcel comes."""
        transport = FileTransport(_open_file)
        far.at_the_end.callback(transport.close)
        return transport, f"file:{far.path}"

    def nowhere(self, far: FarEnd) -> str:
        """Return the path of a file that was never created."""
        return f"file:{far.path.with_name('nobody.db')}"


class TestFunction(TransportConformance):
    """A plain function of the user's own."""

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Hand over the far end's function as it is."""
        return FunctionTransport(far.take), f"function:{far.agent}"


class TestAsyncFunction(TransportConformance):
    """A coroutine function of the user's own."""

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Wrap the far end's function, so that it must be awaited."""

        async def take(frames: list[Frame]) -> dict[str, Receipt]:
            return far.take(frames)

        transport = FunctionTransport(take)
        far.at_the_end.callback(transport.close)
        return transport, f"function:{far.agent}"


def _open_file(path: Path, agent: str) -> Opened:
    db = Database.open(path, agent=agent, mode="existing")
    return Opened(Receiver(db, settings=LIMITS).accept, db.close)
