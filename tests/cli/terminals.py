"""Run a command on a pseudo terminal: type keys, resize it, and read what it shows."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.children import ONCEWARD
from tests.forking import Forked

LONGEST = 60.0
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")
HOME = "\x1b[H"


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, leader: int, process: Forked[bytes]) -> None:
        self.process, self._leader = process, leader
        self.seen = ""

    def type(self, keys: str) -> None:
        """Send keys."""
        os.write(self._leader, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size, and tell the process."""
        size(self._leader, columns, lines)
        self.process.send_signal(signal.SIGWINCH)

    def until(self, shown: Callable[[str], bool]) -> str:
        """Read until the last whole frame is as wanted, and return it without colours."""
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            frames = self.seen.split(HOME)
            for frame in reversed(frames[-3:]):
                if shown(found := plain(frame)):
                    return found
            self._read(0.05)
        msg = f"never shown; last: {plain(self.seen[-4000:])}"
        raise AssertionError(msg)

    def end(self) -> int:
        """Read until the process ends, and return its exit code."""
        while self.process.poll() is None:
            self._read(0.05)
        self._read(0.0)
        return self.process.wait(LONGEST)

    def _read(self, timeout: float) -> None:
        if select.select([self._leader], [], [], timeout)[0]:
            try:
                self.seen += os.read(self._leader, 1 << 16).decode("utf-8", "replace")
            except OSError:  # the process has closed its side
                time.sleep(0.01)


@contextmanager
def terminal(
    folder: Path, *words: str, columns: int = 120, lines: int = 24, term: str = "xterm-256color"
) -> Iterator[Terminal]:
    """Run ``onceward`` with *words* on a terminal until the block ends."""
    leader, follower = pty.openpty()
    size(leader, columns, lines)
    env = {**os.environ, "TERM": term}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        env.pop(name, None)
    command = [*ONCEWARD, *words]
    process = Forked[bytes](
        command,
        cwd=folder,
        env=env,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        yield Terminal(leader, process)
    finally:
        process.kill()
        process.wait(LONGEST)
        os.close(leader)


def size(terminal: int, columns: int, lines: int) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def plain(text: str) -> str:
    """Return text without colours and other escapes."""
    return ESCAPES.sub("", text).replace("\r", "")
