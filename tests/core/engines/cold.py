"""
Which functions and statements a message needs until its handler is called in another process.

After a pause each of them is called with cold caches, so how long a wake-up takes depends on how
many different ones there are. ``python -m tests.core.engines.cold`` lists them by process and file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import IO, Any, Final, NamedTuple, cast

import apsw
from tests.waiting import until

import onceward
from onceward import Agent, Postbox, Tuning

ROOT: Final = str(Path(onceward.__file__).parent)
PUSHED: Final = os.path.join("transports", "file.py"), "deliver"  # noqa: PTH118 - a name, no path
"""File and name of the function whose return ends what the sender does for a wake-up."""
UNSETTLED: Final = """
SELECT (SELECT count(*) FROM _onceward_outbox WHERE state <> 'acked')
       + (SELECT count(*) FROM _onceward_inbox WHERE state = 'pending')
       + (SELECT count(*) FROM _onceward_receipts)
       + (SELECT count(*) FROM _onceward_peers WHERE owner IS NOT NULL)
"""
HEARTBEAT: Final = "onceward-heartbeat"
"""Its thread looks by the clock, not for a message."""


class Called(NamedTuple):
    """The functions, as ``file:name``, and the statements that were called at least once."""

    functions: list[str]
    statements: list[str]


class WakeUp(NamedTuple):
    """What one message needed, in both processes."""

    sender: Called
    recipient: Called

    @property
    def functions(self) -> int:
        """Number of functions, those that both processes call counted twice."""
        return len(self.sender.functions) + len(self.recipient.functions)

    @property
    def statements(self) -> int:
        """Number of statements, counted as the functions."""
        return len(self.sender.statements) + len(self.recipient.statements)


class Recorder:
    """Records which functions of the library and which statements all threads call."""

    def __init__(self) -> None:
        self._functions, self._statements = set[CodeType](), set[str]()
        self.recording = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread, and threads and connections that begin in a block."""
        apsw.connection_hooks.append(self._watch)
        threading.setprofile(self._call)
        sys.setprofile(self._call)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            apsw.connection_hooks.remove(self._watch)

    def begin(self) -> None:
        """Record from now on: a message is about to be sent."""
        self._functions, self._statements = set(), set()
        self.recording = True

    def found(self) -> Called:
        """End recording and return what was called."""
        self.recording = False
        functions = [f"{_file(each)}:{each.co_qualname}" for each in self._functions]
        return Called(sorted(functions), sorted(self._statements))

    def _watch(self, con: apsw.Connection) -> None:
        con.trace_v2(apsw.SQLITE_TRACE_STMT, self._statement)

    def _statement(self, event: dict[str, Any]) -> None:
        if self.recording and not event["trigger"]:
            self._statements.add(" ".join(event["sql"].split()))

    def _call(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not self.recording or not code.co_filename.startswith(ROOT):
            return
        if threading.current_thread().name.startswith(HEARTBEAT):
            return
        if event == "call":
            self._functions.add(code)
        elif event == "return" and (_file(code), code.co_name) == PUSHED:
            self.recording = False


def _file(code: CodeType) -> str:
    return os.path.relpath(code.co_filename, ROOT)


@contextmanager
def recipient(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the process of the agent that receives."""
    command = [sys.executable, "-m", __spec__.name, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert "ready\n" == cast("IO[str]", process.stdout).readline()
        yield process


def wake_ups(folder: Path) -> Iterator[WakeUp]:
    """Send messages from this process to an idle one, and yield what each needed."""
    recorder = Recorder()
    with recorder.watching(), recipient(folder / "bob.db") as process:
        out, into = cast("IO[str]", process.stdout), cast("IO[str]", process.stdin)
        with Postbox(folder / "alice.db", agent="alice", tuning=Tuning(poll_interval=0)) as alice:
            while True:
                settle(alice)
                into.write("\n")
                into.flush()
                assert "go\n" == out.readline()
                recorder.begin()
                alice.send("bob", {"number": 1})
                there = Called(*json.loads(out.readline()))
                yield WakeUp(recorder.found(), there)


def settle(box: Postbox) -> None:
    """Wait until a postbox has nothing on its way and no carrier that works."""
    until(lambda: box._db.read(UNSETTLED) == [(0,)])
    until(lambda: not box._dispatcher._deliveries._busy._names)


def receive(path: str) -> None:
    """
    Handle messages; the body of the other process.

    For each line on stdin it says what was called from then until the handler was.
    """
    recorder, bob, handled = Recorder(), Agent("bob"), threading.Event()

    @bob.on("json")
    def handle(_: object) -> None:
        recorder.recording = False
        handled.set()  # a handler that takes long would be called after its message is stored

    with recorder.watching(), Postbox(path, agent=bob, tuning=Tuning(poll_interval=0)) as box:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            settle(box)
            recorder.begin()
            sys.stdout.write("go\n")
            sys.stdout.flush()
            handled.wait()
            handled.clear()
            sys.stdout.write(f"{json.dumps(recorder.found())}\n")
            sys.stdout.flush()


def listed(found: WakeUp) -> str:
    """Return the functions by process and file, and the statements, for a person."""
    lines = []
    for name, called in zip(found._fields, found, strict=True):
        lines.append(f"{name}: {len(called.functions)} functions, {len(called.statements)} SQL")
        for file, functions in groupby(called.functions, lambda each: each.partition(":")[0]):
            names = [each.partition(":")[2] for each in functions]
            lines.append(f"{len(names):4} {file}: {', '.join(names)}")
        lines += [f"   - {sql[:100]}" for sql in called.statements]
    return "\n".join(lines)


def main() -> None:
    """Be the recipient of a file, or list what a wake-up needs."""
    if sys.argv[1:]:
        receive(sys.argv[1])
        return
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = wake_ups(Path(folder))
        least = min((next(found) for _ in range(50)), key=lambda each: each.functions)
        found.close()  # type: ignore[attr-defined]
    sys.stdout.write(f"{listed(least)}\n")


if __name__ == "__main__":
    main()
