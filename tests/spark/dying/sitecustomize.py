"""
End a whole program at one step of the commit of a batch.

Every Python of a program with this folder on its path loads this file first. The process that
commits the batch ends the program.

``RELAY_DIES`` says at which step: ``batch`` or ``stream``, and ``before`` the first file, at a
``row`` of it, ``between`` two files, or ``after`` the last one, when Spark does
not know yet that the batch is done.
"""

import os
import signal
from typing import Any, NoReturn

KIND, _, STEP = os.environ.get("RELAY_DIES", "").partition(" ")


def die() -> NoReturn:
    """Kill the driver with its JVM, and then this process, which they had started."""
    os.killpg(int(os.environ["RELAY_GROUP"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def install() -> None:
    """Put the end of the program into the steps of a commit."""
    from onceward.fleet.spark import sink  # noqa: PLC0415 - only where a process dies

    hand_over, send, options = sink.hand_over, sink._send, sink._options
    meant: list[str] = []
    files: list[str] = []

    def handing(rows: Any, batch: Any) -> Any:
        meant[:] = [STEP] if (batch.query == "nightly") == (KIND == "batch") else []
        files.clear()
        done = hand_over(rows, batch)
        return die() if "after" in meant else done

    def sending(path: str, rows: Any, batch: Any) -> Any:
        if "before" in meant or ("between" in meant and files):
            die()
        files.append(path)
        return send(path, rows, batch)

    def reading(row: Any) -> Any:
        if "row" in meant and str(row["body"]).endswith("4"):
            die()
        return options(row)

    sink.hand_over, sink._send, sink._options = handing, sending, reading


if STEP:
    install()
