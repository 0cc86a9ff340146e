"""Find a port for a server that a test starts."""

import socket


def free_port() -> int:
    """Return a port of the loopback address that no server listens at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
