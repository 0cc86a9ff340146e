"""``onceward limits``: what bounds a file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

from cyclopts import Parameter

from onceward.cli.exit_codes import DONE, NothingThere
from onceward.cli.output import show
from onceward.cli.target import Where, open_box
from onceward.model.vocabulary import LimitScope, Overflow

WHERE = Where()
COLUMNS: Final = ("scope", "name", "messages", "bytes", "overflow")
FULL: Final = ("scope", "messages", "bytes")
DROPPED: Final = ("id", "recipient", "session", "scope", "name", "policy", "dropped_at", "line")
Name = Annotated[str, Parameter(allow_leading_hyphen=True)]


def ls(*, where: Where = WHERE) -> int:
    """
    List the limits there are.

    Columns: scope, name, messages, bytes, overflow.

    Args:
        where: Whose file.

    """
    with open_box(where.path()) as box:
        show([asdict(limit) for limit in box.limits.list()], COLUMNS, where.style)
    return DONE


def put(
    scope: LimitScope,
    name: Name = "",
    /,
    *,
    messages: int | None = None,
    size: int | None = None,
    overflow: Overflow = "reject",
    where: Where = WHERE,
) -> int:
    """
    Bound what may be promised and not settled in one scope, for every writer of the file.

    Args:
        scope: What is bounded.
        name: Which session, recipient/lane or channel; a star, or nothing, bounds each one by itself.
        messages: Most messages.
        size: Most bytes of frames.
        overflow: What happens at the limit.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.limits.set(scope, name, messages=messages, size=size, overflow=overflow)
    return DONE


def remove(scope: LimitScope, name: Name = "", /, *, where: Where = WHERE) -> int:
    """
    Lift a limit; what only it held back leaves.

    Args:
        scope: What is bounded.
        name: Which session, recipient/lane or channel; a star, or nothing, for the limit of each one.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        if not box.limits.remove(scope, name):
            msg = f"there is no limit of {scope} {name}".rstrip()
            raise NothingThere(msg)
    return DONE


def fullness(*, where: Where = WHERE) -> int:
    """
    Print how full each bounded scope is.

    Columns: scope, messages, bytes.

    Args:
        where: Whose file.

    """
    with open_box(where.path()) as box:
        full = box.limits.fullness()
    show(
        [
            {"scope": scope, "messages": count, "bytes": size}
            for scope, (count, size) in full.items()
        ],
        FULL,
        where.style,
    )
    return DONE


def drops(*, limit: int = 100, where: Where = WHERE) -> int:
    """
    List what policies dropped, newest first.

    Columns: id, recipient, session, scope, name, policy, dropped, line.

    Args:
        limit: At most so many lines.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        show([asdict(drop) for drop in box.limits.drops(limit=limit)], DROPPED, where.style)
    return DONE


def rate(per_second: float, /, *, burst: float = 1.0, where: Where = WHERE) -> int:
    """
    Send at most so many messages a second; 0 lifts the limit.

    Args:
        per_second: Messages a second.
        burst: How many at once.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.limits.rate(per_second or None, burst=burst)
    return DONE


def accept_rate(per_second: float, /, *, burst: float = 100.0, where: Where = WHERE) -> int:
    """
    Take at most so many messages a second from each sender; 0 lifts the limit.

    Args:
        per_second: Messages a second.
        burst: How many at once.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.limits.accept_rate(per_second or None, burst=burst)
    return DONE


def file(max_bytes: int, /, *, where: Where = WHERE) -> int:
    """
    Take new messages only while less of the file is in use; 0 lifts the limit.

    Args:
        max_bytes: Bytes.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.limits.file(max_bytes or None)
    return DONE
