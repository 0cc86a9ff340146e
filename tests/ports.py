"""Find a port for a server that a test starts."""

import random
import socket
from contextlib import suppress
from typing import Final

PORTS: Final = range(20_000, 32_000)
"""Below those that systems give to outgoing connections, which would take one from a server."""

_dice = random.SystemRandom()


def free_port() -> int:
    """Return a port of the loopback address that no server listens at just now."""
    while True:
        port = _dice.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
