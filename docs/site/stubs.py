"""
Write the pages that stand in the repository in place of the reference pages of the site.

Each lists its names beside the file that defines them, and the command that prints the whole.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from pieces import code, page, table

import onceward
from onceward import errors, types
from onceward.fleet import columns, spark
from onceward.message import events, settings
from onceward.ops.cli import app

PACKAGE: Final = Path(onceward.__file__).parent
SITE: Final = "The site has this page in full: `python3 docs/site/build.py` makes it."
Named = Mapping[str, Iterable[str]]
"""Names by the path of the file that defines them, below the package."""


@dataclass(frozen=True)
class Stub:
    """A page of names."""

    title: str
    about: str
    command: str
    """Prints everything about the names, or about one of them, from the code."""
    names: Named

    def text(self) -> str:
        """Return the page."""
        rows = [
            (f"[`{path}`](../../src/onceward/{path})", _listed(names))
            for path, names in self.names.items()
        ]
        shown = f"In a terminal:\n\n```console\n$ {self.command}\n```"
        names = table(("defined in", "names"), *rows)
        return page(self.title, f"{self.about} {SITE} {shown}", names)


def _listed(names: Iterable[str]) -> str:
    """Return names, each with an anchor that leads to it on a code host."""
    return ", ".join(f'<a id="{_anchor(name)}"></a>{code(name)}' for name in names)


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def stubs() -> dict[str, Stub]:
    """Return the pages by name."""
    return {
        "api.md": Stub(
            "API",
            "Public names of `onceward`, and of `onceward.types`.",
            "python3 -m pydoc onceward.Postbox",
            _public(),
        ),
        "cli.md": Stub(
            "Command",
            "Commands of `onceward`; each has arguments, options and examples in its `--help`.",
            "onceward --help",
            _commands(),
        ),
        "errors.md": Stub(
            "Errors",
            "The tree of errors: what each means, whether a retry helps, what to do.",
            "python3 -m pydoc onceward.errors",
            {"errors.py": _classes(errors.__name__, vars(errors).values())},
        ),
        "events.md": Stub(
            "Events",
            "Events that hooks are called with, and their fields.",
            "python3 -m pydoc onceward.events",
            {"message/events.py": [kind.__name__ for kind in events.EVENTS.values()]},
        ),
        "settings.md": Stub(
            "Settings",
            "Settings with types, defaults and limits, each with its meaning in the source.",
            "python3 -m inspect onceward.message.settings",
            {"message/settings.py": settings.Settings.model_fields | settings.Tuning.model_fields},
        ),
        "spark.md": Stub(
            "Fleets on Spark",
            "Functions and tables of the format `onceward` in Spark; columns and options are in"
            " the first lines of the source.",
            "python3 -m pydoc onceward.fleet.spark",
            {"fleet/spark/__init__.py": (*spark.__all__, *columns.tables())},
        ),
    }


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the repository."""
    return {f"docs/reference/{name}": stub.text() for name, stub in stubs().items()}


def _classes(module: str, values: Iterable[object]) -> list[str]:
    return [v.__name__ for v in values if isinstance(v, type) and v.__module__ == module]


def _public() -> dict[str, list[str]]:
    """Return the public names by file, as the modules of the names say."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module in (onceward, types):
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, ModuleType):
                found[_path(value.__module__)].append(name)
    return dict(sorted(found.items()))


def _path(module: str) -> str:
    return Path(str(sys.modules[module].__file__)).relative_to(PACKAGE).as_posix()


def _commands() -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for full, place in app.COMMANDS.items():
        module = place.partition(":")[0].rpartition(".")[2]
        found[f"ops/cli/{module}.py"].append(full)
    return dict(sorted(found.items()))
