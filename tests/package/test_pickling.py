"""Public errors and values cross the border of a process, and can be copied."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Iterator
from importlib import import_module
from random import Random
from typing import Any

import pytest
from pydantic import BaseModel

from onceward import Agent, Postbox, RetryPolicy, Settings
from onceward.errors import AnswerTimeout, MissingExtra, OncewardError, RateLimited
from onceward.testing import Harness

MODULES = ("onceward", "onceward.errors", "onceward.types", "onceward.events", "onceward.hooks")
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda held: pickle.loads(pickle.dumps(held)),  # noqa: S301 - our own bytes
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def public_classes() -> Iterator[type]:
    """Yield the classes of the public modules."""
    for module in map(import_module, MODULES):
        names = getattr(module, "__all__", None) or vars(module)
        for name in names:
            found = getattr(module, name)
            if inspect.isclass(found) and found.__module__.startswith("onceward."):
                yield found


CLASSES = sorted(set(public_classes()), key=lambda each: each.__qualname__)
ERRORS = [each for each in CLASSES if issubclass(each, BaseException)]
VALUES = [each for each in CLASSES if dataclasses.is_dataclass(each)]


def an_error(kind: type[BaseException]) -> BaseException:
    """Return an error with a value for each of its parameters."""
    own: Any = next(each for each in kind.__mro__ if "__init__" in vars(each))
    given: tuple[list[Any], dict[str, Any]] = (["text"], {})
    if own.__module__.startswith("onceward."):
        found = [*inspect.signature(own.__init__).parameters.values()][1:]
        named = {each.name: each.name for each in found if each.kind is each.KEYWORD_ONLY}
        given = [each.name for each in found if each.name not in named], named
    return kind(*given[0], **given[1])


def a_value(kind: Any) -> Any:
    """Return a value with a text in each of its fields."""
    held = object.__new__(kind)
    for each in dataclasses.fields(kind):
        object.__setattr__(held, each.name, each.name)
    return held


def told(held: Any) -> Any:
    """Return all that an error or a value holds."""
    if isinstance(held, BaseException):
        return type(held), str(held), held.args, vars(held), getattr(held, "name", None)
    return type(held), [getattr(held, each.name) for each in dataclasses.fields(held)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__qualname__)
def test_an_error_can_be_copied(kind: type[BaseException], way: str) -> None:
    """With its text, its attributes and its notes, whatever its constructor takes."""
    error = an_error(kind)
    error.add_note("while testing")

    assert told(error) == told(WAYS[way](error))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__qualname__)
def test_a_value_can_be_copied(kind: type, way: str) -> None:
    """With each of its fields."""
    held = a_value(kind)

    assert told(held) == told(WAYS[way](held))


def test_the_walk_finds_errors_and_values() -> None:
    """It is not empty where it should not be."""
    assert {OncewardError, RateLimited, AnswerTimeout, MissingExtra} <= set(ERRORS)
    assert len(VALUES) > 50


@pytest.mark.parametrize("way", WAYS)
def test_what_a_postbox_returns_can_be_copied(way: str) -> None:
    """Records, outcomes, pages and settings are as they were, their bodies included."""
    with Harness(Agent("a")) as harness:
        box: Postbox = harness.postbox
        sent = box.send("a", {"n": 1}, type="job")
        ticket = box.request("a", {"n": 2}, type="other")
        journey = box.journey(sent)
        found = [
            journey,
            ticket,
            box.history(),
            box.cancel(sent),
            box.cancel_all(type="other"),
            box.file.stats(),
            Settings(),
        ]

    assert journey is not None
    assert found == [WAYS[way](each) for each in found]
    assert journey.record.body == WAYS[way](journey).record.body
    assert isinstance(found[6], BaseModel)


@pytest.mark.parametrize("way", WAYS)
def test_a_policy_can_be_copied(way: str) -> None:
    """The copy waits and stops alike."""
    policy = RetryPolicy.ten_retries()
    again = WAYS[way](policy)

    assert [(policy.delay(n, Random(n)), policy.exhausted(n)) for n in range(1, 13)] == [
        (again.delay(n, Random(n)), again.exhausted(n)) for n in range(1, 13)
    ]
