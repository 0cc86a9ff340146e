"""Options that type checkers know are the ones that the code takes, with the same types."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from onceward import Postbox, Settings
from onceward.api.postbox import PostboxOptions
from onceward.features.channels.api import ChannelOptions
from onceward.features.channels.directory import ChannelConfig
from onceward.features.history import history
from onceward.message.handler_options import HandlerRules, StepRules
from onceward.message.names import RANKS, PriorityName, same_names
from onceward.message.record import (
    ChannelHistoryFilters,
    HistoryFilters,
    SessionHistoryFilters,
)
from onceward.message.retry import RetryPolicy
from onceward.message.settings import SettingsOptions
from onceward.message.times import Span
from onceward.message.vocabulary import MessageState

PAGE = {"limit", "offset", "after", "count"}


def given_types(model: type[BaseModel]) -> dict[str, Any]:
    """Return the types of a model's fields as they are given: a field of seconds reads spans."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(model, include_extras=True).items():
        if name in model.model_fields:
            plain = get_type_hints(model)[name]
            span = Span if plain is float else Span | None
            found[name] = span if "_spelled" in str(hint) else plain
            if plain == Path | None:
                found[name] = Path | str | None
            if plain is RetryPolicy:
                found[name] = RetryPolicy | str
    return found


def test_every_setting_is_a_typed_keyword() -> None:
    """The keywords of a postbox are its settings' fields, in their order and of their types."""
    fields = given_types(Settings)

    assert list(fields.items()) == list(get_type_hints(SettingsOptions).items())


def test_every_option_of_a_channel_is_a_typed_keyword() -> None:
    """The keywords that make a channel are the fields of its configuration."""
    fields = given_types(ChannelConfig)

    assert list(fields.items()) == list(get_type_hints(ChannelOptions).items())


def test_the_async_postbox_takes_the_options_of_the_sync_one() -> None:
    """Both constructors have the same keywords; the loop is the one that runs."""
    named = {
        p.name
        for p in inspect.signature(Postbox.__init__).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }

    assert named - {"agent", "loop"} == PostboxOptions.__annotations__.keys() - (
        SettingsOptions.__annotations__.keys()
    )


def test_history_filters_are_the_typed_ones() -> None:
    """Each kind of history takes all filters but the one that it fixes."""
    known = {*history.FILTERS, *PAGE}

    assert [known, known - {"session"}, known - {"channel"}] == [
        set(get_type_hints(kind))
        for kind in (HistoryFilters, SessionHistoryFilters, ChannelHistoryFilters)
    ]


def test_vocabularies_are_complete() -> None:
    """Priorities and states that are typed are the ones that exist."""
    assert [set(RANKS), set(history.STATES)] == [
        set(get_args(PriorityName)),
        set(get_args(MessageState)),
    ]


@pytest.mark.parametrize("rules", [HandlerRules, StepRules])
def test_every_option_of_a_handler_is_read(rules: type, trees: dict[str, ast.Module]) -> None:
    """An option that no code reads would be accepted without any effect."""
    of_steps = rules is StepRules
    read = {
        name
        for module, tree in trees.items()
        if module.startswith(("core.", "features.")) and of_steps == ("features.steps" in module)
        for name in rules_read(tree)
    }
    own = ast.parse(textwrap.dedent(inspect.getsource(rules)))

    assert set() == rules.__annotations__.keys() - read - set(rules_read(own, "self"))


def rules_read(tree: ast.Module, name: str = "rules") -> Iterator[str]:
    """Yield the attributes that code reads from rules: of a name, or of an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            of = ast.unparse(node.value).rpartition(".")[2]
            if of.lstrip("_") == name:
                yield node.attr


def test_an_attribute_of_another_object_is_not_an_option_that_is_read() -> None:
    """Names such as ``timeout`` are read from settings and options, too."""
    tree = ast.parse("a = handler.rules.timeout or settings.attempts\nrules.name = step.version")

    assert ["timeout"] == list(rules_read(tree))


def test_an_option_without_a_reader_fails_at_import() -> None:
    """An option is declared and read in one place, which is checked when it is imported."""
    with pytest.raises(TypeError, match="options of a handler: quarantine must be declared and"):
        same_names("a handler", ["attempts", "quarantine"], ["attempts"])
