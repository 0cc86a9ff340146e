"""
Write what comes from the code: drawings and schemas of the repository, and pages of the site.

    python3 docs/site/generate.py

writes the files that are committed; a test compares them. The reference pages of the site are made
by ``build.py`` at each build, and not committed: short ones stand in their place (``stubs``).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import classes
import commands
import decision
import fleets
import folders
import layers
import path
import readers
import shapes
import statechart
import stubs
import tables
import timeline
from pieces import code, flow, page, table

from onceward import RetryPolicy, errors
from onceward.message import events, settings, vocabulary

ROOT = Path(__file__).resolve().parents[2]

KINDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    tuple: "list of texts",
    dict: "table of lists",
    Path: "path",
    settings.Tuning: "`Tuning`, below",
    RetryPolicy: "`RetryPolicy`, or text such as `5x 1s..10s`",
}
"""Type of a setting by its class."""
LIMITS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def pages() -> dict[str, str]:
    """Return every generated file of the repository by its path in it."""
    stories = {f"docs/how-to/runs/{mode}.svg": timeline.draw(mode) for mode in timeline.STORIES}
    return stories | {
        "docs/explanation/architecture.md": folders.page(),
        "docs/path.svg": path.draw(),
        "docs/explanation/architecture.svg": layers.draw(),
        "docs/how-to/which-way-to-receive.svg": decision.draw(),
        "schema/0001_initial.sql": tables.initial(ROOT / "src" / "onceward"),
        "schema/frame.schema.json": shapes.frame_schema(),
        "schema/wire.schema.json": shapes.wire_schema(),
        "src/onceward/fleet/spark/__init__.py": fleets.listed(),
        "tests/checklist/README.md": checklist_page(),
        **stubs.pages(),
    }


def reference() -> dict[str, str]:
    """Return every generated page of the site, and its drawings, by path in the reference."""
    meanings = shapes.described((ROOT / "schema" / "README.md").read_text(encoding="utf-8"))
    directory = shapes.described((ROOT / "schema" / "DIRECTORY.md").read_text(encoding="utf-8"))
    found = {
        "directory.md": shapes.directory_page(directory),
        "errors.md": errors_page(),
        "events.md": events_page(),
        "frame.md": shapes.frame_page(),
        "lifecycle.md": lifecycle_page(),
        "schema.md": shapes.schema_page(meanings),
        "settings.md": settings_page(),
        "spark.md": fleets.fleet_page(meanings),
    }
    states = (
        ("inbox", vocabulary.INBOX, statechart.INBOX, "States of an inbox row"),
        ("outbox", vocabulary.OUTBOX, statechart.OUTBOX, "States of an outbox row"),
        ("runs", vocabulary.RUNS, statechart.RUNS, "States of a run"),
    )
    for name, moves, places, title in states:
        found[f"lifecycle-{name}.svg"] = statechart.draw(moves, places, title)
    return found | classes.pages() | commands.pages()


def checklist_page() -> str:
    """Return the contributors' page of the checklist, which lies with its test."""
    sys.path.append(str(ROOT))
    from tests.checklist import checklist  # noqa: PLC0415 - found by the line above

    return checklist.page()


# -- errors.md, events.md, settings.md -------------------------------------------------------------


def errors_page() -> str:
    """Return the page of the error tree: the drawing, then each class with what to do."""
    tree = (errors.__doc__ or "").partition("\n\n")[2].partition("Each class")[0]
    found = [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if cls.__module__ == errors.__name__
    ]
    order = sorted(found, key=lambda cls: readers.find(cls).lineno)
    rows = [("error", "try again?", "what happened, and what to do")]
    rows += [
        (code(cls.__name__), _retryable(cls), " ".join(readers.docs(readers.find(cls)).split()))
        for cls in order
    ]
    return page(
        "Errors",
        flow(
            "Catch `OncewardError` to catch everything of ours. `retryable` on the class says "
            "whether the same call may succeed later",
            "as it is. `Retry`, `Reject` and `Drop` are not errors: handlers raise them to say "
            "how a message ends.",
        ),
        f"```text\n{inspect.cleandoc(tree)}\n```",
        table(*rows),
    )


def _retryable(cls: type) -> str:
    if issubclass(cls, errors.HandlerSignal):
        return ""
    return "yes" if getattr(cls, "retryable", False) else "no"


def events_page() -> str:
    """Return the page of the events that hooks are called with."""
    rows = [("event", "class", "what is true now", "fields")]
    for name, kind in events.EVENTS.items():
        own = ", ".join(
            code(field.name)
            for field in dataclasses.fields(kind)
            if field.name not in {"agent", "at"}
        )
        rows.append((code(name), code(kind.__name__), readers.prose(kind.__doc__ or ""), own))
    return page(
        "Events",
        flow(
            "`postbox.on(Class, hook)` calls *hook* with every event of a class of "
            "`onceward.events`, `Event` with all, after the commit that made the event true,",
            "in the process that committed. Each has `agent` (of the file) and `at` "
            "(milliseconds) besides its own fields.",
            "A hook cannot veto a commit; an exception that it raises is logged.",
        ),
        table(*rows),
    )


