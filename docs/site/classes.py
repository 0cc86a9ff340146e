"""
Write a page for each public class, from its source, and the page that lists them.

The source is read, not imported: an awaitable method is made from its sync twin by a line such as
``join = awaitable(Channel.join)``, whose signature and docstring only ``readers`` can tell.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, cast, get_args, get_origin

import readers
from pieces import NOTE, code, flow, page, table

import onceward
from onceward import errors, types
from onceward.message import parcel, vocabulary

SOURCE = Path(__file__).resolve().parents[2] / "src" / "onceward"

FOLDERS = ("message", "core", "features", "transports", "api")
"""Folders of the classes that the page of the API shows."""
SECTIONS = {
    "The postbox": (
        "Postbox EventSource Session Transaction Message ReceivedMessage MessageRecord Ticket "
        "Status Cancellation Cancellations StreamItem Chunk Restarted Ended "
        "Journey CausedMessage DedupRecord StepInfo StreamInfo Transition"
    ),
    "The file, agents, peers and pages": (
        "AgentFile Health Violation Repair Agents AgentInfo Peers PeerInfo Page"
    ),
    "Groups": "Groups Group GroupInfo GroupDone",
    "Pools": "Pools PoolInfo PoolMember",
    "Schedules": "Schedules Schedule Tick",
    "Limits": "Limits LimitInfo DropRecord",
    "Dead letters": ("DeadLetters DeadLetterFilter ReplayResult DeadLetter"),
    "Sessions and their runs": (
        "Sessions Runs Run RunFields QueueOptions Summary PreviousRun StoredStep RunInfo QueueInfo"
    ),
    "Channels": ("Channels Channel ChannelConfig ChannelInfo SendResult Acknowledgment"),
    "Mailboxes": ("Mailboxes Mailbox MailboxFields Start MailboxInfo HandlerTransaction"),
    "Options and filters": (
        "SendOptions PublishOptions PostboxOptions Controls CommonFilters "
        "SessionHistoryFilters ChannelHistoryFilters HistoryFilters "
        "MailboxFilters"
    ),
    "Agents and handlers": (
        "Agent Context BatchContext HandlerPostbox OutputStream step StepOptions Depends Msg "
        "EncryptedMsg BodyCodec LargeBodyStore"
    ),
    "The same, awaitable": (
        "AsyncPostbox AsyncSession SessionFace AsyncTransaction AsyncMessage AsyncContext "
        "AsyncBatchContext AsyncHandlerPostbox AsyncRun AsyncMailbox AsyncHandlerTransaction "
        "AsyncChannel AsyncGroups AsyncGroup AsyncSchedules AsyncLimits AsyncRuns AsyncSessions "
        "AsyncAgentFile"
    ),
    "Settings and policies": "Settings Tuning RetryPolicy",
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

BOUNDED = re.compile(r"Annotated\[([^,\[\]]+), [^\]]*\]")
SPANS = re.compile(r"(?<=: )(?:Seconds|Positive)\b")
ELSEWHERE = ("Settings", "Tuning", "Frame")
"""Models whose fields have a page of their own."""


def pages() -> dict[str, str]:
    """Return the page of the public names and a page for each of them, by path in the reference."""
    found = {"api.md": _index()}
    for listed in _sections().values():
        for name in listed.split():
            found[_path(name)] = _readable(_class(_named(name)))
    return found


def navigation() -> list[dict[str, list[dict[str, str]]]]:
    """Return the pages of the public names by section, for the navigation of the site."""
    return [
        {title: [{name: f"reference/{_path(name)}"} for name in listed.split()]}
        for title, listed in _sections().items()
    ]


def _sections() -> dict[str, str]:
    """Return the names by section; public names without a section come last."""
    known = {name for listed in SECTIONS.values() for name in listed.split()}
    known |= {*dir(errors), "errors"}
    rest = (name for name in (*onceward.__all__, *types.__all__) if name not in known)
    sections = SECTIONS | {"Others": " ".join(rest)}
    return {title: listed for title, listed in sections.items() if listed}


def _path(name: str) -> str:
    return f"api/{name.lower()}.md"


def _index() -> str:
    parts = [
        flow(
            "Everything that `from onceward import …` offers, and what its calls return.",
            "Types that only annotations name are in `onceward.types`.",
            "What authors of transports need is in `onceward.transports`, "
            "events are in `onceward.events`.",
            "Errors, and what handlers raise, have [a page of their own](errors.md).",
            "Durations are seconds, times are integer milliseconds since 1970.",
        )
    ]
    for title, listed in _sections().items():
        rows = [(f"[{code(name)}]({_path(name)})", _summary(name)) for name in listed.split()]
        parts += [f"## {title}", table(("name", "what it is"), *rows)]
    parts += ["## Sets of values", "Types that name a closed set of values.", _vocabulary()]
    return _readable(page("API", *parts))


def _summary(name: str) -> str:
    """Return the first sentence of what a public name says of itself."""
    value = _named(name)
    if isinstance(value, FunctionType):
        said = readers.docs(readers.find_function(value))
    else:
        said = readers.docs(readers.find(value if isinstance(value, type) else type(value)))
    return said.partition("\n\n")[0].replace("\n", " ")


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


@cache
def _named(name: str) -> type:
    """Return a class, or an alias, by its name, which no other class of the library has."""
    for module in (onceward, types):
        if name in module.__all__:
            return cast("type", getattr(module, name))
    found = {
        id(value): value
        for path, text in _sources().items()
        if re.search(rf"^(class {name}\b|{name}\s*[:=])", text, re.MULTILINE)
        for value in [getattr(importlib.import_module(_dotted(path)), name)]
    }
    assert len(found) == 1, f"{name} is {len(found)} classes"  # noqa: S101 - a script
    return cast("type", next(iter(found.values())))


@cache
def _sources() -> dict[Path, str]:
    folders = [path for name in FOLDERS for path in (SOURCE / name).rglob("*.py")]
    paths = sorted([*SOURCE.glob("*.py"), *folders])
    return {path: path.read_text(encoding="utf-8") for path in paths}


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
    parts = [f"# {name}", NOTE, _twin(name), shown, readers.docs(node), *_inherited(value), listed]
    parts += [_method(item) for item in readers.methods(node)]
    return "\n\n".join(part for part in parts if part)


def _twin(name: str) -> str:
    """Return the line that leads to the awaitable or the sync class of the same calls."""
    for other, word in ((f"Async{name}", "awaitable"), (name.removeprefix("Async"), "sync")):
        if other != name and other in " ".join(SECTIONS.values()).split():
            return f"The same, {word}: {_linked(other)}."
    return ""


def _linked(name: str) -> str:
    """Return a name as code, which leads to its page where it has one."""
    there = name in " ".join(SECTIONS.values()).split()
    return f"[{code(name)}]({name.lower()}.md)" if there else code(name)


def _function(item: readers.Function) -> str:
    shown = f"```py\n{readers.signature(item, item.name)}\n```"
    return "\n\n".join((f"# {item.name}", NOTE, shown, readers.docs(item)))


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
            found.append(f"From {_linked(base.__name__)}:\n\n{listed}")
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
            f"## `.{item.name}`\n\n```py\n{item.name}: "
            f"{readers.result(item)}\n```\n\n{readers.docs(item)}"
        )
    signature = readers.signature(item, item.name)
    return f"## `.{item.name}()`\n\n```py\n{signature}\n```\n\n{readers.docs(item)}"
