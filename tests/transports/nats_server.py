"""A real nats-server of its own: on a free port, with a store that a test may take away."""

from __future__ import annotations

import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.children import Child
from tests.ports import free_port

START_WITHIN: Final = 30.0
CONFIG: Final = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{store}" {sync} }}
{more}
"""


def users_block(*printed: str) -> str:
    """Return a server's configuration of users from what each home has printed."""
    return f"authorization {{ users: [\n{''.join(printed)}] }}"


class NatsServer:
    """A server process; ``start`` after ``kill`` finds the same port and the same store."""

    def __init__(self, folder: Path, more: str = "", *, sync: str = "") -> None:
        self.store, self._config = folder / "nats-store", folder / "nats.conf"
        self._log = folder / "nats.log"
        self.port = free_port()
        self._process: Child | None = None
        self._sync = sync
        self.configure(more)

    def url(self, agent: str = "") -> str:
        """Return the url of an agent at this server, or of the server."""
        return f"nats://127.0.0.1:{self.port}" + (f"/{agent}" if agent else "")

    def configure(self, more: str) -> None:
        """Write the configuration with *more* in it, for the next start."""
        text = CONFIG.format(port=self.port, store=self.store, sync=self._sync, more=more)
        self._config.write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Start the process and wait until it listens."""
        program = Path(sys.executable).with_name("nats-server")
        with self._log.open("ab") as log:
            self._process = Child([program, "-c", self._config], log=log)
        limit = time.monotonic() + START_WITHIN
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > limit:
                self.kill()
                raise RuntimeError(self._log.read_text(encoding="utf-8")[-3000:])
            time.sleep(0.02)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the process, by default without a warning."""
        if self._process is not None:
            with self._process as ending:
                self._process = None
                ending.send_signal(how)
                ending.code()

    def signal(self, which: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(which)

    def wipe(self) -> None:
        """Delete the store of a server that does not run."""
        assert self._process is None
        shutil.rmtree(self.store, ignore_errors=True)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def nats_server(folder: Path, more: str = "", *, sync: str = "") -> Iterator[NatsServer]:
    """Run a server for a block."""
    server = NatsServer(folder, more, sync=sync)
    server.start()
    try:
        yield server
    finally:
        server.kill(signal.SIGTERM)
