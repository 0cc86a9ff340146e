"""What the doctor looks at: each function examines one thing and returns what it found, with the cure."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from onceward import Health, Postbox
from onceward.cli import queries
from onceward.cli.durations import ago
from onceward.cli.handles import holders, writer
from onceward.cli.readonly import Look, pending
from onceward.db.connection import check_version
from onceward.db.environment import disabled_by_environment, load_settings
from onceward.db.file_checks import NETWORK, canonical, filesystem
from onceward.errors import Busy, OncewardError, SqliteTooOld
from onceward.model.clock import SystemClock

Level = Literal["ok", "warning", "serious"]
MINUTE: Final = 60_000
NEARLY: Final = 0.9
FAILURES: Final = 3
"""Pushes in a row that failed, before the doctor speaks of a peer whose breaker is still closed."""
PRIVATE: Final = 0o077
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined."""

    check: str
    level: Level
    found: str
    cure: str = ""


def library() -> Finding:
    """Examine the SQLite library."""
    try:
        check_version()
    except SqliteTooOld as error:
        return Finding("sqlite", "serious", str(error), "upgrade apsw")
    return Finding("sqlite", "ok", "the library has the WAL fixes")


def permissions(path: Path) -> Finding:
    """Examine who may read the file and its side files, and who may replace it."""
    if os.name == "nt":
        return Finding("permissions", "ok", "not examined on this platform")
    files = [
        found
        for suffix in ("", "-wal", "-shm", "-run")
        if (found := Path(f"{path}{suffix}")).exists()
    ]
    if exposed := [found for found in files if found.stat().st_mode & PRIVATE]:
        modes = ", ".join(
            f"{found.name} {stat.S_IMODE(found.stat().st_mode):04o}" for found in exposed
        )
        return Finding(
            "permissions",
            "serious",
            f"others may read the mail: {modes}",
            f"chmod 600 {' '.join(map(str, exposed))}",
        )
    folder = path.absolute().parent
    mode = folder.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        return Finding(
            "permissions",
            "warning",
            f"others may replace files in {folder}",
            f"chmod go-w {folder}",
        )
    return Finding("permissions", "ok", "0600, in a folder that only its owner changes")


def disk(path: Path) -> Finding:
    """Examine the file system and the number of names."""
    kind = filesystem(canonical(path).parent)
    if kind in NETWORK or kind.startswith("fuse."):
        return Finding(
            "disk",
            "serious",
            f"SQLite cannot trust the locks of {kind}",
            "move the file to a local disk",
        )
    if path.stat().st_nlink > 1:
        return Finding(
            "disk",
            "serious",
            f"{path.stat().st_nlink} hard links lead to the file",
            "copy it under one name",
        )
    if kind in VOLATILE:
        return Finding(
            "disk",
            "warning",
            f"{kind} is memory: a restart of the machine empties it",
            "keep the file on a disk",
        )
    return Finding("disk", "ok", kind or "a local file system, as far as can be told")


def others(path: Path) -> Finding:
    """Examine which other processes hold the file."""
    found = holders(path)
    pids = ", ".join(str(holder.pid) for holder in found)
    if gone := [str(holder.pid) for holder in found if holder.deleted]:
        said = f"processes {', '.join(gone)} hold a file of this name that was deleted or replaced"
        return Finding(
            "handles",
            "serious",
            said,
            "stop them before anything else; what they commit reaches nobody",
        )
    if stopped := [holder.pid for holder in found if holder.stopped]:
        return _halted(stopped, writer(path))
    if mixed := [str(holder.pid) for holder in found if holder.mixed]:
        said = f"processes {', '.join(mixed)} have two SQLite libraries loaded"
        return Finding(
            "handles", "warning", said, "make sure that they open this file with onceward only"
        )
    return Finding(
        "handles", "ok", f"held by processes {pids}" if found else "nobody else holds the file"
    )


