"""
Run Python programs in forks of a process that has imported onceward and its commands.

Starting Python and importing the commands takes longer than most of what tests do with them. See
``fork_server`` for how a program runs; it is a child of this process, as any other. A test of
starting, of imports or of the interpreter starts a fresh one, by ``subprocess``.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, AnyStr, Final

SERVER: Final = Path(__file__).with_name("fork_server.py")
LONGEST: Final = 1 << 20
"""Bytes of a request: a program's words and environment."""
SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER of prctl."""
PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
ENVIRONMENT: Final = dict(os.environ)
"""That of the run: no test has changed it yet."""
TAKEN: Final = {"PYTHONFAULTHANDLER", "PYTHONPATH", "PYTHONUNBUFFERED"}
"""Variables of the interpreter that a fork takes; the others must be those of the run."""


class Forked(subprocess.Popen[AnyStr]):
    """A process, whose program runs in a fork where it can."""

    def _execute_child(self, *given: Any) -> None:
        start = super()._execute_child  # type: ignore[misc]  # no public way
        asked: dict[str, Any] = signature(start).bind(*given).arguments
        words, env = [*map(str, asked["args"])], asked["env"] or os.environ
        if not can_fork(words, env):
            start(*given)
            return
        streams = [
            own if asked[name] < 0 else asked[name]
            for own, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        self.pid = server().start(words, streams, asked["cwd"], env)
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in PIPES))  # type: ignore[attr-defined]


def can_fork(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a command is a program of this interpreter, started without its options."""
    return (
        sys.platform == "linux"
        and words[0] == sys.executable
        and (words[1] in {"-c", "-m"} or not words[1].startswith("-"))
        and _settings(ENVIRONMENT) == _settings(env)
    )


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[name] for name in env if name.startswith("PYTHON") and name not in TAKEN}


class Server:
    """The server of this process, which ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=SERVER.parents[1],
                env=ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the server; what it has started goes on."""
        self._link.close()
        self._process.wait()

    def start(
        self, words: Sequence[str], streams: Sequence[int], cwd: object, env: Mapping[str, str]
    ) -> int:
        """Return the process, a child of this one, that runs a program."""
        asked = {"words": words, "cwd": str(cwd or Path.cwd()), "env": dict(env)}
        with self._lock, _adopting():
            socket.send_fds(self._link, [json.dumps(asked).encode()], streams)
            return int(self._link.recv(LONGEST))


@cache
def server() -> Server:
    """Return the server of this process, started when it is first needed."""
    return Server()


@contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of each descendant whose own parent ends meanwhile."""
    libc = ctypes.CDLL(None)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(SUBREAPER, 0, 0, 0, 0)
