"""
Start processes in tests; none outlives its block, and none can hang its test.

A process that does not end when it should fails the test, with the stacks of its threads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Final, Self

from tests.forking import Forked

ENDS_WITHIN: Final = 60.0
DUMPS_WITHIN: Final = 10.0
PYTHON: Final = (sys.executable,)
ONCEWARD: Final = (sys.executable, "-m", "onceward")


class Child(Forked[str]):
    """
    A process, in a group of its own, that is killed with its group at the end of its block.

    *pipes* are those of ``stdin``, ``stdout`` and ``stderr`` that the test holds; a *log* takes
    what it writes to stderr.
    """

    def __init__(
        self,
        command: Sequence[object],
        *pipes: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        held = dict.fromkeys(pipes, subprocess.PIPE)
        self.words = [*map(str, command)]
        super().__init__(
            self.words,
            stdin=held.get("stdin"),
            stdout=held.get("stdout"),
            stderr=log or held.get("stderr"),
            text=True,
            cwd=cwd,
            env={**(os.environ if env is None else env), "PYTHONFAULTHANDLER": "1"},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process and all that it has started; close its pipes."""
        self._signal_group(signal.SIGKILL)
        with suppress(BrokenPipeError):
            super().__exit__(None, None, None)

    def hear(self) -> str:
        """Return the next line of its stdout, without its end; empty after the last."""
        return _line(self.stdout).rstrip("\n")

    def read(self) -> str:
        """Return the next line of its stderr; empty after the last."""
        return _line(self.stderr)

    def said(self, words: str) -> str:
        """Return the next line of its stderr with these words in it; fail if there is none."""
        lines = list[str]()
        while line := self.read():
            lines.append(line)
            if words in line:
                return line
        msg = f"{self.words} ended without {words!r}:\n{''.join(lines)}"
        raise AssertionError(msg)

    def tell(self, line: str = "") -> None:
        """Write a line to its stdin."""
        assert self.stdin is not None
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> tuple[str, str]:
        """Send a signal, and return what it writes until it ends; see ``ended``."""
        self.send_signal(how)
        return self.ended()

    def ended(self, told: str | None = None) -> tuple[str, str]:
        """
        Tell it something, and return what it writes until it ends by itself.

        If it does not, the test fails with what the process wrote and with its stacks.
        """
        try:
            out, err = self.communicate(told, timeout=ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._stacks()) from None
        return out or "", err or ""

    def code(self) -> int:
        """Return its exit code once it ends by itself, with its pipes still open; see ``ended``."""
        try:
            return self.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._stacks()) from None

    def _stacks(self) -> str:
        self._signal_group(signal.SIGABRT)  # PYTHONFAULTHANDLER writes the stacks to stderr
        try:
            out, err = self.communicate(timeout=DUMPS_WITHIN)
        except subprocess.TimeoutExpired:
            self._signal_group(signal.SIGKILL)
            out, err = self.communicate(timeout=DUMPS_WITHIN)
        return f"{self.words} did not end within {ENDS_WITHIN} s\n{out or ''}\n{err or ''}"

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _line(pipe: IO[str] | None) -> str:
    """Return the next line of a pipe, and read no byte behind it: that is for ``communicate``."""
    assert pipe is not None
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(pipe.fileno(), 1)):
        line += byte
    return line.decode()


def run(
    command: Sequence[object], *, cwd: Path | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return what it wrote; with *check* its exit code is 0."""
    with Child(command, "stdout", "stderr", cwd=cwd) as child:
        out, err = child.ended()
    done = subprocess.CompletedProcess(child.words, child.returncode, out, err)
    assert 0 == done.returncode or not check, err
    return done


def side_by_side(commands: Iterable[Sequence[object]], told: str | None = None) -> list[str]:
    """
    Run programs at once; return what each wrote, once all have ended with exit code 0.

    A line that they are told reaches all of them before the first is waited for.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(Child(command, "stdin", "stdout")) for command in commands]
        for child in children if told is not None else ():
            child.tell(told or "")
        said = [child.ended()[0] for child in children]
    assert {0} == {child.returncode for child in children}
    return said
