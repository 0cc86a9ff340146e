"""``onceward pools``: pools of agents that share a queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from onceward import Postbox
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.durations import MaybeSpan
from onceward.ops.cli.exit_codes import NothingThere, TimedOut
from onceward.ops.cli.options import said

Name = Annotated[str, said("The pool's name, to which messages are sent.")]
Member = Annotated[str, said("The member: an agent of the home, or a peer.")]
Credits = Annotated[int | None, said("Messages that it gets at once until it tells its number.")]


@command(
    "pool", "waiting", "waiting_since_at", "in_doubt", "agent", "works", "failures", "in_flight",
    "takes",
)  # fmt: skip
def ls(box: Postbox, /) -> Found:
    """
    List the pools to which this agent sends: what waits, and the members with what they have.

    Messages in doubt wait for `onceward pools release`, because the file was restored.

    Example: onceward pools ls --db shop.db
    """
    return [row for pool in box.pools.list() for row in _rows(asdict(pool))]


def _rows(pool: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each member of a pool, or one for a pool without members."""
    members: list[dict[str, Any]] = list(pool.pop("members")) or [{}]
    return [pool | member for member in members]


@command()
def join(box: Postbox, pool: Name, /, *, credits: Credits = None) -> None:
    """
    Serve a pool with this agent, now and whenever a worker has its file open.

    Example: onceward pools join thumbs --db thumbs-7.db
    """
    box.pools.join(pool, credits=credits)


@command()
def leave(box: Postbox, pool: Name, /) -> None:
    """
    Get no more messages of a pool; accepted ones are still handled.

    Example: onceward pools leave thumbs --db thumbs-7.db
    """
    if not box.pools.leave(pool):
        raise NothingThere(f"{box.agent} does not serve {pool}")


@command()
def drain(
    box: Postbox,
    pool: Name,
    /,
    *,
    wait: Annotated[
        MaybeSpan, said("Wait this long; the default waits as long as it takes.")
    ] = None,
) -> None:
    """
    Leave a pool, and wait until a worker has handled what was accepted of it.

    Example: onceward pools drain thumbs --wait 60 --db thumbs-7.db
    """
    if not box.pools.drain(pool, wait):
        raise TimedOut(f"{box.agent} still has messages of {pool}: wait longer, or run a worker")


@command()
def add(box: Postbox, pool: Name, agent: Member, /, *, credits: Credits = None) -> None:
    """
    Name a member of a pool for what this agent sends, such as a peer on another machine.

    Example: onceward pools add thumbs thumbs-7 --db shop.db
    """
    named = {} if credits is None else {"credits": credits}
    box.pools.add(pool, agent, **named)


@command()
def remove(box: Postbox, pool: Name, agent: Member, /) -> None:
    """
    Remove a member that was named; what it cannot know goes to others.

    Example: onceward pools remove thumbs thumbs-7 --db shop.db
    """
    if not box.pools.remove(pool, agent):
        raise NothingThere(f"{agent} is not a member of {pool}")


@command("released")
def release(box: Postbox, pool: Name, /) -> Found:
    """
    Assign the messages that wait since this file was restored, though a member may have had them.

    Example: onceward pools release thumbs --db shop.db
    """
    return [{"released": box.pools.release(pool)}]
