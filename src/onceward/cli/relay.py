"""``onceward relay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onceward import Postbox
from onceward.cli.serve import once as run_once
from onceward.cli.serve import serve
from onceward.cli.target import Quiet, Where, existing

WHERE = Where()


def relay(
    db: Path | None = None, /, *, once: Annotated[bool, Quiet] = False, where: Where = WHERE
) -> int:
    """
    Deliver an agent's mail until told to stop, without running handlers.

    For files whose owner only writes: another program, another language, or onceward send. Any number of relays and workers may
    run on one file. An interrupt or terminate signal stops it gracefully (exit codes 130, 143).

    Args:
        db: The agent's file; default as for --db.
        once: Deliver what is due now, then end.
        where: Whose file.

    """
    path = existing(db or where.path())
    with Postbox(path, start=not once) as box:
        return run_once(box, where) if once else serve(box, where)
