"""
Write the reference pages from the code; run it after a change, a test compares.

    python3 docs/generate.py
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import re
import sys
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, cast, get_args, get_origin

import decision
import fleets
import folders
import layers
import readers
import shapes
import statechart
import timeline
from pieces import code, flow, page, table

import onceward
from onceward import RetryPolicy, errors, types
from onceward.message import events, parcel, settings, vocabulary

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "onceward"

FOLDERS = ("message", "core", "features", "transports", "api")
"""Folders of the classes that the page of the API shows."""
SECTIONS = {
    "The postbox": (
        "Postbox EventSource Session Transaction Message ReceivedMessage MessageRecord Ticket "
        "Cancellation Cancellations StreamItem Chunk Restarted Ended "
        "Journey DedupRecord StepInfo StreamInfo Transition"
    ),
    "The file, agents, peers and pages": (
        "AgentFile Health Violation Repair Agents AgentInfo Peers PeerInfo Page"
    ),
    "Schedules": "Schedules Schedule Tick",
    "Limits": "Limits LimitInfo DropRecord",
    "Dead letters": ("DeadLetters DeadLetterFilter ReplayResult DeadLetter"),
    "Sessions and their runs": (
        "Sessions SessionQueues Run RunFields QueueOptions Summary PreviousRun StoredStep RunInfo "
        "QueueInfo"
    ),
    "Channels": ("Channels Channel ChannelConfig ChannelInfo SendResult Acknowledgment"),
    "Mailboxes": ("Mailboxes Mailbox MailboxFields Start MailboxInfo HandlerTransaction"),
    "Options and filters": (
        "SendOptions PublishOptions PostboxOptions Controls CommonFilters "
        "SessionHistoryFilters ChannelHistoryFilters HistoryFilters "
        "MailboxFilters"
    ),
    "Agents and handlers": "Agent Context BatchContext OutputStream step StepOptions Depends Msg",
    "The same, awaitable": (
        "AsyncPostbox AsyncSession SessionFace AsyncTransaction AsyncMessage AsyncContext "
        "AsyncBatchContext AsyncRun AsyncMailbox AsyncHandlerTransaction AsyncChannel "
        "AsyncSchedules AsyncLimits AsyncSessions AsyncAgentFile"
    ),
    "Settings and policies": "Settings RetryPolicy",
    "Hooks": ("LogHook AuditLog Observer Sending Handling SendFacts Attempt"),
    "For transports": (
        "Transport Features Parcel ParcelFrame Receipt Answer Frame FunctionTransport"
    ),
}
"""
The public names and the classes that public calls return, by what they are for.

Errors have a page of their own.
"""

BUILT = (
    "Postbox",
    "AsyncPostbox",
    "Agent",
    "AuditLog",
    "Drop",
    "FunctionTransport",
    "LogHook",
    "Reject",
    "Retry",
    "Settings",
)
"""Classes that users build themselves; the signature of every other class is not shown."""

OBJECTS = {"StepDecorator": "step"}
"""Public name of an object by its class."""

KINDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    tuple: "list of texts",
    dict: "table of lists",
    RetryPolicy: "`RetryPolicy`",
}
"""Type of a setting by its class."""
BOUNDED = re.compile(r"Annotated\[([^,\[\]]+), [^\]]*\]")
SPANS = re.compile(r"(?<=: )(?:Seconds|Positive)\b")
LIMITS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
ELSEWHERE = ("Settings", "Frame")
"""Models whose fields have a page of their own."""


def pages() -> dict[str, str]:
    """Return every generated file by its path in the repository."""
    meanings = shapes.described((ROOT / "schema" / "README.md").read_text(encoding="utf-8"))
    reference = {
        "api.md": api_page(),
        "directory.md": shapes.directory_page(
            shapes.described((ROOT / "schema" / "DIRECTORY.md").read_text(encoding="utf-8"))
        ),
        "errors.md": errors_page(),
        "events.md": events_page(),
        "frame.md": shapes.frame_page(),
        "lifecycle.md": lifecycle_page(),
        "lifecycle-inbox.svg": statechart.draw(
            vocabulary.INBOX, statechart.INBOX, "States of an inbox row"
        ),
        "lifecycle-outbox.svg": statechart.draw(
            vocabulary.OUTBOX, statechart.OUTBOX, "States of an outbox row"
        ),
        "lifecycle-runs.svg": statechart.draw(vocabulary.RUNS, statechart.RUNS, "States of a run"),
        "schema.md": shapes.schema_page(meanings),
        "settings.md": settings_page(),
        "spark.md": fleets.fleet_page(meanings),
    }
    if has_command():
        reference["cli.md"] = command_page()
    stories = {f"docs/how-to/runs/{mode}.svg": timeline.draw(mode) for mode in timeline.STORIES}
    named = {f"docs/reference/{name}": text for name, text in reference.items()}
    return (
        named
        | stories
        | {
            "docs/explanation/architecture.md": folders.page(),
            "docs/explanation/architecture.svg": layers.draw(),
            "docs/how-to/which-way-to-receive.svg": decision.draw(),
            "schema/frame.schema.json": shapes.frame_schema(),
            "schema/wire.schema.json": shapes.wire_schema(),
            "tests/checklist/README.md": checklist_page(),
        }
    )


def checklist_page() -> str:
    """Return the contributors' page of the checklist, which lies with its test."""
    sys.path.append(str(ROOT))
    from tests.checklist import checklist  # noqa: PLC0415 - found by the line above

    return checklist.page()


