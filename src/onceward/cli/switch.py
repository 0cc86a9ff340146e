"""``onceward pause`` and ``onceward resume``: the kill-switch."""

from __future__ import annotations

from onceward.cli.exit_codes import DONE
from onceward.cli.output import show_one
from onceward.cli.target import Where, open_box

WHERE = Where()


def pause(*, where: Where = WHERE) -> int:
    """
    Stop sending, delivering and handling, in all processes and durably.

    Nothing is lost and no retry is spent; resume goes on.

    Args:
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.pause()
        show_one({"agent": box.agent, "paused": box.health().paused}, where.style)
    return DONE


def resume(*, where: Where = WHERE) -> int:
    """
    Go on where pause stopped.

    Args:
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.resume()
        show_one({"agent": box.agent, "paused": box.health().paused}, where.style)
    return DONE
