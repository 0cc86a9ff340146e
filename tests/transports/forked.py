"""A listener that a process has used before it forks, used in its child."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = """
import os, sys
from importlib import import_module
from pathlib import Path
from onceward import Postbox

folder, url, module, name, *agents = sys.argv[1:]
listener = getattr(import_module(module), name)(url)

def opened(agent):
    path = Path(folder, agent + ".db")
    return Postbox(path, agent=agent, start=False, listeners=[listener])

box = opened(agents[0])
if os.fork() == 0:
    with opened(agents[1]) as child:
        with child.receive(timeout=60) as message:
            print(message.body, flush=True)
    os._exit(0)
os.wait()
box.close()
"""


@contextmanager
def listening_child(
    folder: Path, url: str, listener: type, *agents: str
) -> Iterator[Callable[[Callable[[], object]], tuple[str, int]]]:
    """
    Listen for the first of two agents, fork, and receive one message for the second in the child.

    Yield a function that repeats a call until both processes have ended, and returns what the child
    received, and the exit code.
    """
    named = [listener.__module__, listener.__name__]
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), url, *named, *agents]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def heard(work: Callable[[], object]) -> tuple[str, int]:
            while process.poll() is None:
                work()
                time.sleep(0.01)
            assert process.stdout is not None
            return process.stdout.read(), process.returncode

        yield heard
