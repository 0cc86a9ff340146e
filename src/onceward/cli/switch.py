"""``onceward freeze`` and ``onceward thaw``: the kill-switch."""

from __future__ import annotations

from onceward.cli.exit_codes import DONE
from onceward.cli.output import show_one
from onceward.cli.target import Where, open_box

WHERE = Where()


def freeze(*, where: Where = WHERE) -> int:
    """
    Stop sending, delivering and handling, in all processes and durably.

    Nothing is lost and no retry is spent; thaw goes on.

    Args:
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.freeze()
        show_one({"agent": box.agent, "frozen": box.health().frozen}, where.style)
    return DONE


def thaw(*, where: Where = WHERE) -> int:
    """
    Go on where freeze stopped.

    Args:
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.thaw()
        show_one({"agent": box.agent, "frozen": box.health().frozen}, where.style)
    return DONE
