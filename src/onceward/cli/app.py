"""The table of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from cyclopts import App, CycloptsError
from rich.console import Console

from onceward.cli.codes import DONE, FAILED, SIGNAL, USAGE, Usage, code_of, problem
from onceward.cli.paint import note
from onceward.errors import OncewardError

HELP: Final = """
Exactly-once mail between agents, in one SQLite file each.

A command works on one agent's file: --db FILE, or --agent NAME for agents/NAME.db in the home folder (ONCEWARD_HOME, else the
current one), or the environment's ONCEWARD_DB, or its ONCEWARD_AGENT. Spans are written 5m, 2h30m, 250ms, 7d or in seconds.

On a terminal commands print tables, elsewhere tab-separated lines without a header; --json prints one document with RFC 3339
times and errors as objects on stderr.

Exit codes: 0 done, 1 failed, 2 usage, 3 nothing there, 4 timed out, 5 conflict, 6 partly done, 7 refused (frozen, full, wrong
schema or file), 130 and 143 interrupted or terminated after a graceful stop.
"""

COMMANDS: Final = {
    "init": ("onceward.cli.init:init", "Create an agent's file."),
    "send": ("onceward.cli.send:send", "Commit a message into the outbox and print its id."),
    "recv": ("onceward.cli.recv:recv", "Take the next message, print it, and mark it as processed."),
    "ls": ("onceward.cli.ls:ls", "List queues by state, lanes, or the messages of a box."),
    "show": ("onceward.cli.show:show", "Show everything that is known about a message."),
    "stats": ("onceward.cli.stats:stats", "Print the present numbers and the totals."),
    "work": ("onceward.cli.work:work", "Run an agent's handlers until told to stop."),
    "relay": ("onceward.cli.relay:relay", "Deliver an agent's mail until told to stop, without handlers."),
    "freeze": ("onceward.cli.switch:freeze", "Stop sending, delivering and handling, in all processes."),
    "thaw": ("onceward.cli.switch:thaw", "Go on where freeze stopped."),
    "migrate": ("onceward.cli.migrate:migrate", "Bring a file's schema up to this version."),
    "check": ("onceward.cli.check:check", "Run the invariants over files; exit 1 with the offenders."),
    "doctor": ("onceward.cli.doctor:doctor", "Examine a file and its surroundings; each finding names its cure."),
    "sql": ("onceward.cli.sql:sql", "Run a reading SQL statement."),
    "demo": ("onceward.cli.demo:demo", "Watch agents lose nothing while their processes are killed."),
    "bench": ("onceward.bench:run", "Measure this machine."),
}
"""Import string and summary by command; a command's module is loaded when it is called."""

NOUNS: Final = {
    "peers": ("Who is reached where.", "onceward.cli.peers", ("ls", "add", "forget", "close-breaker")),
    "dead": ("Messages that ended badly.", "onceward.cli.dead", ("ls", "show", "replay", "discard", "purge")),
}
"""Summary, module and verbs of the commands that have verbs of their own."""


def build() -> App:
    """Return the program."""
    app = App(name="onceward", help=HELP, version=version("onceward"), help_format="plaintext")
    for name, (path, summary) in COMMANDS.items():
        app.command(path, name=name, help=None if path.startswith("onceward.cli.") and name != "demo" else summary)
    for noun, (summary, module, verbs) in NOUNS.items():
        app.command(group := App(name=noun, help=summary))
        for verb in verbs:
            group.command(f"{module}:{verb.replace('-', '_')}", name=verb)
    return app


def run(tokens: Sequence[str]) -> int:
    """Run one command; errors go to stderr, in words or as an object, and their kind is the exit code."""
    try:
        code = build()(list(tokens), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        _tell(Usage(_spoken(error)), tokens)
        return USAGE
    except OncewardError as error:
        _tell(error, tokens)
        return code_of(error)
    except KeyboardInterrupt:
        return SIGNAL + 2
    except BrokenPipeError:  # whoever read our output has gone: nobody is left to be told
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for the interpreter's last flush
        return FAILED
    return code if isinstance(code, int) else DONE


def _spoken(error: CycloptsError) -> str:
    try:
        return str(error)
    except ImportError as missing:  # it looks for commands of a similar name, and one lacks its library
        return f"{type(error).__name__}; {missing}"


def _tell(error: OncewardError, tokens: Sequence[str]) -> None:
    if "--json" in tokens:
        sys.stderr.write(json.dumps(problem(error), indent=2) + "\n")
    else:
        note(f"onceward: {error}" + ("; see --help" if isinstance(error, Usage) else ""))


def pages() -> dict[str, str]:
    """Return the plain help text of the program and of every command, by full name."""
    app = build()
    app.help_formatter = "plain"
    verbs = [[noun, verb] for noun, (_, _, verbs) in NOUNS.items() for verb in ("", *verbs)]
    names = [[], *([name] for name in COMMANDS), *([part for part in verb if part] for verb in verbs)]
    return {" ".join(["onceward", *name]): _page(app, name) for name in names}


def _page(app: App, name: list[str]) -> str:
    text = io.StringIO()
    app.help_print(name, console=Console(file=text, width=120, force_terminal=False, no_color=True))
    return "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines()) + "\n"
