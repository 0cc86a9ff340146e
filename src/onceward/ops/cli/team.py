"""Run several worker processes as one: started together, stopped together."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

from onceward.ops.cli.exit_codes import DONE, FAILED, SIGNAL
from onceward.ops.cli.output import note
from onceward.ops.cli.signals import STOPS, first, stops

Child = subprocess.Popen[bytes]
GRACEFUL = frozenset({DONE, *(SIGNAL + number for number in STOPS)})


def run_team(team_arguments: Sequence[Sequence[str]]) -> int:
    """
    Run a worker for each list of arguments until all have ended or a signal ends them.

    If a worker fails, the others are stopped gracefully: half a team would hide the fault.
    """
    told: SimpleQueue[int | Child] = SimpleQueue()
    command = [sys.executable, "-m", "onceward", "work"]
    with stops(told):
        team = [subprocess.Popen([*command, *words]) for words in team_arguments]  # noqa: S603 - our own program
        for child in team:
            Thread(target=_await, args=(child, told), daemon=True).start()
        return _watch(team, told)


def _await(child: Child, told: SimpleQueue[int | Child]) -> None:
    child.wait()
    told.put(child)


def _watch(team: Sequence[Child], told: SimpleQueue[int | Child]) -> int:
    code, running = DONE, len(team)
    while running:
        news = first(told)
        if isinstance(news, int):
            code = SIGNAL + news
            _stop(team)
            continue
        running -= 1
        if code == DONE:  # a worker that is stopped before it installs its handler is not a failure
            code = _verdict(news)
        if code == FAILED:
            _stop(team)
    return code


def _verdict(ended: Child) -> int:
    if ended.returncode in GRACEFUL:
        return ended.returncode
    note(f"worker {ended.pid} failed ({ended.returncode}); stopping the others")
    return FAILED


def _stop(team: Sequence[Child]) -> None:
    for child in team:
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
