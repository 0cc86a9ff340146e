"""``onceward agents``: the agents of the home, and their subscriptions to published topics."""

from __future__ import annotations

from typing import Annotated, Final

from onceward import Postbox
from onceward.ops.cli.command import Found, command, picked
from onceward.ops.cli.cutting import cut
from onceward.ops.cli.options import Limit, Pattern, said

COLUMNS: Final = ("name", "last_seen_at", "capabilities", "accepts", "description")
FACTS: Final = ("name", "description", "joined_at", "last_seen_at")


@command(*COLUMNS)
def ls(
    box: Postbox,
    /,
    *,
    search: Annotated[str, said("Only agents with each of these words, or parts of words.")] = "",
    limit: Limit = 100,
    after: Annotated[str, said("Only agents after this name: the last of the previous page.")] = "",
) -> Found:
    """
    List the other agents of the home, by name; a message to "all" reaches them.

    A search looks in names, descriptions, capabilities and accepted types.

    Example: onceward agents ls --search translate
    """
    found = cut(lambda most: box.agents.list(search=search, limit=most, after=after), limit)
    return [
        picked(each, FACTS)
        | {"capabilities": [*each.capabilities], "accepts": [one.type for one in each.accepts]}
        for each in found
    ]


@command("agent")
def register(
    box: Postbox,
    /,
    *,
    description: Annotated[str | None, said("What this agent does; the default keeps it.")] = None,
    capability: Annotated[
        list[str] | None, said("What this agent can do; may be repeated.", negative=())
    ] = None,
) -> Found:
    """
    Register this agent: messages to "all" reach it, others find it by its capabilities.

    init, work and every program that opens the file under its agent's name do the same.

    Example: onceward agents register --capability translate
    """
    box.agents.register(description=description, capabilities=capability)
    return [{"agent": box.agent}]


@command("agent", "removed")
def remove(box: Postbox, /) -> Found:
    """
    Remove this agent from the home before it is retired: messages to "all" no longer reach it.

    Its subscriptions outside channels end too; onceward channel leave ends its membership of a
    channel. The next program that opens its file under its name registers it again.

    Example: onceward agents remove
    """
    return [{"agent": box.agent, "removed": box.agents.remove()}]


@command("pattern", "new")
def subscribe(box: Postbox, pattern: Pattern, /) -> Found:
    """
    Subscribe to messages that other agents of the home publish under a topic pattern.

    Example: onceward agents subscribe 'build.#'
    """
    return [{"pattern": pattern, "new": box.agents.subscribe(pattern)}]


@command("pattern", "ended")
def unsubscribe(box: Postbox, pattern: Pattern, /) -> Found:
    """
    End a subscription to topics of other agents.

    Example: onceward agents unsubscribe 'build.#'
    """
    return [{"pattern": pattern, "ended": box.agents.unsubscribe(pattern)}]
