"""``onceward peers``: the peers of an agent, their urls and circuit breakers."""

from __future__ import annotations

from typing import Annotated

from onceward import Postbox
from onceward.cli import queries
from onceward.cli.command import Found, command
from onceward.cli.exit_codes import NothingThere
from onceward.cli.options import Pattern, said
from onceward.cli.readonly import Look, views

Peer = Annotated[str, said("The peer's name.")]
Url = Annotated[str, said("file: and an absolute path, or the url of any installed transport.")]


@command("name", "url", "breaker", "failures", "in_flight", "due_at", "seen_at", "last_error")
def ls(found: Look, /) -> Found:
    """
    List the peers.

    A peer without a url is looked for beside our own file.
    """
    return found.ask(queries.PEERS)


@command()
def add(box: Postbox, name: Peer, url: Url, /) -> Found:
    """Register the url of a peer and close its breaker."""
    box.peers.register(name, url)
    return _row(box, name)


@command()
def forget(box: Postbox, name: Peer, /) -> Found:
    """Drop a peer's url; messages for it wait, and its stream and breaker are kept."""
    _known(box, name)
    box.peers.forget(name)
    return _row(box, name)


@command()
def reset(box: Postbox, name: Peer, /) -> Found:
    """Close a peer's breaker and end its backoff, so that it is tried again at once."""
    _known(box, name)
    box.peers.reset(name)
    return _row(box, name)


@command("peer", "pattern")
def subscribe(box: Postbox, name: Peer, pattern: Pattern, /) -> Found:
    """Subscribe a peer to what our agent publishes under a pattern of topics."""
    box.peers.subscribe(name, pattern)
    return [{"peer": name, "pattern": pattern}]


@command("peer", "pattern")
def unsubscribe(box: Postbox, name: Peer, pattern: Pattern, /) -> Found:
    """End a peer's subscription to what our agent publishes."""
    box.peers.unsubscribe(name, pattern)
    return [{"peer": name, "pattern": pattern}]


def _known(box: Postbox, name: str) -> None:
    if box.peers.get(name) is None:
        msg = f"no peer {name!r} is known here: see onceward peers ls"
        raise NothingThere(msg)


def _row(box: Postbox, name: str) -> Found:
    with views(box.path) as found:
        [row] = found.ask(queries.PEER, name=name)
    return row
