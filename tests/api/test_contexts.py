"""Contexts: the classes of the core, with the verbs of features."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import onceward
from onceward import Agent, Context
from onceward.api.contexts import complete
from onceward.api.features import CALL_PARTS, CALLS
from onceward.core.handle import context
from onceward.errors import InvalidArgument

VERBS = {
    "ask",
    "gather",
    "group",
    "now",
    "random",
    "request",
    "result",
    "sleep",
    "step",
    "stream",
    "uuid",
    "wait",
}


@pytest.mark.parametrize("name", ["Context", "AsyncContext", "Run", "AsyncRun"])
def test_a_context_has_the_verbs_of_features(name: str) -> None:
    """Users hold one class, which says in its bases which feature gives a verb."""
    held = getattr(onceward, name)

    assert VERBS == {verb for verb in VERBS if callable(getattr(held, verb))}
    assert set() == VERBS & set(vars(held.__mro__[1]))
    assert held is complete(held.__mro__[1])


def test_the_core_has_no_verb_of_a_feature() -> None:
    """A feature is deleted with its verbs."""
    core = (context.Context, context.AsyncContext)

    assert [] == [verb for verb in VERBS for each in core if hasattr(each, verb)]
    assert {"requests", "steps", "streams"} == set(CALL_PARTS)
    assert 3 == sum(each.verbs is not None for each in CALLS)


def test_a_handler_may_name_the_class_with_or_without_verbs() -> None:
    """Features annotate the core's class; a class of the user's own would not get its methods."""
    agent = Agent("billing")

    class Mine(Context):
        """A class that no handler gets."""

    def handler(kind: type) -> Callable[..., Any]:
        def handle(body: dict[str, Any], ctx: Any) -> None:
            del body, ctx

        handle.__annotations__["ctx"] = kind
        return handle

    for kind in (Context, context.Context):
        agent.on(f"for.{kind.__module__}.{id(kind)}")(handler(kind))
    with pytest.raises(InvalidArgument, match=re.escape("annotated Mine, but gets Context")):
        agent.on("mine")(handler(Mine))
