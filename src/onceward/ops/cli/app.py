"""The commands, and the one place where errors become exit codes."""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import json
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Final

from cyclopts import App, CycloptsError

from onceward.errors import OncewardError
from onceward.ops.cli.exit_codes import DONE, FAILED, SIGNAL, USAGE, Failed, Usage, code_of, problem
from onceward.ops.cli.file_word import is_file, with_file
from onceward.ops.cli.output import note
from onceward.ops.cli.parse_errors import in_words
from onceward.ops.cli.wording import OPTIONS, in_shell

ARGUMENTS: Final = "\n\nArgs:"
"""Heading of the docstring part that the parser shows with each argument."""
HELP: Final = """
Exactly-once messages between agents, in one SQLite file each.

A command works on one agent's file: the word after the command, if it ends in .db, .sqlite or
.sqlite3 or is a path to a file (onceward stats shop.db); or --db FILE; or --agent NAME for NAME.db
in the home folder (--home, else ONCEWARD_HOME, else the current folder); or the environment
variable ONCEWARD_DB or ONCEWARD_AGENT. Durations are written 5m, 2h30m, 250ms, 7d or in seconds.

On a terminal commands print tables, otherwise tab-separated lines without a header; --json prints
one document with RFC 3339 times, and errors as objects on stderr.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 timed out, 5 conflict, 6 partly done,
7 refused (paused, full, wrong schema or file), 130 and 143 interrupted or terminated after a
graceful stop.
"""

TABLE: Final = (
    ("new", "", "new"),
    ("init", "", "init"),
    ("send", "", "send"),
    ("recv", "", "receive"),
    ("reply", "", "reply"),
    ("cancel", "", "cancel"),
    ("poll", "", "poll tail maintain"),
    ("channel", "channel", "create ls show join leave add remove subscribe unsubscribe"),
    ("channel", "channel", "pause resume drain close delete"),
    ("channel_messages", "channel", "send receive ack acks history"),
    ("channel_messages", "", "publish"),
    ("mailbox", "mailbox", "ensure ls send read reset query show discard"),
    ("ls", "", "ls show stats"),
    ("why", "", "why"),
    ("agents", "agents", "ls register remove subscribe unsubscribe"),
    ("nats", "nats", "setup"),
    ("homes", "homes", "show add ls agents ping remove rotate"),
    ("keys", "keys", "new add ls rotate remove"),
    ("peers", "peers", "ls add allow remove reset subscribe unsubscribe ping"),
    ("dead", "dead", "ls replay discard"),
    ("dead_edit", "dead", "edit"),
    ("runs", "runs", "ls show abort"),
    ("queue", "runs", "queues set reorder discard pause resume remove"),
    ("poll", "sessions", "stats"),
    ("history", "", "history thread search"),
    ("limits", "limits", "ls set remove fullness drops"),
    ("groups", "groups", "ls"),
    ("pools", "pools", "ls join leave drain add remove release"),
    ("schedules", "schedules", "ls dates add edit remove pause resume run"),
    ("work", "", "work relay"),
    ("home", "", "serve"),
    ("metrics", "", "metrics"),
    ("top", "", "top"),
    ("inspector", "", "inspect"),
    ("mcp", "", "mcp"),
    ("pause", "", "pause resume"),
    ("migrate", "", "migrate"),
    ("check", "", "check"),
    ("backup", "", "backup restore"),
    ("takeover", "", "takeover"),
    ("doctor", "", "doctor"),
    ("sql", "", "sql"),
    ("ship", "", "ship"),
    ("fleet", "fleet", "demo reconcile"),
    ("fleet_jobs", "fleet", "metrics threads graph replay export"),
    ("demo", "", "demo"),
    ("completion", "", "completion"),
)
"""Module, noun and verbs; a verb is a function of its module. Modules load when they are called."""

NOUNS: Final = {
    "channel": "Channels of the home.",
    "mailbox": "Mailboxes of the home.",
    "agents": "Agents of the home, and their subscriptions to published topics.",
    "nats": "NATS servers that connect agents.",
    "peers": "Peers: their urls and circuit breakers.",
    "homes": "Other homes, whose agents are reached by their names.",
    "keys": "Keys that a home shares with peers on other machines.",
    "dead": "Dead letters.",
    "runs": "Runs of sessions, and their queues.",
    "sessions": "Sessions and their messages.",
    "limits": "Limits of a file.",
    "groups": "Groups of messages, whose completion is a message.",
    "pools": "Pools of agents that share a queue.",
    "schedules": "Messages that are sent repeatedly, at given times.",
    "fleet": "Many agents' files at once: find lost messages, count, export, replay.",
}
"""Commands that have verbs of their own."""

ELSEWHERE: Final = {
    "health": "doctor",
    "inbox": "ls inbox",
    "outbox": "ls outbox",
    "lanes": "ls lanes",
    "queues": "runs queues",
    "find": "show",
    "trace": "show",
    "transitions": "show",
    "explain": "why",
    "pump": "relay --once",
    "flush": "relay --once",
    "replay": "dead replay",
    "subscribe": "agents subscribe",
    "retire": "agents remove",
    "status": "stats",
    "home": "agents",
}
"""Commands by the words that the library or the pages use for their purpose."""