def _halted(stopped: list[int], writing: int | None) -> Finding:
    if writing in stopped:
        said = f"process {writing} is stopped and has the write lock: nobody else can write"
        return Finding(
            "handles",
            "serious",
            said,
            f"kill -CONT {writing}, or end it: what it had not committed is undone",
        )
    pids = " ".join(map(str, stopped))
    return Finding(
        "handles",
        "warning",
        f"stopped: process {pids}",
        f"kill -CONT {pids}, or end it: what it leases waits until then",
    )


def locked(path: Path, error: Busy) -> Finding:
    """Say who has the write lock that could not be had."""
    pid = writer(path)
    cure = (
        f"look what process {pid} does, it has the write lock; end it if it hangs: nothing committed is lost"
        if pid
        else "try again"
    )
    return Finding("open", "serious", str(error), cure)


def schema(found: Look, path: Path) -> Finding:
    """Examine the schema's version."""
    try:
        steps = pending(found, path)
    except OncewardError as error:
        return Finding(
            "schema",
            "serious",
            str(error),
            "use the version that wrote the file, or a file of its own",
        )
    if steps and steps[0].version == 1:
        cure = "put a backup in its place, with no -wal beside it, or delete it and begin anew: onceward init NAME"
        return Finding(
            "schema",
            "serious",
            "it has no table of ours: nobody's file, or one that was never finished",
            cure,
        )
    if steps:
        return Finding(
            "schema",
            "serious",
            f"lacks {', '.join(s.name for s in steps)}",
            f"onceward migrate {path}",
        )
    return Finding("schema", "ok", "up to date")


def writing(box: Postbox, found: Look) -> Finding:
    """Commit for real, durably, and see that another connection sees it."""
    [before] = found.rows(queries.WRITTEN)
    began = time.monotonic()
    box.resolve("doctor")  # stores how far the clock has come: a commit that changes nothing else
    took = 1000 * (time.monotonic() - began)
    [after] = found.rows(queries.WRITTEN)
    if before == after:
        return Finding(
            "write",
            "serious",
            "a commit is not seen by a second connection",
            "stop all processes, then onceward check",
        )
    return Finding(
        "write", "ok", f"a durable commit took {took:.1f} ms and is seen by a second connection"
    )


def wal(health: Health, path: Path) -> Finding:
    """Examine the size of the WAL and whether a reader pins it."""
    limit = load_settings(None, {}).wal_limit
    size = f"{health.wal_bytes / (1 << 20):.1f} MiB"
    if health.wal_bytes > limit:
        why = "a reader pins it" if health.wal_pinned else "nobody empties it"
        return Finding(
            "wal",
            "serious",
            f"{size}, {why}",
            f"end long readers of {path}, keep a relay or a worker running",
        )
    if health.wal_pinned:
        return Finding(
            "wal",
            "warning",
            f"{size}, pinned by a reader",
            "end readers that stay open, if this lasts",
        )
    return Finding("wal", "ok", size)


def clock(found: Look) -> Finding:
    """Examine whether the wall clock is behind what the file has seen."""
    [(newest,)] = found.rows(queries.NEWEST)
    behind = newest - SystemClock().now()
    if behind > MINUTE:
        said = f"the wall clock is {behind // 1000} s behind the newest message"
        return Finding(
            "clock", "serious", said, "set the clock: due mail waits until it has caught up"
        )
    return Finding("clock", "ok", "not behind the newest message")


def switch(health: Health, path: Path) -> Finding:
    """Examine the kill-switch."""
    if disabled_by_environment():
        return Finding(
            "paused",
            "warning",
            "ONCEWARD_DISABLED is set in this environment",
            "unset ONCEWARD_DISABLED",
        )
    if health.paused:
        return Finding(
            "paused",
            "warning",
            "paused: nothing is sent, delivered or handled",
            f"onceward resume --db {path}",
        )
    return Finding("paused", "ok", "not paused")


def breakers(found: Look, path: Path) -> Iterator[Finding]:
    """Examine the peers' circuit breakers."""
    rows = found.ask(queries.BREAKERS, failures=FAILURES)
    for row in rows:
        said = (
            f"{row['name']}: {row['breaker']} after {row['failures']} failures: {row['last_error']}"
        )
        yield Finding(
            "breakers",
            "warning",
            said,
            f"mend the peer; onceward peers reset {row['name']} --db {path}",
        )
    if not rows:
        yield Finding("breakers", "ok", "all closed")


