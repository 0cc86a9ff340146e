"""A program that runs in a fork finds what it finds in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, Child
from tests.forking import Forked, can_fork

TELL = """
import atexit, json, os, signal, sys, threading

atexit.register(print, "the end")
print(json.dumps({
    "words": (sys.argv, sys.orig_argv),
    "path": sys.path,
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "family": (os.getppid(), os.getsid(0) == os.getpid()),
    "threads": threading.active_count(),
    "files": sorted(os.listdir("/proc/self/fd"))[:-1],
    "main": (__name__, vars(sys.modules["__main__"])["TOLD"], globals().get("__file__")),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGPIPE)],
    "streams": [
        (each.fileno(), each.encoding, each.errors, each.line_buffering, each.write_through)
        for each in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "read": sys.stdin.read(),
}))
"""
ENDS = {
    "pass": 0,
    "sys.exit(3)": 3,
    "sys.exit('no')": 1,
    "raise LookupError": 1,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "os.abort()": -signal.SIGABRT,
    "os._exit(5)": 5,
    "threading.Thread(target=lambda: (time.sleep(0.05), os._exit(6))).start()": 6,
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks need Linux")


def told(command: list[str], env: dict[str, str], folder: Path, kind: type[Any]) -> list[Any]:
    """Return what the program says in one kind of process: its facts, its end, its exit code."""
    pipe = subprocess.PIPE
    given = {"env": env, "cwd": folder, "text": True, "start_new_session": True}
    with kind(command, stdin=pipe, stdout=pipe, stderr=pipe, **given) as process:
        out, err = process.communicate("heard\n")
    facts, *rest = out.splitlines()
    return [json.loads(facts), rest, err, process.returncode]


@pytest.mark.parametrize("how", ["text", "module", "script"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_fork_is_as_a_fresh_process(tmp_path: Path, how: str, unbuffered: str) -> None:
    """It has the words, path, environment, parent, files and streams of its own."""
    (tmp_path / "telling.py").write_text(f"TOLD = 1{TELL}")
    started = {
        "text": ["-c", f"TOLD = 1{TELL}"],
        "module": ["-m", "telling"],
        "script": ["telling.py"],
    }
    command = [sys.executable, *started[how], "one", "-two"]
    env = {**os.environ, "TOLD": how, "PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": "/nowhere"}

    assert can_fork(command, env)
    assert told(command, env, tmp_path, subprocess.Popen) == told(command, env, tmp_path, Forked)


@pytest.mark.parametrize("program", ENDS)
def test_a_fork_ends_as_a_process_does(program: str) -> None:
    """With its exit code or the signal, after its threads."""
    command = [*PYTHON, "-c", f"import os, sys, threading, time; {program}"]
    with Child(command, "stderr") as child:
        child.ended()

    assert ENDS[program] == child.returncode


LEFT = """
from onceward import Postbox
text = open("text", "w")
text.write("left")
box = Postbox("a.db", agent="a", start=False)
print("said")
"""


def left(kind: type[Any], program: str, folder: Path, *, heard: bool) -> list[Any]:
    """Return what a program leaves in its folder, what it says where it is heard, and its code."""
    folder.mkdir()
    out, into = os.pipe()
    if not heard:
        os.close(out)
    command, env = [*PYTHON, "-c", program], {**os.environ, "PYTHONUNBUFFERED": ""}
    with kind(command, stdout=into, stderr=subprocess.DEVNULL, cwd=folder, env=env) as process:
        os.close(into)
    said = b""
    if heard:
        with os.fdopen(out, "rb") as stream:
            said = stream.read()
    return [*sorted(each.name for each in folder.iterdir()), said, process.returncode]


@pytest.mark.parametrize("last", ["", "box.close()"])
@pytest.mark.parametrize(("heard", "end"), [(True, [b"said\n", 0]), (False, [b"", 120])])
def test_a_fork_leaves_what_a_process_does(
    tmp_path: Path, last: str, *, heard: bool, end: list[Any]
) -> None:
    """Open files are written and closed, and what cannot be written any more is an error."""
    program = f"{LEFT}{last}"
    found = left(Forked, program, tmp_path / "fork", heard=heard)

    assert left(subprocess.Popen, program, tmp_path / "process", heard=heard) == found
    assert end == found[-2:]
    assert "left" == (tmp_path / "fork" / "text").read_text()


def test_a_fork_has_nothing_of_another(tmp_path: Path) -> None:
    """What one program imports and sets, the next does not find."""
    program = "import os, sys; print(hasattr(os, 'left')); os.left = sys.path.append('/left')"
    command = [sys.executable, "-c", f"{program}; print('/left' in sys.path[:-1])"]

    said = [Forked(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    assert ["False\nFalse\n"] * 2 == [each.communicate()[0] for each in said]


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["-W", "error", "-c", "pass"], {}),
        (["-c", "pass"], {"PYTHONHASHSEED": "0"}),
        (["-m", "json"], {"PYTHONOPTIMIZE": "1"}),
    ],
)
def test_an_option_of_the_interpreter_starts_a_fresh_one(
    words: list[str], env: dict[str, str]
) -> None:
    """What Python reads as it starts cannot change in a fork."""
    assert not can_fork([sys.executable, *words], {**os.environ, **env})
    assert not can_fork(["/bin/sh", *words], dict(os.environ))