def _path(module: str, verb: str) -> str:
    """Return the import string of a verb; a function named like a builtin ends in an underscore."""
    name = verb.replace("-", "_")
    return f"onceward.ops.cli.{module}:{name}{'_' * hasattr(builtins, name)}"


COMMANDS: Final = {
    f"{noun} {verb}".strip(): _path(module, verb)
    for module, noun, verbs in TABLE
    for verb in verbs.split()
}
"""Import string by full name."""


def summary(name: str) -> str:
    """Return the first line of a command's docstring, read from its source without importing it."""
    module, _, function = COMMANDS[name].rpartition(".")[2].partition(":")
    return _first_lines(module)[function]


@cache
def _first_lines(module: str) -> dict[str, str]:
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    found = (
        (node.name, ast.get_docstring(node))
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    )
    return {name: (text or "").partition("\n")[0] for name, text in found}


def build(tokens: Sequence[str] = ()) -> App:
    """Return the program with the command that *tokens* name, or with all commands."""
    app = App(
        name="onceward", help=HELP, version=_version, suppress_keyboard_interrupt=False
    )  # ``run`` turns an interrupt into an exit code
    called = called_by(tokens)
    nouns: dict[str, App] = {}
    for full in [called] if called else COMMANDS:
        noun, _, verb = full.rpartition(" ")
        if noun and noun not in nouns:
            nouns[noun] = App(name=noun, help=NOUNS[noun])
            app.command(nouns[noun])
        about = described(full) if called else summary(full)
        nouns.get(noun, app).command(COMMANDS[full], name=verb, help=about)
    return app


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - a tenth of the time of a command

    return version("onceward")


def described(name: str) -> str:
    """Return a command's help text: its docstring without the arguments."""
    module, _, function = COMMANDS[name].partition(":")
    doc = inspect.getdoc(getattr(import_module(module), function)) or ""
    return doc.partition(ARGUMENTS)[0].rstrip()


def called_by(tokens: Sequence[str]) -> str | None:
    """Return the full name of the command that *tokens* name, if any."""
    names = (" ".join(tokens[:2]), " ".join(tokens[:1]))
    return next((name for name in names if name in COMMANDS), None)


def options_of(program: App, called: str) -> frozenset[str]:
    """Return the options of a command, as the names that they have as parameters."""
    *_, (*_, command), _ = program.parse_commands(called.split())
    names = (name for each in command.assemble_argument_collection() for name in each.names)
    return frozenset(name[2:].replace("-", "_") for name in names if name.startswith("--"))


def run(tokens: Sequence[str]) -> int:
    """Run one command; errors go to stderr as text or as an object, and set the exit code."""
    try:
        check_command(tokens)
        called = called_by(tokens)
        program = build(tokens)
        OPTIONS.set(partial(options_of, program, called) if called else frozenset)
        program.exit_on_error, program.print_error = False, False
        words = with_file(called, tokens) if called else list(tokens)
        code = program(words, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        _tell(Usage(in_words(error)), tokens)
        return USAGE
    except OncewardError as error:
        _tell(error, tokens)
        return code_of(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # of a folder or a file that the command was to make or to read
        _tell(Failed(f"{error.filename or 'the system'}: {error.strerror or error}"), tokens)
        return FAILED
    except KeyboardInterrupt:
        return SIGNAL + 2
    return code if isinstance(code, int) else DONE


def check_command(tokens: Sequence[str]) -> None:
    """Raise Usage for a command that does not exist, without loading the others."""
    for depth, given in enumerate(tokens[:2]):
        before = [*tokens[:depth]]
        names = [full.split() for full in COMMANDS]
        there = {name[depth] for name in names if name[:depth] == before and len(name) > depth}
        if given.startswith("-") or not there:
            return
        if given not in there:
            raise Usage(
                f"there is no command {' '.join([*before, given])!r}{_guess(before, given, there)}"
            )


def _guess(before: Sequence[str], given: str, there: Iterable[str]) -> str:
    if not before and is_file(given):
        return ": a file comes after the command, as in onceward stats FILE"
    near = [ELSEWHERE[given]] if not before and given in ELSEWHERE else []
    near = near or get_close_matches(given, there, 1)
    return f": did you mean {near[0]}?" if near else ""


def _tell(error: OncewardError, tokens: Sequence[str]) -> None:
    if "--json" in tokens:
        sys.stderr.write(json.dumps(problem(error), indent=2) + "\n")
    else:
        note(
            f"onceward: {in_shell(str(error))}"
            + ("; see --help" if isinstance(error, Usage) else "")
        )


def pages() -> dict[str, str]:
    """Return the plain help text of the program and of every command, by full name."""
    return {f"onceward {name}".strip(): page(name) for name in ("", *NOUNS, *COMMANDS)}


@cache
def page(full: str) -> str:
    """Return the plain help text of a command by its full name; that of the program for none."""
    from rich.console import Console  # noqa: PLC0415 - drawing help, nothing else, needs it

    name = full.split()
    app = build(name)
    app.help_formatter = "plain"
    text = io.StringIO()
    console = Console(file=text, width=160, force_terminal=False, no_color=True)
    app.help_print(name, console=console)
    return "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines()) + "\n"