def graves(health: Health, path: Path) -> Finding:
    """Examine the dead letters."""
    if health.dead_letters:
        cure = f"onceward dead ls --db {path}, then replay or discard"
        return Finding(
            "dead letters", "warning", f"{health.dead_letters} messages ended badly", cure
        )
    return Finding("dead letters", "ok", "none")


def idle(box: Postbox, found: Look) -> Iterator[Finding]:
    """Examine mail that waits although it is due: for somebody who carries it, or for a recipient that exists."""
    now = SystemClock().now()
    rows = found.ask(queries.IDLE, now=now)
    late = [row for row in rows if now - row["oldest_at"] > MINUTE]
    urls = {peer.name: peer.url for peer in box.peers.list()}
    for row in rows:
        name = row["recipient"]
        if not urls.get(name) and not box.path.with_name(f"{name}.db").exists():
            said = f"{row['messages']} messages for {name}, and nobody knows where {name} lives"
            yield Finding(
                "delivery",
                "warning",
                said,
                f"onceward peers add {name} URL, or onceward init {name} in the same home",
            )
    away = {row["name"] for row in found.ask(queries.BREAKERS, failures=1)}
    for row in late:
        name = row["recipient"]
        said = f"{row['messages']} messages for {name} are due, the oldest from {ago(row['oldest_at'], now)}"
        carry = f"keep onceward relay {box.path} running, or a worker"
        yield Finding(
            "delivery",
            "warning",
            said,
            f"mend {name}: onceward peers ls --db {box.path}" if name in away else carry,
        )
    if not rows:
        yield Finding("delivery", "ok", "no mail waits that is due")


def unhandled(health: Health, found: Look, path: Path) -> Finding:
    """Examine mail that could be handled and is not: nobody runs the handlers, or they do not keep up."""
    if health.paused:
        return Finding("handling", "ok", "paused: nothing is to be handled")
    now = SystemClock().now()
    [row] = found.ask(queries.UNHANDLED, now=now)
    if row["oldest_at"] is None or now - row["oldest_at"] <= MINUTE:
        return Finding("handling", "ok", "no mail waits that could be handled")
    said = f"mail waits in {row['lanes']} lanes, the oldest from {ago(row['oldest_at'], now)}"
    if row["leased"]:
        cure = f"onceward ls lanes --state leased --db {path} has what is in hand: a handler hangs, is slow, or needs more workers"
        return Finding("handling", "warning", f"{said}; {row['leased']} lanes are in hand", cure)
    return Finding(
        "handling",
        "warning",
        f"{said}; nothing is in hand",
        f"start onceward work {path} MODULE:AGENT, or whoever else receives",
    )


def failing(found: Look, path: Path) -> Finding:
    """Examine lanes whose oldest message fails again and again."""
    rows = found.ask(queries.FAILING)
    if not rows:
        return Finding("lanes", "ok", "none waits behind a message that fails")
    [row] = rows
    said = f"{row['lanes']} lanes wait behind a message that fails, as {row['head_id']} at attempt {row['attempts']}: {row['reason']}"
    return Finding(
        "lanes",
        "warning",
        said,
        f"onceward show {row['head_id']} --db {path}; mend the handler and start its worker again",
    )


def limits(box: Postbox, path: Path) -> Finding:
    """Examine whether a limit is reached, or nearly."""
    found = box.limits.fullness()
    full = [
        f"{scope} holds {used[0]} messages, {used[1]} bytes"
        for limit in box.limits.list()
        for scope, used in found.items()
        if scope.partition(" ")[0] == limit.scope and (limit.name in {"*", scope.partition(" ")[2]})
        if used[0] >= NEARLY * (limit.messages or math.inf)
        or used[1] >= NEARLY * (limit.bytes or math.inf)
    ]
    if full:
        cure = f"see what holds it: onceward ls queues --db {path}; or raise it: onceward limits set --db {path}"
        return Finding("limits", "warning", f"reached, or nearly: {', '.join(full)}", cure)
    return Finding("limits", "ok", "none is nearly reached")
