"""Read single keys of a terminal, and notice when it changes its size."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

RESIZED: Final = "resized"
"""Returned instead of a key when the size of the terminal changed."""
KEYS: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x04": "q",  # end of input
}
PARTS: Final = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
"""A sequence that a terminal sends for one key, or one character."""
LONGEST: Final = 64


class Keyboard:
    """Keys of a terminal, read one by one; made by ``keyboard``."""

    def __init__(self, terminal: int, resized: int) -> None:
        self._terminal, self._resized = terminal, resized
        self._typed: list[str] = []

    def read(self, timeout: float) -> str | None:
        """Return the next key by its name or its letter; None after *timeout* seconds."""
        if not self._typed:
            ready, _, _ = select.select([self._terminal, self._resized], [], [], timeout)
            if self._resized in ready:
                os.read(self._resized, LONGEST)
                return RESIZED
            if not ready:
                return None
            self._typed = keys_of(os.read(self._terminal, LONGEST))
        return self._typed.pop(0) if self._typed else None


def keys_of(data: bytes) -> list[str]:
    """Return the keys that a terminal sent at once; no input means that it was closed."""
    if not data:
        return ["q"]
    parts = PARTS.findall(data.decode("utf-8", "ignore"))
    return [KEYS.get(part, part) for part in parts if part in KEYS or len(part) == 1]


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """For a block, read keys without echo and newline, then restore the terminal."""
    terminal = sys.stdin.fileno()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = termios.tcgetattr(terminal)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGTERM)}
    signal.signal(signal.SIGWINCH, lambda *_: _wake(writer))
    signal.signal(signal.SIGTERM, _end)
    try:
        tty.setcbreak(terminal)
        yield Keyboard(terminal, reader)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _wake(writer: int) -> None:
    try:
        os.write(writer, b"x")
    except BlockingIOError:
        return  # enough are waiting to be read


def _end(number: int, _: object) -> None:
    """Raise, so that the terminal is restored."""
    raise SystemExit(128 + number)
