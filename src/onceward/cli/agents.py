"""``onceward agents``: the agents of the home, and what they want of what others publish."""

from __future__ import annotations

from onceward.cli.exit_codes import DONE
from onceward.cli.output import show
from onceward.cli.target import Where, open_box

WHERE = Where()


def ls(*, where: Where = WHERE) -> int:
    """
    List the other agents that are reached by what is sent to all.

    Args:
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        rows = [{"name": name} for name in box.agents.list()]
    show(rows, ("name",), where.style)
    return DONE


def register(*, where: Where = WHERE) -> int:
    """
    Take part: from now on what is sent to all reaches our agent too, wherever its file lies.

    An agent whose file lies in the home takes part without it.

    Args:
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        box.agents.register()
        row = {"agent": box.agent}
    show([row], ("agent",), where.style)
    return DONE


def leave(*, where: Where = WHERE) -> int:
    """
    Take part no more, before the agent is retired: what is sent to all passes it by.

    Its subscriptions outside of channels end, too; channels are left by channel leave. While its file lies in the home it is one of
    all the same: move it away next.

    Args:
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        row = {"agent": box.agent, "left": box.agents.leave()}
    show([row], ("agent", "left"), where.style)
    return DONE


def subscribe(pattern: str, /, *, where: Where = WHERE) -> int:
    """
    Have what anybody else in the home publishes under a pattern of topics.

    Args:
        pattern: One star is one segment, a trailing number sign any number.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        row = {"pattern": pattern, "new": box.agents.subscribe(pattern)}
    show([row], ("pattern", "new"), where.style)
    return DONE


def unsubscribe(pattern: str, /, *, where: Where = WHERE) -> int:
    """
    End a subscription to what others publish.

    Args:
        pattern: As it was subscribed to.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        row = {"pattern": pattern, "ended": box.agents.unsubscribe(pattern)}
    show([row], ("pattern", "ended"), where.style)
    return DONE
