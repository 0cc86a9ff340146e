"""``onceward agents``: the agents of the home, and their subscriptions to published topics."""

from __future__ import annotations

from onceward import Postbox
from onceward.cli.command import Found, command
from onceward.cli.options import Pattern


@command("name")
def ls(box: Postbox, /) -> Found:
    """List the other agents that a message to all reaches."""
    return [{"name": name} for name in box.agents.list()]


@command("agent")
def register(box: Postbox, /) -> Found:
    """
    Register our agent: messages to all reach it.

    init and work do the same, as does every program that opens the file under its agent's name.
    """
    box.agents.register()
    return [{"agent": box.agent}]


@command("agent", "left")
def leave(box: Postbox, /) -> Found:
    """
    Take our agent out of the home before it is retired: messages to all no longer reach it.

    Its subscriptions outside of channels end, too; onceward channel leave ends membership of a
    channel. The next program that opens its file under its name registers it again.
    """
    return [{"agent": box.agent, "left": box.agents.leave()}]


@command("pattern", "new")
def subscribe(box: Postbox, pattern: Pattern, /) -> Found:
    """Subscribe to what other agents of the home publish under a pattern of topics."""
    return [{"pattern": pattern, "new": box.agents.subscribe(pattern)}]


@command("pattern", "ended")
def unsubscribe(box: Postbox, pattern: Pattern, /) -> Found:
    """End a subscription to what other agents publish."""
    return [{"pattern": pattern, "ended": box.agents.unsubscribe(pattern)}]
