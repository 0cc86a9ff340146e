"""``onceward pause`` and ``onceward resume``: stop and start an agent in all processes."""

from __future__ import annotations

from onceward import Postbox
from onceward.ops.cli.command import Found, command


@command()
def pause(box: Postbox, /) -> Found:
    """
    Stop sending, delivering and handling, in all processes and durably.

    No message is lost and no attempt is used up; onceward resume ends the pause.

    Example: onceward pause --agent shop
    """
    box.file.pause()
    return {"agent": box.agent, "paused": box.file.health().paused}


@command()
def resume(box: Postbox, /) -> Found:
    """
    End the pause of an agent.

    Example: onceward resume --agent shop
    """
    box.file.resume()
    return {"agent": box.agent, "paused": box.file.health().paused}