def settings_page() -> str:
    """Return the page of the settings."""
    return page(
        "Settings",
        flow(
            "Give them as keywords to `Postbox`, as a `Settings` object, as `ONCEWARD_<NAME>` in "
            "the environment, or under",
            "`[tool.onceward]` in the nearest `pyproject.toml`; the first of these that names a "
            "setting "
            "wins. Spans are seconds, sizes are bytes.",
        ),
        _settings_table(settings.Settings),
        "`ONCEWARD_DISABLED=1` in the environment switches sending, pushing and handling off for "
        "one process.",
        "`Settings.five_minutes(**overrides)`: "
        + inspect.cleandoc(settings.Settings.five_minutes.__doc__ or ""),
        "## Tuning",
        inspect.cleandoc(settings.Tuning.__doc__ or "").replace("``", "`"),
        _settings_table(settings.Tuning),
    )


def _settings_table(model: type[settings.Settings | settings.Tuning]) -> str:
    notes = {
        field.name: field.note.replace("\n", " ") for field in readers.fields(readers.find(model))
    }
    rows = [("setting", "type", "default", "may be", "meaning")]
    rows += [
        (code(name), _kind(info), code(_value(info.default)), _bounds(info), notes[name])
        for name, info in model.model_fields.items()
    ]
    return table(*rows)


def _value(default: Any) -> str:
    if isinstance(default, RetryPolicy):
        return str(default)
    if isinstance(default, settings.Tuning):
        return "Tuning()"
    return (
        f"{default:_}"
        if isinstance(default, int) and not isinstance(default, bool)
        else json.dumps(default)
    )


def _kind(info: Any) -> str:
    """Return the type of a setting as its user writes it."""
    if any(getattr(each, "func", None) is settings._spelled for each in info.metadata):
        return "seconds, timedelta, or text such as `2h30m`"
    parts = [each for each in get_args(info.annotation) if each is not type(None)]
    is_optional = type(None) in get_args(info.annotation)
    kind = parts[0] if is_optional else info.annotation
    return KINDS.get(get_origin(kind) or kind, "text")


def _bounds(info: Any) -> str:
    choices = getattr(info.annotation, "__args__", None)
    if choices and get_origin(info.annotation) is Literal:
        return ", ".join(code(str(choice)) for choice in choices)
    if info.annotation is bool:
        return "`true`, `false`"
    found: dict[str, Any] = {}
    for limit in info.metadata:
        found |= {
            sign: getattr(limit, name)
            for name, sign in LIMITS.items()
            if getattr(limit, name, None) is not None
        }
    return " and ".join(f"{sign} {value:_}" for sign, value in found.items())


# -- lifecycle.md --------------------------------------------------------------------------


def lifecycle_page() -> str:
    """Return the page of the state machines, whose drawings bear the numbers of its tables."""
    return page(
        "Lifecycle",
        flow(
            "A message is one row in the sender's outbox and one in the recipient's inbox. Its "
            "state moves only along the arrows below.",
            "CHECKs and triggers of the file refuse every other move, even from a SQLite shell.",
        ),
        "## Outbox",
        "![States of an outbox row](lifecycle-outbox.svg)",
        _moves(vocabulary.OUTBOX),
        "`sending` is the views' word for a pending row in the parcel in flight.",
        "## Inbox",
        "![States of an inbox row](lifecycle-inbox.svg)",
        _moves(vocabulary.INBOX),
        "`processing` is the views' word for a pending row in a leased lane.",
        "## Runs",
        "![States of a run](lifecycle-runs.svg)",
        _moves(vocabulary.RUNS),
        "What that means for its messages: [which mode do I want](../how-to/runs/which-mode.md).",
        "## Dead letters",
        flow(
            "A message that ends badly leaves its box: the row moves to `dead_letters` in the "
            "same commit, with a reason.",
            "`replay` moves it back, as a pending row with its own id. See [dead "
            "letters](../how-to/deal-with-dead-letters.md).",
        ),
    )


def _moves(moves: dict[tuple[str, str], str]) -> str:
    rows = [
        (str(number), code(start), code(end), why)
        for number, ((start, end), why) in enumerate(moves.items(), start=1)
    ]
    return table(("", "from", "to", "when"), *rows)


def main() -> None:
    """Write the pages that have changed and print their names."""
    for name, text in pages().items():
        path = ROOT / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(name)  # noqa: T201 - that is its answer


if __name__ == "__main__":
    main()
