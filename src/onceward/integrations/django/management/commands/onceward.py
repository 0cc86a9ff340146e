"""``manage.py onceward``: the command ``onceward`` on the file of a database."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections

from onceward.integrations.django import postboxes

WORKER = "onceward.integrations.django.worker"


class Command(BaseCommand):
    """Runs the command ``onceward`` for a database of this site."""

    help = (
        "Run the command onceward on the agent's file of a database: work runs its handlers and"
        " tasks, why says what waits, inspect shows it in a browser."
    )
    requires_system_checks: ClassVar[list[str]] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Name our argument, for help and ``call_command``."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="alias of the database")
        parser.add_argument("words", nargs=REMAINDER, help="a verb of onceward and its options")

    def run_from_argv(self, argv: list[str]) -> None:
        """Take ``--database ALIAS`` before the verb; the rest is the command's."""
        words, using = argv[2:], DEFAULT_DB_ALIAS
        if words and words[0].startswith("--database"):
            _, _, value = words.pop(0).partition("=")
            using = value or words.pop(0)
        sys.exit(self._run(words, using))

    def handle(self, *_: object, words: list[str], database: str, **__: object) -> None:
        """Run a verb of the command for ``call_command``; raise CommandError if it fails."""
        if code := self._run(words, database):
            raise CommandError(f"onceward ended with {code}", returncode=code)

    def _run(self, words: list[str], database: str) -> int:
        wrapper = connections[database]
        postboxes.agent_name(wrapper)
        path = str(Path(postboxes.path_of(wrapper)).resolve())
        os.environ["ONCEWARD_DB"] = path
        given = list(words)
        if given[:1] == ["work"]:
            given[1:1] = [path, f"{WORKER}:{database}"]
        elif given[:1] == ["inspect"] and all(word.startswith("-") for word in given[1:]):
            given.append(path)
        sys.argv = ["onceward", *given]  # work --reload starts the same again
        main: Any = import_module("onceward.ops.cli").main
        code: int = main(given)
        return code
