"""Read the rows behind the numbers of one agent's file: a few of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onceward.errors import OncewardError
from onceward.file.read_only import opened
from onceward.message.clock import SystemClock
from onceward.ops.views.listing import latest
from onceward.ops.views.lists import Lane, Peer, held_lanes, worst_peers
from onceward.ops.views.messages import StoredMessage
from onceward.ops.views.overview import DeadGroup, dead_groups
from onceward.ops.views.pools import PoolMemberRow, worst_members
from onceward.ops.views.why import Why, agent_whys


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDetail:
    """Some rows of one agent's file, the worst or newest of each kind first."""

    problem: str | None
    """Why the file cannot be read; None if it can."""
    whys: tuple[Why, ...] = ()
    """The reasons that hold messages back, the most urgent first."""
    peers: tuple[Peer, ...] = ()
    members: tuple[PoolMemberRow, ...] = ()
    """Members of the pools to which the agent sends."""
    failing: tuple[Lane, ...] = ()
    """Lanes whose oldest message was attempted more than once, with its last error."""
    dead: tuple[DeadGroup, ...] = ()
    sent: tuple[StoredMessage, ...] = ()
    received: tuple[StoredMessage, ...] = ()


def read_detail(path: Path, most: int = 5) -> FileDetail:
    """Return at most *limit* rows of each kind; an error is returned, not raised."""
    try:
        with opened(path) as reader:
            return FileDetail(
                problem=None,
                whys=agent_whys(reader, SystemClock().now())[:most],
                peers=worst_peers(reader, most),
                members=worst_members(reader, most),
                failing=tuple(lane for lane in held_lanes(reader, most) if lane.attempts > 1),
                dead=dead_groups(reader)[:most],
                sent=latest(reader, "outbox", limit=most),
                received=latest(reader, "inbox", limit=most),
            )
    except (OncewardError, OSError) as error:
        return FileDetail(problem=str(error))
