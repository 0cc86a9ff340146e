"""``onceward takeover``: go on with an agent's backup in place of another machine's file."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from onceward.file.backup import Takeovers
from onceward.message.clock import SystemClock
from onceward.message.parcel import Takeover
from onceward.ops.cli.backup import Words, put_back, tell
from onceward.ops.cli.exit_codes import Usage
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import note
from onceward.ops.cli.target import WHERE, Where, chosen

COLUMNS: Final = ("file", "agent", "at", "saved", "number", "machine")
FENCED: Final = """\
Peers that have heard from this file refuse the file of the other machine, which learns that by its
next parcel, and stops. A peer that has not heard from it yet accepts parcels of both."""


def takeover(
    *words: Words,
    source: Annotated[Path, said("The backup to go on with.", name="--from")],
    url: Annotated[str | None, said("The new url of the agent, if it has moved.")] = None,
    dry_run: Annotated[
        bool, Quiet, said("Examine the backup and the file; change nothing.")
    ] = False,
    where: Where = WHERE,
) -> int:
    """
    Restore an agent from a backup, and go on in place of the machine that had it.

    It does what restore does, and gives the file the next number of takeovers. The first process
    that opens it greets all peers. They send what it lacks, and refuse the file of the other
    machine, which stops permanently. Peers that reach the agent at a url follow --url on the same
    network. The home needs the keys that the other machine had.

    Columns: file, agent, at, saved, number, machine.

    Example: onceward takeover shop.db --from /backups/shop.backup --dry-run
    """
    if (url is not None and not url.isprintable()) or " " in (url or ""):
        raise Usage(f"--url {url!r} is not a url")
    [path] = chosen(words, where)
    done = put_back(path, source, dry_run=dry_run, takeovers=partial(_next, url=url))
    made = Takeover.parse(str(done.takeovers.own))
    more = {"number": made.number, "machine": made.machine, "url": made.url, "dry_run": dry_run}
    code = tell(done, more, COLUMNS, where)
    for line in FENCED.splitlines():
        note(line)
    return code


def _next(backup: Takeovers, old: Takeovers, *, url: str | None) -> Takeovers:
    """Return the next takeover after all that either file knows."""
    known = (Takeover.parse(each).number for each in (*backup, *old) if each is not None)
    number = max(known, default=0) + 1
    machine = socket.gethostname() or "unknown"
    return Takeovers(Takeover(number, SystemClock().now(), machine, url).text)