# -- api.md ----------------------------------------------------------------------------------------


def api_page() -> str:
    """Return the page of the public names, by section; names without one come last."""
    known = (
        {name for listed in SECTIONS.values() for name in listed.split()}
        | set(dir(errors))
        | {"errors"}
    )
    sections = SECTIONS | {
        "Others": " ".join(
            name for name in (*onceward.__all__, *types.__all__) if name not in known
        )
    }
    parts = [
        flow(
            "Everything that `from onceward import …` offers, and what its calls return.",
            "Types that only annotations name are in `onceward.types`.",
            "What authors of transports need is in `onceward.transports`, "
            "events are in `onceward.events`.",
            "Errors, and what handlers raise, have [a page of their own](errors.md).",
            "Spans are seconds, times are integer milliseconds since 1970.",
        )
    ]
    for title, listed in sections.items():
        if listed:
            parts += [f"## {title}", *(_class(_named(name)) for name in listed.split())]
    parts += ["## Sets of values", "Types that name a closed set of values.", _vocabulary()]
    return _readable(page("API", *parts))


def _vocabulary() -> str:
    """Return the table of the Literals that types on the page name, with their values."""
    sets = {
        name: values
        for name, found in sorted(vars(vocabulary).items())
        if name[0].isupper() and (values := _values(found))
    } | {"Durability": get_args(parcel.Durability)}
    rows = [(code(name), ", ".join(map(code, sets[name]))) for name in sorted(sets)]
    return table(("type", "values"), *rows)


def _values(found: Any) -> tuple[str, ...]:
    """Return the values of a Literal, or of a union of some; of anything else none."""
    if get_origin(found) is Literal:
        return get_args(found)
    return tuple(each for part in get_args(found) for each in _values(part))


