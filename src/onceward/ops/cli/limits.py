"""``onceward limits``: the limits of a file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from onceward import Postbox
from onceward.message.vocabulary import FileScope, LimitScope, Overflow
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.cutting import cut
from onceward.ops.cli.exit_codes import NothingThere
from onceward.ops.cli.options import Burst, Limit, Rate, said

WHICH = (
    "Which session, recipient/lane or channel; a star, or no name, limits each one separately. "
    "For a handler, the type, topic or pattern that it is registered for."
)
Scope = Annotated[LimitScope | FileScope, said("The limited quantity.")]
Name = Annotated[str, said(WHICH, allow_leading_hyphen=True)]


@command(
    "scope", "name", "messages", "size", "rate", "burst", "overflow", "concurrency",
    "paused_at", "changed_at", "applied_at",
    "declared_rate", "declared_burst", "declared_concurrency",
)  # fmt: skip
def ls(box: Postbox, /) -> Found:
    """
    List the limits, and the paused types.

    A limit that is set for a handler shows what the code declares, once a worker has applied it.

    Example: onceward limits ls
    """
    return map(asdict, box.limits.list())


@command()
def set_(
    box: Postbox,
    scope: Scope,
    name: Name = "",
    /,
    *,
    messages: int | None = None,
    size: int | None = None,
    rate: Rate = None,
    burst: Burst = None,
    concurrency: int | None = None,
    overflow: Overflow = "reject",
) -> None:
    """
    Set the limit of one scope, for every process that writes the file.

    Pending messages are limited by number and by size, the file by size, its sends and the messages
    that it accepts from each sender by rate, a handler by the rate of its calls and by how many run
    at once: running workers follow, and what is not given stays.

    Example: onceward limits set session '*' --messages 1000 --overflow hold

    Example: onceward limits set send --rate 50 --burst 200

    Example: onceward limits set file --size 1000000000

    Example: onceward limits set handler resize --rate 10/s --concurrency 2

    Args:
        messages: Maximum number of messages.
        size: Maximum bytes of frames, or of the file.
        concurrency: Maximum number of calls of the handler at once.
        overflow: Policy at the limit.

    """
    box.limits.set(
        scope,
        name,
        messages=messages,
        size=size,
        rate=rate,
        burst=burst,
        concurrency=concurrency,
        overflow=overflow,
    )


@command()
def remove(box: Postbox, scope: Scope, name: Name = "", /) -> None:
    """
    Remove a limit; messages that only this limit held back are sent.

    For a handler, the limits that its code declares hold again.

    Example: onceward limits remove session '*'
    """
    if not box.limits.remove(scope, name):
        raise NothingThere(f"there is no limit of {scope} {name}".rstrip())


@command("scope", "messages", "bytes")
def fullness(box: Postbox, /) -> Found:
    """
    Print how full each limited scope is.

    Example: onceward limits fullness
    """
    full = box.limits.fullness().items()
    return [{"scope": scope, "messages": count, "bytes": size} for scope, (count, size) in full]


@command("id", "recipient", "session", "scope", "name", "policy", "dropped_at", "line")
def drops(box: Postbox, /, *, limit: Limit = 100) -> Found:
    """
    List the messages that policies dropped, newest first.

    Example: onceward limits drops --limit 20
    """
    return map(asdict, cut(lambda most: box.limits.drops(limit=most), limit))
