"""``onceward peers``: the peers of an agent, their urls and circuit breakers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from onceward import Postbox
from onceward.file.read_only import FileReader
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.exit_codes import NothingThere
from onceward.ops.cli.options import Pattern, said
from onceward.ops.cli.output import row_of
from onceward.ops.cli.readonly import views
from onceward.ops.cli.watching import watched
from onceward.ops.views import lists

Peer = Annotated[str, said("The peer's name.")]
OfNames = Annotated[list[str] | None, said("A pattern; may be repeated.", negative=())]
Url = Annotated[str, said("file: and an absolute path, or the url of any installed transport.")]


@watched
@command("name", "url", "breaker", "failures", "in_flight", "due_at", "seen_at", "last_error")
def ls(found: FileReader, /) -> Found:
    """
    List the peers.

    A peer without a url is expected in the folder of this file.

    Example: onceward peers ls
    """
    return lists.peers(found)


@command()
def add(box: Postbox, name: Peer, url: Url, /) -> Found:
    """
    Register the url of a peer and close its breaker.

    Example: onceward peers add billing file:/srv/billing/billing.db
    """
    box.peers.add(name, url)
    return _row(box, name)


@command("name", "types", "channels", "mailboxes")
def allow(
    box: Postbox,
    name: Peer,
    /,
    *,
    type: OfNames = None,
    channel: OfNames = None,
    mailbox: OfNames = None,
) -> Found:
    """
    Accept from a peer only messages of these types, channels and mailboxes; refuse others.

    Each is a pattern and may be repeated: * is one segment, a trailing # any number. Without an
    option: all types except those under _system, no channel, no mailbox. The same holds for a peer
    on a network that has no rule.

    Example: onceward peers allow billing --type 'invoice.#'
    """
    box.peers.allow(name, types=type, channels=channel or (), mailboxes=mailbox or ())
    found = box.peers.get(name)
    rule = {} if found is None or found.inbound_rule is None else asdict(found.inbound_rule)
    return [
        {"name": name}
        | {each: rule[each] if rule[each] is None else list(rule[each]) for each in rule}
    ]


@command("peer", "url", "took_ms", "clock_ahead_ms", "release", "wire_version")
def ping(box: Postbox, name: Peer, /) -> Found:
    """
    Ask a peer on another machine for a signed answer; print its clock's lead and its release.

    Without an answer the error says what is wrong: clock, key, name, certificate or url.

    Example: onceward peers ping bob
    """
    found = box.peers.ping(name)
    return {
        "peer": found.name,
        "url": found.url,
        "took_ms": round(1000 * found.took),
        "clock_ahead_ms": found.clock_ahead,
        "release": found.release,
        "wire_version": found.wire_version,
    }


@command()
def remove(box: Postbox, name: Peer, /) -> Found:
    """
    Remove a peer's url; messages for it wait, and its stream and breaker are kept.

    Example: onceward peers remove billing
    """
    _known(box, name)
    box.peers.remove(name)
    return _row(box, name)


@command()
def reset(box: Postbox, name: Peer, /) -> Found:
    """
    Close a peer's breaker and end its backoff; the peer is tried again at once.

    Example: onceward peers reset billing
    """
    _known(box, name)
    box.peers.reset(name)
    return _row(box, name)


@command("peer", "pattern")
def subscribe(box: Postbox, name: Peer, pattern: Pattern, /) -> Found:
    """
    Subscribe a peer to messages that this agent publishes under a topic pattern.

    Example: onceward peers subscribe billing 'build.#'
    """
    box.peers.subscribe(name, pattern)
    return [{"peer": name, "pattern": pattern}]


@command("peer", "pattern")
def unsubscribe(box: Postbox, name: Peer, pattern: Pattern, /) -> Found:
    """
    End a peer's subscription to topics of this agent.

    Example: onceward peers unsubscribe billing 'build.#'
    """
    box.peers.unsubscribe(name, pattern)
    return [{"peer": name, "pattern": pattern}]


def _known(box: Postbox, name: str) -> None:
    if box.peers.get(name) is None:
        raise NothingThere(f"no peer {name!r} is known here: see onceward peers ls")


def _row(box: Postbox, name: str) -> Found:
    with views(box.file.path) as found:
        return row_of(next(each for each in lists.peers(found) if each.name == name))