def _named(name: str) -> type:
    """Return a class, or an alias, by its name, which no other class of the library has."""
    for module in (onceward, types):
        if name in module.__all__:
            return cast("type", getattr(module, name))
    found = {
        id(value): value
        for path in _sources()
        if re.search(
            rf"^(class {name}\b|{name}\s*[:=])", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        for value in [getattr(importlib.import_module(_dotted(path)), name)]
    }
    assert len(found) == 1, f"{name} is {len(found)} classes"  # noqa: S101 - a script
    return cast("type", next(iter(found.values())))


def _sources() -> list[Path]:
    folders = [path for name in FOLDERS for path in (SOURCE / name).rglob("*.py")]
    return sorted([*SOURCE.glob("*.py"), *folders])


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def _class(value: type) -> str:
    if isinstance(value, FunctionType):
        return _function(readers.find_function(value))
    if not isinstance(value, type):  # the one object of a class
        return _class(type(value)).replace(type(value).__name__, OBJECTS[type(value).__name__])
    node, name = readers.find(value), value.__name__
    made = readers.init(node)
    shown = (
        f"```py\n{readers.signature(made, name)}\n```" if made is not None and name in BUILT else ""
    )
    fields = [] if name in ELSEWHERE else readers.fields(node)
    listed = "\n".join(_field(field) for field in [*fields, *readers.attributes(node)])
    parts = [f"### {name}", shown, readers.docs(node), *_inherited(value), listed]
    parts += [_method(item) for item in readers.methods(node)]
    return "\n\n".join(part for part in parts if part)


def _function(item: readers.Function) -> str:
    shown = f"```py\n{readers.signature(item, item.name)}\n```"
    return "\n\n".join((f"### {item.name}", shown, readers.docs(item)))


def _inherited(value: type) -> list[str]:
    """Return for each base of ours the members that a class has from it, each in one line."""
    seen = {item.name for item in readers.methods(readers.find(value))}
    found = []
    for base in value.__mro__[1:]:
        if not base.__module__.startswith("onceward.") or base.__name__ in ELSEWHERE:
            continue
        new = [each for each in readers.methods(readers.find(base)) if each.name not in seen]
        seen |= {item.name for item in new}
        if new:
            listed = "\n".join(dict.fromkeys(map(_brief, new)))
            found.append(f"From {code(base.__name__)}:\n\n{listed}")
    return found


def _brief(item: readers.Function) -> str:
    """Return a member in one line: its signature and the first sentence of its docstring."""
    is_property = any(name.endswith("property") for name in readers.decorators(item))
    shown = (
        f"{item.name}: {readers.result(item)}"
        if is_property
        else " ".join(readers.signature(item, item.name).split())
    )
    return f"- {code(shown)}: {readers.docs(item).partition(chr(10) * 2)[0]}"


def _field(field: readers.Field) -> str:
    said = code(f"{field.name}: {field.type}" if field.type else field.name)
    return f"- {said}: {field.note}" if field.note else f"- {said}"


def _readable(text: str) -> str:
    """Return an annotation without what only its check reads."""
    return SPANS.sub("float", BOUNDED.sub(r"\1", text))


def _method(item: readers.Function) -> str:
    if any(name.endswith("property") for name in readers.decorators(item)):
        return (
            f"#### `.{item.name}`\n\n```py\n{item.name}: "
            f"{readers.result(item)}\n```\n\n{readers.docs(item)}"
        )
    signature = readers.signature(item, item.name)
    return f"#### `.{item.name}()`\n\n```py\n{signature}\n```\n\n{readers.docs(item)}"


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
            "as it is. `Retry`, `Reject` and `Drop` are no errors: handlers raise them to say "
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
            "`postbox.on(name, hook)` calls *hook* with every event of that name, `*` with all, "
            "after the commit that made the event true,",
            "in the process that committed. Each has `agent` (of the file) and `at` "
            "(milliseconds) besides its own fields.",
            "A hook cannot veto a commit; an exception that it raises is logged.",
        ),
        table(*rows),
    )


def settings_page() -> str:
    """Return the page of the settings."""
    notes = {
        field.name: field.note.replace("\n", " ")
        for field in readers.fields(readers.find(settings.Settings))
    }
    rows = [("setting", "type", "default", "may be", "meaning")]
    rows += [
        (code(name), _kind(info), code(_value(info.default)), _bounds(info), notes[name])
        for name, info in settings.Settings.model_fields.items()
    ]
    return page(
        "Settings",
        flow(
            "Give them as keywords to `Postbox`, as a `Settings` object, as `ONCEWARD_<NAME>` in "
            "the environment, or under",
            "`[tool.onceward]` in the nearest `pyproject.toml`; the first of these that names a "
            "setting "
            "wins. Spans are seconds, sizes are bytes.",
        ),
        table(*rows),
        "`ONCEWARD_DISABLED=1` in the environment switches sending, pushing and handling off for "
        "one process.",
        "`Settings.five_minutes(**overrides)`: "
        + inspect.cleandoc(settings.Settings.five_minutes.__doc__ or ""),
    )


def _value(default: Any) -> str:
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


# -- lifecycle.md, cli.md --------------------------------------------------------------------------


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


def has_command() -> bool:
    """Return whether the command line is installed."""
    return importlib.util.find_spec("onceward.ops.cli.app") is not None


def command_page() -> str:
    """Return the page of the command, from its own help."""
    from onceward.ops import cli  # noqa: PLC0415 - an extra

    parts = [
        f"## {name}\n\n```text\n{text.rstrip()}\n```" for name, text in cli.help_pages().items()
    ]
    return page(
        "Command", "`python3 -m pip install 'onceward[cli]'` brings the command `onceward`.", *parts
    )


def main() -> None:
    """Write the pages that have changed and print their names."""
    for name, text in pages().items():
        path = ROOT / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(name)  # noqa: T201 - that is its answer


if __name__ == "__main__":
    main()
