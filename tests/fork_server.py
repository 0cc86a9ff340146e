"""
Fork programs from a process that has imported what they import; see ``forking``.

A program runs as ``python`` runs it, with its own words, environment, folder, session, streams and
``__main__``, and it ends after its threads and what it has registered for its end. It differs in
what is imported already, and in ``/proc``, which shows the words of this server. The server has one
thread, and opens nothing.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import io
import json
import os
import pkgutil
import runpy
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TextIO

LONGEST: Final = 1 << 20
UNBUFFERED: Final = "PYTHONUNBUFFERED"
STDERR: Final = 2
FILES: Final = 256
"""More than this process has open."""
PACKAGES: Final = (
    "anyio._backends", "encodings.ascii", "encodings.idna", "onceward.core", "onceward.features",
    "onceward.ops", "onceward.testing.harness", "onceward.transports", "rich.logging",
    "rich.markdown", "tenacity", "uvicorn.server",
)  # fmt: skip
"""Imported with all below them."""
LATER: Final = {
    "inspect": "onceward.ops.inspector",
    "mcp": "onceward.ops.mcp",
    "orm_child.py": "onceward.integrations.sqlalchemy",
}
"""Packages that the first program of a word, or of a name, needs: their libraries take longest."""
BUFFERED: Final = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def main() -> None:
    """Serve until there are no more requests; in a fork, run its program."""
    codes = list[int]()
    atexit.register(_end, codes)  # first, so it is called last
    sys.path[: 1 + len(_python_path())] = []
    for name in PACKAGES:
        _import(name)
    gc.collect()
    gc.freeze()
    words, here = _serve(socket.socket(fileno=int(sys.argv[1]))), os.getpid()
    code: object = ""
    try:
        _run(words)
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
        raise
    finally:
        if isinstance(code, int) and os.getpid() == here:  # not in a fork of the program's own
            codes.append(code)


def _import(name: str) -> None:
    """Import a module and all below it; what lacks the library of an extra is left out."""
    with suppress(ImportError):
        for each in pkgutil.iter_modules(getattr(import_module(name), "__path__", ()), f"{name}."):
            if each.name not in LATER.values() and not each.name.endswith("__main__"):
                _import(each.name)


def _import_later(words: Collection[str]) -> None:
    for word in LATER.keys() & {Path(word).name for word in words}:
        _import(LATER.pop(word))
        gc.freeze()


def _serve(link: socket.socket) -> list[str]:
    """Fork for each request until there are no more; return, in a fork, its program's words."""
    while True:
        asked, streams, _, _ = socket.recv_fds(link, LONGEST, 3)
        if not asked:
            os._exit(0)
        request = json.loads(asked)
        _import_later(request["words"])
        if _is_fork(link):
            return _become(request, streams)
        for each in streams:
            os.close(each)


def _is_fork(link: socket.socket) -> bool:
    """Fork, and return where this is; the fork leads a session, and has the server's parent."""
    told, tell = os.pipe()
    if between := os.fork():
        os.waitpid(between, 0)  # its child has been adopted
        link.send(os.read(told, LONGEST))
        os.close(told)
        os.close(tell)
        return False
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        os.sched_yield()
    os.setsid()
    os.write(tell, str(os.getpid()).encode())
    return True


def _become(asked: Mapping[str, Any], streams: Sequence[int]) -> list[str]:
    """Take the streams, the environment and the folder of a program; return its words."""
    for own, given in enumerate(streams):
        os.dup2(given, own)
    os.closerange(3, FILES)
    os.environ.clear()
    os.environ.update(asked["env"])
    time.tzset()
    os.chdir(asked["cwd"])
    sys.stdin, sys.stdout, sys.stderr = map(_as_here, (sys.stdin, sys.stdout, sys.stderr))
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    return list(asked["words"])


def _as_here(stream: TextIO) -> io.TextIOWrapper:
    """Return a stream of the program: as the one of this process is, but for its buffering."""
    number, writes, through = stream.fileno(), stream.writable(), bool(os.environ.get(UNBUFFERED))
    return io.TextIOWrapper(
        open(number, "wb" if writes else "rb", 0 if through and writes else -1, closefd=False),
        stream.encoding,
        stream.errors,
        newline="\n" if writes else None,
        line_buffering=not through and (number == STDERR or os.isatty(number)),
        write_through=through,
    )


def _run(words: Sequence[str]) -> None:
    """Run a program in a ``__main__`` of its own."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.path[:0] = _python_path()
    sys.orig_argv, (_, how, *rest) = [*words], words
    if how == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = [how, *rest[1:]]
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    if how == "-c":
        text, path, sys.argv = rest[0].encode(), "<string>", [how, *rest[1:]]
        sys.path.insert(0, "")
    else:
        file = Path(how)
        text, path, sys.argv = file.read_bytes(), str(file.absolute()), [how, *rest]
        sys.path.insert(0, str(file.resolve().parent))
        main.__file__ = path
    exec(compile(text, path, "exec"), vars(main))  # noqa: S102 - what this module is for


def _end(codes: Sequence[int]) -> None:
    """
    End a program here that has returned or exited, and has closed its agents' files.

    The interpreter would first take everything apart, which takes longer than most programs: this
    process would copy all that it shares with the server.
    """
    if codes and not sys.modules["onceward.file.open_files"].files and _flush():
        os._exit(codes[0])
    _keep_libraries()


def _flush() -> bool:
    """Write what the program's open files hold; return whether there was no error."""
    gc.collect()
    try:
        for each in (sys.stdout, sys.stderr, *gc.get_objects()):
            if issubclass(type(each), BUFFERED) and not each.closed and each.writable():
                each.flush()
    except (OSError, ValueError):
        return False
    return True


def _keep_libraries() -> None:
    """Leave what libraries hold to the system: the interpreter takes long to take it apart."""
    ours = {"__main__", "onceward", *sys.stdlib_module_names}
    names = [name for name in sys.modules if name.partition(".")[0] not in ours]
    kept = [sys.modules.pop(name) for name in names]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _python_path() -> list[str]:
    given = os.environ.get("PYTHONPATH", "")
    return given.split(os.pathsep) if given else []


if __name__ == "__main__":
    main()
