"""Say errors of the library to a user of the shell: commands and options for calls of Python."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextvars import ContextVar
from typing import Final

from onceward.message.error_text import Hint

SHELL: Final = {
    Hint.RESUME: "run onceward resume first",
    Hint.TAKEN_OVER: (
        "another machine has taken over this agent, and peers refuse this file: stop its processes;"
        " run onceward doctor to see which machine"
    ),
    Hint.ASK_STATE: "run onceward show ID",
    Hint.ASK_RESULT: "look for the reply in onceward history",
    Hint.CREATE_FILE: "onceward init NAME creates it",
    Hint.OPEN_WITH_AGENT: "run onceward init NAME",
    Hint.HOLD_UNKNOWN: "set ONCEWARD_HOLD_UNKNOWN=1",
    Hint.SEARCH: "run this once with ONCEWARD_SEARCH=1",
    Hint.NETWORK_FILESYSTEM: "set ONCEWARD_NETWORK_FILESYSTEM=1",
    Hint.FOREIGN_KEYS: "run this once with ONCEWARD_FOREIGN_KEYS=1",
    Hint.DURABILITY: "set ONCEWARD_DURABILITY to safe or fast",
    Hint.BUSY_TIMEOUT: "set ONCEWARD_BUSY_TIMEOUT to seconds",
    Hint.MAINTAIN: "onceward relay does it",
    Hint.BROADCAST: "onceward send broadcast sends",
    Hint.TRANSPORT: "install one",
    Hint.NO_EXPIRY: "or --forever",
    Hint.USE_MAILBOX: "omit --exclusive, or choose another name",
    Hint.USE_CHANNEL: "--ensure uses the existing one",
    Hint.SET_PUBLIC: "give a name",
    Hint.DETACHED: "give the handle that onceward channel receive printed",
    Hint.NEXT_PAGE: "the next of a page",
    Hint.MOMENT: "write 2026-01-31T12:00:00Z, or milliseconds since 1970",
    Hint.TIME_ZONE: "end it in Z or in +02:00",
    Hint.RUNS: "see onceward runs ls",
}
"""Each hint in the words of the shell's user."""
ENDS: Final = ("", *" ,;:.)")
"""Characters after the name of an option that has no value."""
OPTIONS: Final = ContextVar[Callable[[], Collection[str]]]("OPTIONS", default=frozenset)
"""Returns the names of the parameters of the command that runs."""


def in_shell(text: str) -> str:
    """Return an error text with hints, and with options of the command, as the shell has them."""
    for hint, told in SHELL.items():
        text = text.replace(hint, told)
    options = OPTIONS.get()()
    return " ".join(_word(each, options) for each in text.replace("``", "").split(" "))


def _word(word: str, options: Collection[str]) -> str:
    """Return ``name=value`` as ``--name value`` if the command has this option."""
    before, equals, value = word.partition("=")
    name = before.lstrip("(")
    if not equals or name not in options:
        return word
    flag, given = f"--{name.replace('_', '-')}", value.removeprefix("True")
    between = "" if given[:1] in ENDS else " "
    return f"{before.replace(name, flag)}{between}{given}"
