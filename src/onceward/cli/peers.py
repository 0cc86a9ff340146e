"""``onceward peers``: who is reached where."""

from __future__ import annotations

from typing import Final

from onceward import Postbox
from onceward.cli import queries
from onceward.cli.exit_codes import DONE, NothingThere
from onceward.cli.output import show, show_one
from onceward.cli.readonly import views
from onceward.cli.target import Where, open_box

WHERE = Where()
COLUMNS: Final = (
    "name",
    "url",
    "breaker",
    "failures",
    "in_flight",
    "due_at",
    "seen_at",
    "last_error",
)


def ls(*, where: Where = WHERE) -> int:
    """
    List the peers.

    Columns: name, url, breaker, failures, in_flight, due, seen, last_error. A peer without a url is looked for beside our own file.

    Args:
        where: Whose file.

    """
    with views(where.path()) as found:
        rows = found.ask(queries.PEERS)
    show(rows, COLUMNS, where.style)
    return DONE


def add(name: str, url: str, /, *, where: Where = WHERE) -> int:
    """
    Reach an agent at a url from now on; its breaker closes.

    Args:
        name: The agent.
        url: Where it is reached: file: and an absolute path, or the url of any installed transport.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.peers.register(name, url)
        _show(box, name, where)
    return DONE


def forget(name: str, /, *, where: Where = WHERE) -> int:
    """
    Drop a peer's url; mail for it waits, and what was agreed with it is kept.

    Args:
        name: The peer.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        known(box, name)
        box.peers.forget(name)
        _show(box, name, where)
    return DONE


def reset(name: str, /, *, where: Where = WHERE) -> int:
    """
    Try a peer again at once, whatever its breaker or its backoff say.

    Args:
        name: The peer.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        known(box, name)
        box.peers.reset(name)
        _show(box, name, where)
    return DONE


def subscribe(name: str, pattern: str, /, *, where: Where = WHERE) -> int:
    """
    Let a peer have what our agent publishes under a pattern of topics.

    Args:
        name: The peer.
        pattern: One star is one segment, a trailing number sign any number.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.peers.subscribe(name, pattern)
    show([{"peer": name, "pattern": pattern}], ("peer", "pattern"), where.style)
    return DONE


def unsubscribe(name: str, pattern: str, /, *, where: Where = WHERE) -> int:
    """
    End a peer's subscription to what our agent publishes.

    Args:
        name: The peer.
        pattern: As it was subscribed to.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.peers.unsubscribe(name, pattern)
    show([{"peer": name, "pattern": pattern}], ("peer", "pattern"), where.style)
    return DONE


def known(box: Postbox, name: str) -> None:
    """Raise NothingThere for a peer that the file does not know."""
    if box.peers.get(name) is None:
        msg = f"no peer {name!r} is known here: see onceward peers ls"
        raise NothingThere(msg)


def _show(box: Postbox, name: str, where: Where) -> None:
    with views(box.path) as found:
        [row] = found.ask(queries.PEER, name=name)
    show_one(row, where.style)
