"""``onceward pause`` and ``onceward resume``: stop and start an agent in all processes."""

from __future__ import annotations

from typing import Annotated

from onceward import Postbox
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.exit_codes import NothingThere
from onceward.ops.cli.options import said

Type = Annotated[str | None, said("Only this type or topic, or those of a pattern.")]


@command()
def pause(box: Postbox, /, *, type: Type = None) -> Found:
    """
    Stop sending, delivering and handling, in all processes and durably.

    No message is lost and no attempt is used up; onceward resume ends the pause. With --type, only
    the handlers of that type are not called: its messages wait, and so do those behind them in
    their lanes.

    Example: onceward pause --agent shop

    Example: onceward pause --agent shop --type order.paid
    """
    box.file.pause(type=type)
    return _told(box, type)


@command()
def resume(box: Postbox, /, *, type: Type = None) -> Found:
    """
    End the pause of an agent, or with --type that of a type.

    Example: onceward resume --agent shop

    Example: onceward resume --agent shop --type order.paid
    """
    if not box.file.resume(type=type) and type is not None:
        raise NothingThere(f"{type} is not paused: onceward limits ls lists what is")
    return _told(box, type)


def _told(box: Postbox, type: str | None) -> Found:
    if type is None:
        return {"agent": box.agent, "paused": box.file.health().paused}
    paused = any(each.name == type and each.paused_at for each in box.limits.list())
    return {"agent": box.agent, "type": type, "paused": paused}
