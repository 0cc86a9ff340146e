"""What users reach from public objects is documented, and nothing of it is an internal part."""

import asyncio
import inspect
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import onceward
import onceward.types as types_of_calls
from onceward import AsyncPostbox, Postbox
from onceward.api.parts import PARTS
from onceward.core.contract import Late

MODULES = (
    "onceward",
    "onceward.events",
    "onceward.homes",
    "onceward.http",
    "onceward.integrations.django",
    "onceward.integrations.django.tasks",
    "onceward.integrations.django.testing",
    "onceward.integrations.otel",
    "onceward.integrations.sqlalchemy",
    "onceward.integrations.sqlalchemy.aio",
    "onceward.keys",
    "onceward.metrics",
    "onceward.nats",
    "onceward.testing",
    "onceward.transports",
    "onceward.types",
)
TYPES = {name: getattr(types_of_calls, name) for name in types_of_calls.__all__}
"""What calls return and a postbox loads on first use."""
FACES = {
    "onceward.api.agent",
    "onceward.core.run.async_face",
    "onceward.core.handle.context",
    "onceward.core.send.fanout",  # SendResult
    "onceward.core.handle.message",
    "onceward.features.runs.run",
    "onceward.core.send.block",
}
"""Modules of the runtime whose classes users hold."""


def is_internal(kind: type) -> bool:
    """Return whether a class is a part of the machinery, which users do not hold."""
    module = kind.__module__
    return module.startswith("onceward.file") or (
        module.startswith("onceward.runtime") and module not in FACES
    )


def public_classes() -> list[type]:
    """Return the exported classes, and those of the objects that an open postbox holds."""
    exported = {
        value
        for name in ("onceward", "onceward.transports", "onceward.types")
        for each in import_module(name).__all__
        if inspect.isclass(value := getattr(import_module(name), each))
    }
    held = import_module("onceward.api.aio")
    faces = {
        v for v in vars(held).values() if inspect.isclass(v) and "onceward.api" in v.__module__
    }
    lates = [part.face for part in PARTS.values() if isinstance(part.face, Late)]
    faces |= {face for late in lates if inspect.isclass(face := late.load())}
    return sorted(exported | faces, key=lambda kind: kind.__qualname__)


def public_calls(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class that are ours."""
    for base in kind.__mro__:
        if base.__module__.startswith("onceward"):
            for name, value in vars(base).items():
                found = value.fget if isinstance(value, property) else value
                if not name.startswith("_") and inspect.isfunction(found):
                    yield name, found


def mentioned(hint: Any) -> Iterator[type]:
    """Yield the classes that a type hint names."""
    if inspect.isclass(hint) and not isinstance(hint, types.GenericAlias):
        yield hint
    for part in get_args(hint):
        yield from mentioned(part)


@pytest.mark.parametrize("module", MODULES)
def test_modules_export_what_they_list(module: str) -> None:
    """Every listed name can be imported, and each list is free of doubles."""
    found = import_module(module)

    assert [] == [name for name in found.__all__ if not hasattr(found, name)]
    assert len(set(found.__all__)) == len(found.__all__)


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_public_calls_are_explained_and_give_no_internals(kind: type) -> None:
    """Each public method has a docstring, and neither takes nor returns a part of the machinery."""
    calls = dict(public_calls(kind))
    silent = [name for name, call in calls.items() if not inspect.getdoc(call)]
    internal = [
        f"{name}: {found.__module__}.{found.__qualname__}"
        for name, call in calls.items()
        for hint in get_type_hints(inspect.unwrap(call), localns=TYPES).values()
        for found in mentioned(hint)
        if is_internal(found)
    ]

    assert ([], []) == (silent, internal)


def reached(value: Any, name: str, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield the public attributes of an object of ours, and theirs."""
    for key, found in getattr(value, "__dict__", {}).items():
        if not key.startswith("_"):
            yield f"{name}.{key}", found
            if depth and type(found).__module__.startswith("onceward"):
                yield from reached(found, f"{name}.{key}", depth - 1)


def test_public_attributes_hold_no_internals(tmp_path: Path) -> None:
    """From an open postbox, sync or async, no database, sender or consumer is reached."""

    async def main() -> list[tuple[str, Any]]:
        async with AsyncPostbox(tmp_path / "b.db", agent="b", start=False) as box:
            mailbox = await box.mailboxes.ensure()
            held = {"box": box, "session": box.session("s"), "mailbox": mailbox}
            held |= {f"box.{each}": getattr(box, each) for each in PARTS}
            return [pair for name, each in held.items() for pair in reached(each, name)]

    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        held = {"box": box, "session": box.session("s"), "mailbox": box.mailboxes.ensure()}
        held |= {f"box.{each}": getattr(box, each) for each in PARTS}
        found = [pair for name, each in held.items() for pair in reached(each, name)]
    found += asyncio.run(main())

    assert [] == [name for name, value in found if is_internal(type(value))]
    assert "box.channels" in dict(found)


def test_a_postbox_shows_what_it_is_documented_to_show() -> None:
    """The public names of a postbox are those of the design, no other, and at most 32."""
    names = {name for name, _ in public_calls(onceward.Postbox)}

    assert {
        "accept", "agent", "ask", "attach", "begin", "broadcast", "cancel", "cancel_all", "close",
        "flush", "follow", "gather", "history", "journey", "on", "progress_of", "publish", "query",
        "receive", "receive_each", "receive_one", "request", "result", "run_until_idle", "search",
        "send", "send_many", "session", "state", "status", "stop", "thread",
    } == names  # fmt: skip
    assert len(names) <= 32  # a verb each: broadcast, and to receive any, one, or a detached one


def test_an_async_postbox_has_the_names_of_a_postbox() -> None:
    """``AsyncPostbox`` shows what ``Postbox`` shows, and ``open``."""
    names = {name for name, _ in public_calls(onceward.Postbox)}

    assert names | {"open", *PARTS} == {
        name for name in dir(onceward.AsyncPostbox) if not name.startswith("_")
    }


def test_a_postbox_is_made_from_few_arguments() -> None:
    """Besides its settings, which are keywords, a postbox takes at most eight arguments."""
    named = [
        each.name
        for each in inspect.signature(onceward.Postbox).parameters.values()
        if each.kind is not each.VAR_KEYWORD
    ]

    assert ["path", "agent", "settings", "start", "transports", "listeners", "loop", "testing"] == (
        named
    )
