"""``onceward work`` and ``onceward relay``: run the engines of agents in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from onceward import Agent, Postbox
from onceward.file import image
from onceward.file.open_files import share_heaps, trim
from onceward.ops.cli.exit_codes import Usage
from onceward.ops.cli.file_word import is_file
from onceward.ops.cli.listening import LISTENING, Listening
from onceward.ops.cli.logs import LOGGING, Logging, announce
from onceward.ops.cli.measuring import MEASURING, Measuring
from onceward.ops.cli.named_agents import named_agents
from onceward.ops.cli.options import Quiet
from onceward.ops.cli.reloading import run_again_when_changed
from onceward.ops.cli.serve import once as run_once
from onceward.ops.cli.serve import serve
from onceward.ops.cli.target import (
    ANSWER,
    WHERE,
    Answer,
    Where,
    agent_file,
    chosen,
    existing,
    refuse_deleted,
)
from onceward.ops.cli.team import run_team


def work(
    *words: str,
    processes: int = 1,
    workers: int | None = None,
    reload: Annotated[bool, Quiet] = False,
    once: Annotated[bool, Quiet] = False,
    home: Path | None = None,
    logging: Logging = LOGGING,
    listening: Listening = LISTENING,
    measuring: Measuring = MEASURING,
    answer: Answer = ANSWER,
) -> int:
    """
    Run the handlers of agents on their files until a signal stops them.

    It also delivers the agents' messages. Modules are searched from the current folder. The file of
    one agent may come before it: it ends in .db, .sqlite or .sqlite3, or is a path with a folder;
    by default it is NAME.db in the home. A file is created if it does not exist, and your own
    tables by functions with @agent.at_open. An interrupt or terminate signal stops it gracefully:
    it starts no new message, waits for running handlers and releases other leases (exit codes 130,
    143). It ends within 16 seconds: after five, coroutines are cancelled, and after another five an
    open transaction is rolled back. Workers may join and leave at any time; a killed one leaves
    only leases that expire. With --metrics and several processes each has its own port, from the
    given one upwards.

    Example: onceward work shop.agent:agent --reload

    Example: onceward work chat:writer chat:editor

    Example: onceward work shop.db shop.agent:agent --processes 2

    Example: onceward work shop.db shop.agent:agent --metrics 127.0.0.1:9464

    Args:
        words: MODULE:VARIABLE (an agent, or a list, tuple or dict of agents), or MODULE for all
            agents that are variables of it.
        processes: Number of processes; if one fails, the others are stopped, with exit code 1.
        workers: Threads of each process and agent that run handlers.
        reload: Restart whenever a Python file below the current folder changes.
        once: Handle due messages, then exit.
        home: The home folder of NAME.db; default ONCEWARD_HOME, else here.

    """
    file, targets = _file_and_targets(words, home)
    if processes < 1:
        raise Usage("--processes must be at least 1")
    if reload:
        return run_again_when_changed(sys.argv[1:])
    share_heaps()
    agents = named_agents(targets)
    if file is not None and len(agents) > 1:
        raise Usage(f"{file} is one agent's file, and {len(agents)} are named: omit the file")
    paths = {file or agent_file(agent.name, home): agent for agent in agents}
    options: dict[str, Any] = {} if workers is None else {"workers": workers}
    if processes > 1:
        if listening.listen or listening.ask:
            msg = "--listen and --ask need a single process: run onceward serve beside the workers"
            raise Usage(msg)
        team = [*words, *_told(home, workers, once=once), *logging.words]
        return run_team([[*team, *measuring.words(index)] for index in range(processes)])
    for path in paths:
        refuse_deleted(path)
    with logging.written():
        for path, agent in paths.items():
            if not path.exists():
                announce(f"creating {path} for agent {agent.name}")
        with _opened(paths, listening, measuring, start=not once, **options) as boxes:
            return run_once(boxes, answer) if once else serve(boxes, answer)


def _file_and_targets(words: Sequence[str], home: Path | None) -> tuple[Path | None, Sequence[str]]:
    """Return the file that the first word names, if it is one, and the words for agents."""
    file = Path(words[0]) if words and _is_path(words[0]) else None
    targets = words if file is None else words[1:]
    if not targets:
        raise Usage("no agent is named: write module:agent, as in onceward work app:agent")
    if file is not None and home:
        raise Usage(f"{file} is the file, and --home names the folder of NAME.db: give one of them")
    return file, targets


def _is_path(word: str) -> bool:
    """Return whether a word is meant as a file, which need not exist."""
    return is_file(word) or (os.sep in word and ":" not in word)


def _told(home: Path | None, workers: int | None, *, once: bool) -> list[str]:
    """Return the options of the command, for the command line of a child."""
    given = {"--home": home, "--workers": workers}
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    return [*options, *(["--once"] if once else [])]


def relay(
    db: Path | None = None,
    /,
    *,
    once: Annotated[bool, Quiet] = False,
    logging: Logging = LOGGING,
    listening: Listening = LISTENING,
    measuring: Measuring = MEASURING,
    where: Where = WHERE,
) -> int:
    """
    Deliver an agent's messages until a signal stops it, without running handlers.

    For files whose owner only writes, such as another program, another language, or onceward send.
    Any number of relays and workers may run on one file. An interrupt or terminate signal stops it
    gracefully (exit codes 130, 143).

    Example: onceward relay shop.db --once

    Args:
        db: The agent's file; default as for --db.
        once: Deliver due messages, then exit.

    """
    path = existing(*chosen([db] if db else [], where))
    with logging.written(), _opened({path: None}, listening, measuring, start=not once) as boxes:
        return run_once(boxes, where) if once else serve(boxes, where)


@contextmanager
def _opened(
    agents: Mapping[Path, Agent | None], listening: Listening, measuring: Measuring, **options: Any
) -> Iterator[list[Postbox]]:
    """Open files with their agents, listeners and metrics."""
    ears = listening.listeners()
    asking = listening.asking_each(agents)
    with ExitStack() as stack:
        boxes = [
            stack.enter_context(
                Postbox(path, agent=agent, listeners=[*ears, *asking[path]], **options)
            )
            for path, agent in agents.items()
        ]
        every = [*ears, *chain.from_iterable(asking.values())]
        stack.enter_context(measuring.serving(boxes, agents, every))
        for box in boxes:
            listening.tell_left(box)
        image.forget()
        trim()
        yield boxes
