"""Let one tree write the same bytes each time: everything random is drawn from one seed."""

from __future__ import annotations

import random
import secrets
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import apsw

from onceward.file import file_checks
from onceward.message import wire
from onceward.message.ids import clock_ids
from onceward.testing import Controls, ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
MEASURED: Final = """
UPDATE _onceward_failed_attempts
   SET took = 0.001, trace = replace(trace, :root, '.');
UPDATE _onceward_transitions SET at = seq;
"""


@contextmanager
def repeatable() -> Iterator[random.Random]:
    """Draw tokens, ids and SQL's random values from a seed, and yield their source."""
    rng = random.Random(1)

    def blob(*count: Any) -> bytes:
        return rng.randbytes(*count)

    def number(*_: Any) -> int:
        return rng.getrandbits(62)

    def hook(con: apsw.Connection) -> None:
        flags = apsw.SQLITE_INNOCUOUS  # triggers may call them
        con.create_scalar_function("randomblob", blob, 1, flags=flags)
        con.create_scalar_function("random", number, 0, flags=flags)

    drawn = (
        (secrets, "token_hex", lambda count=32: rng.randbytes(count).hex()),
        (secrets, "token_bytes", lambda count=32: rng.randbytes(count)),
        (secrets, "randbits", rng.getrandbits),
        (uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)),
        (wire, "new_id", lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4))),
        (file_checks, "process_id", lambda _=None: "00000000.1.1.1"),
    )
    apsw.connection_hooks.append(hook)
    try:
        with ExitStack() as stack:
            for module, name, function in drawn:
                stack.enter_context(patch.object(module, name, function))
            yield rng
    finally:
        apsw.connection_hooks.remove(hook)


def controls(clock: ManualClock, rng: random.Random) -> Controls:
    """Return what makes a postbox repeatable."""
    return Controls(clock=clock, rng=rng, ids=clock_ids(clock, rng))


def smooth(path: Path) -> None:
    """Remove from a closed file what was measured, and where the tree lies."""
    con = apsw.Connection(str(path))
    if path.name != "directory.db":
        con.execute(MEASURED, {"root": str(ROOT)})
    con.execute("VACUUM")
    con.close()
