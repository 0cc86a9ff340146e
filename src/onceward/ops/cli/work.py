"""``onceward work`` and ``onceward relay``: run an agent's engines in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from onceward import Agent, Postbox
from onceward.errors import OncewardError
from onceward.ops.cli.exit_codes import Usage
from onceward.ops.cli.listening import LISTENING, Listening
from onceward.ops.cli.logs import LOGGING, Logging, announce
from onceward.ops.cli.measuring import MEASURING, Measuring
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
    db: str | None = None,
    target: str | None = None,
    /,
    *,
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
    Run an agent's handlers on its file until a signal stops them.

    It also delivers the agent's messages. One word is the target, two are the file and the target.
    The file is created if it does not exist; functions with @agent.at_open create your own tables.
    An interrupt or terminate signal stops it gracefully: it starts no new message, waits for
    running handlers and releases other leases (exit codes 130, 143). It ends within 16 seconds:
    after five, coroutines are cancelled, and after another five an open transaction is rolled back.
    Workers may join and leave at any time; a killed one leaves only leases that expire. With
    --metrics and several processes each has its own port, from the given one upwards.

    Example: onceward work shop.agent:agent --reload

    Example: onceward work shop.db shop.agent:agent --processes 2

    Example: onceward work shop.db shop.agent:agent --metrics 127.0.0.1:9464

    Args:
        db: The agent's file; default: NAME.db in the home, where NAME is the agent's.
        target: Module and variable of the agent, searched from the current folder: shop:queue is
            the variable queue of shop.py.
        processes: Number of processes; if one fails, the others are stopped, with exit code 1.
        workers: Threads of each process that run handlers.
        reload: Restart whenever a Python file below the current folder changes.
        once: Handle due messages, then exit.
        home: The home folder of NAME.db; default ONCEWARD_HOME, else here.

    """
    if db is None:
        raise Usage("no agent is named: write module:agent, as in onceward work app:agent")
    if target and home:
        raise Usage(f"{db} is the file, and --home names the folder of NAME.db: give one of them")
    if processes < 1:
        raise Usage("--processes must be at least 1")
    if reload:
        return run_again_when_changed(sys.argv[1:])
    path, target = (Path(db), target) if target else (None, db)
    agent = load(target)
    path = path or agent_file(agent.name, home)
    options: dict[str, Any] = {} if workers is None else {"workers": workers}
    if processes > 1 and (listening.listen or listening.ask):
        msg = "--listen and --ask need a single process: run onceward serve beside the workers"
        raise Usage(msg)
    if processes > 1:
        words = [str(path), target, *(["--once"] if once else [])]
        words += [] if workers is None else [f"--workers={workers}"]
        words += logging.words
        return run_team([[*words, *measuring.words(index)] for index in range(processes)])
    refuse_deleted(path)
    with logging.written():
        if not path.exists():
            announce(f"creating {path} for agent {agent.name}")
        with _opened(path, listening, measuring, agent=agent, start=not once, **options) as box:
            return run_once(box, answer) if once else serve(box, answer)


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
    with logging.written(), _opened(path, listening, measuring, start=not once) as box:
        return run_once(box, where) if once else serve(box, where)


@contextmanager
def _opened(
    path: Path, listening: Listening, measuring: Measuring, **options: Any
) -> Iterator[Postbox]:
    """Open a file with its listeners and metrics."""
    ears = [*listening.listeners(), *listening.asking(path)]
    with Postbox(path, listeners=ears, **options) as box, measuring.serving([box], [path], ears):
        listening.tell_left(box)
        yield box


def load(target: str) -> Agent:
    """
    Return the agent that *target* names.

    Raises:
        Usage: there is none; an error inside the module is not caught.

    """
    module, _, name = target.partition(":")
    if not module or not name:
        raise Usage(f"{target!r} does not say where the agent is: write module:agent")
    with suppress(FileNotFoundError):  # it was deleted, so no module is found there
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
    found: Any = _imported(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Agent):
        raise Usage(_without_agent(module, name))
    return found


def _without_agent(module: str, name: str) -> str:
    """Return what to do about a module without such an agent; a folder imports as a module."""
    if getattr(sys.modules[module], "__file__", None) is None:
        return (
            f"{module} is a folder, not a module: "
            f"change to the folder (cd {module}), or write {module}.FILE:{name}"
        )
    return f"{module}:{name} is not an Agent: declare {name} = Agent(...) in {module}"


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except OncewardError as error:  # of a declaration: its line is in the traceback
        raise ImportError(f"{module} is not importable: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise Usage(f"no module {error.name!r} is found from {sys.path[0]}") from error
