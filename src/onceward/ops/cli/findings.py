"""Define the checks of doctor: each examines one thing and returns a finding with its cure."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from onceward import Postbox
from onceward.errors import Busy, OncewardError, SqliteTooOld, WrongHome
from onceward.file.connection import check_version
from onceward.file.directory import has_home_key
from onceward.file.environment import disabled_by_environment, load_settings
from onceward.file.file_checks import NETWORK, canonical, filesystem, is_replicated
from onceward.file.read_only import FileReader
from onceward.keys import Keys
from onceward.message.clock import Millis, SystemClock, iso, monotonic
from onceward.message.names import POLL
from onceward.message.parcel import Takeover
from onceward.ops.cli import litestream
from onceward.ops.cli.durations import ago
from onceward.ops.cli.listener_mark import LATELY, listeners
from onceward.ops.cli.readonly import pending
from onceward.ops.views import lists
from onceward.ops.views.directory import is_elsewhere
from onceward.ops.views.handler_limits import handler_limits
from onceward.ops.views.handles import holders, writer
from onceward.ops.views.overview import file_facts, stats
from onceward.ops.views.surroundings import full_disk, of_replaced
from onceward.ops.views.waiting import UNTAKEN_AFTER, due, unhandled, untaken
from onceward.ops.views.why import Why, agent_whys, many, no_address, to_take
from onceward.types import Health

if TYPE_CHECKING:
    from onceward.homes import Homes

Level = Literal["ok", "warning", "serious"]
MINUTE: Final = 60_000
WEEK: Final = 7 * 24 * 60 * MINUTE
MONTH: Final = 30 * 24 * 60 * MINUTE
"""How long doctor reports a loss: peers keep what they sent for about that time."""
YEAR: Final = 365 * 24 * 60 * MINUTE
NEARLY: Final = 0.9
COPIED_WITHIN: Final = 3.0
"""Seconds in which Litestream must copy a commit."""
BETWEEN: Final = 0.05
MOST_DROPS: Final = 5
PRIVATE: Final = 0o077
NOT_TOLD: Final = "run a program there that polls this home: onceward work --ask"
NATS: Final = "nats://"
SOUND: Final = {
    "lease": "none outlives its process",
    "position": "no cursor is past the last message",
}
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
CHECKS: Final = {
    "paused": "paused", "session paused": "paused", "type paused": "paused", "held": "held",
    "breaker open": "breakers", "peer failing": "breakers",
    "left to its process": "breakers",
    "dead letters": "dead letters", "retry": "lanes", "answer": "replies",
    "message awaited": "replies", "asleep": "replies", "leased elsewhere": "leases",
    "schedule failing": "schedules", "schedule withdrawn": "schedules",
    "no member": "pools", "members busy": "pools", "in doubt": "pools", "member stopped": "pools",
}  # fmt: skip
"""Checks by the reason that an agent gives for messages that are held back."""
WANTED: Final = frozenset({"message awaited", "asleep", "leased elsewhere"})
"""Reasons that a handler gives, or that pass by themselves."""
CALM: Final = {
    "paused": "not paused",
    "held": "no paused channel and no full limit holds messages",
    "breakers": "all closed",
    "dead letters": "none",
    "lanes": "none waits behind a message that fails",
    "schedules": "none waits to be sent, none is declared no longer",
    "replies": "no handler waits for a reply or a message",
    "pools": "no message waits for a member",
}
"""Checks in which nothing is held back, in words."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined."""

    check: str
    level: Level
    found: str
    cure: str = ""


def ok(check: str, found: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, "ok", found)


def warning(check: str, found: str, cure: str) -> Finding:
    """Return a finding that an operator should know."""
    return Finding(check, "warning", found, cure)


def serious(check: str, found: str, cure: str) -> Finding:
    """Return a finding that makes the file unhealthy."""
    return Finding(check, "serious", found, cure)


def library() -> Finding:
    """Examine the SQLite library."""
    try:
        check_version()
    except SqliteTooOld as error:
        return serious("sqlite", str(error), "upgrade apsw")
    return ok("sqlite", "the library has the WAL fixes")


def exposed(path: Path) -> list[Path]:
    """Return the file and its side files that other users may read or write."""
    if os.name == "nt":
        return []
    names = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm", "-run")]
    return [found for found in names if found.exists() and found.stat().st_mode & PRIVATE]


def permissions(path: Path) -> Finding:
    """Examine which users may read the file and its side files, and which may replace them."""
    if os.name == "nt":
        return ok("permissions", "not examined on this platform")
    if wide := exposed(path):
        modes = (f"{found.name} {stat.S_IMODE(found.stat().st_mode):04o}" for found in wide)
        said = f"other users may read the messages: {', '.join(modes)}"
        return serious("permissions", said, f"chmod 600 {' '.join(map(str, wide))}")
    for folder in dict.fromkeys((path.absolute().parent, canonical(path).parent)):
        mode = folder.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            may = "add" if mode & stat.S_ISVTX else "replace"
            said = f"other users may {may} files in {folder}"
            return warning("permissions", said, f"chmod go-w {folder}")
    return ok("permissions", "0600, in a folder that only its owner changes")


def disk(path: Path) -> Finding:
    """Examine the file system and the number of names."""
    kind = filesystem(canonical(path).parent)
    if kind in NETWORK or kind.startswith("fuse."):
        said = f"SQLite cannot rely on the locks of {kind}"
        return serious("disk", said, "move the file to a local disk")
    if (links := path.stat().st_nlink) > 1:
        return serious("disk", f"{links} hard links lead to the file", "copy it to a single name")
    if kind in VOLATILE:
        said = f"{kind} is memory: a restart of the machine empties it"
        return warning("disk", said, "keep the file on a disk")
    return ok("disk", kind or "a local file system, as far as the system reports")


def space(path: Path) -> Finding:
    """Examine the free space of the disk."""
    full = full_disk(path)
    return ok("space", "commits have room") if full is None else serious("space", *full[1:])


def others(path: Path) -> Finding:
    """Examine which other processes hold the file."""
    found = holders(path)
    if gone := [str(holder.pid) for holder in found if holder.deleted]:
        return serious("handles", *of_replaced(gone))
    if saves := [str(holder.pid) for holder in found if holder.wal_deleted]:
        said = f"the -wal was deleted while process {', '.join(saves)} has the file open"
        keep = "end and start no process: the next commit there, or its maintenance, saves it"
        return serious("handles", said, f"{keep}; if it hangs, copy the -wal from /proc/PID/fd")
    if stopped := [holder.pid for holder in found if holder.stopped]:
        return _stopped(stopped, writer(path))
    if mixed := [str(holder.pid) for holder in found if holder.mixed]:
        said = f"processes {', '.join(mixed)} have two SQLite libraries loaded"
        return warning("handles", said, "make sure that they open this file only with onceward")
    pids = ", ".join(str(holder.pid) for holder in found)
    return ok("handles", f"held by processes {pids}" if found else "no other process has it open")


def _stopped(stopped: list[int], writing: int | None) -> Finding:
    if writing in stopped:
        said = f"process {writing} is stopped and holds the write lock: no other process can write"
        cure = f"kill -CONT {writing}, or end it: its uncommitted changes are undone"
        return serious("handles", said, cure)
    pids = " ".join(map(str, stopped))
    cure = f"kill -CONT {pids}, or end it: its leases expire"
    return warning("handles", f"stopped: process {pids}", cure)


def locked(path: Path, error: Busy) -> Finding:
    """Report which process holds the write lock that this one could not get."""
    pid = writer(path)
    held = f"examine process {pid}, it holds the write lock; if it hangs, end it: no commit is lost"
    return serious("open", str(error), held if pid else "try again")


def schema(found: FileReader, path: Path) -> Finding:
    """Examine the schema's version."""
    try:
        steps = pending(found)
    except OncewardError as error:
        cure = "use the version that wrote the file, or another file"
        return serious("schema", str(error), cure)
    if steps and steps[0].version == 1:
        said = "no onceward table: another program's file, or an interrupted creation"
        backup = "replace it with a backup, with no -wal file beside it"
        return serious("schema", said, f"{backup}, or delete it and run onceward init NAME")
    if steps:
        lacks = f"lacks {', '.join(step.name for step in steps)}"
        return serious("schema", lacks, f"onceward migrate {path}")
    return ok("schema", "up to date")


def values(found: FileReader) -> Finding:
    """Examine the values of the agent's tables, for a second."""
    said = found.damage()
    if said is None:
        return ok("values", "no damaged one found in a second")
    return serious("values", said, "restore a backup, or recover a copy")


def writing(box: Postbox, found: FileReader) -> Finding:
    """Commit durably, and check that another connection sees the commit."""
    before = found.commits()
    began = monotonic()
    box.state("doctor")  # stores the time: a commit that changes nothing else
    took = 1000 * (monotonic() - began)
    if before == found.commits():
        said = "a commit is not seen by a second connection"
        return serious("write", said, "stop all processes, then onceward check")
    return ok("write", f"a durable commit took {took:.1f} ms and is seen by a second connection")


def wal(health: Health, path: Path) -> Finding:
    """Examine the size of the WAL and whether a reader pins it."""
    size = f"{health.wal_bytes / (1 << 20):.1f} MiB"
    if health.wal_bytes > load_settings(None, {}).tuning.wal_limit:
        why = "a reader pins it" if health.wal_pinned else "no process checkpoints it"
        cure = f"end long readers of {path}, keep a relay or a worker running"
        return serious("wal", f"{size}, {why}", cure)
    if health.wal_pinned:
        cure = "end readers that stay open, if this lasts"
        return warning("wal", f"{size}, pinned by a reader", cure)
    return ok("wal", size)


def replica(path: Path, before: list[litestream.Copied]) -> Iterator[Finding]:
    """
    Examine whether Litestream follows, if it replicates the file from here.

    It copies a commit within its monitor interval, one second by default. So the commit that doctor
    made after it read *before* must be copied soon.
    """
    if not is_replicated(path):
        return
    found, until = litestream.copies(path), monotonic() + COPIED_WITHIN
    while found == before and monotonic() < until:
        time.sleep(BETWEEN)
        found = litestream.copies(path)
    now, newest = SystemClock().now(), max((each.at for each in found), default=None)
    if found == before and (newest is None or now - newest > MINUTE):
        said = f"the last copy is from {ago(newest, now)}" if newest else "it has copied nothing"
        cure = "start it: litestream replicate; its log says why it does not copy"
        yield warning("replica", f"Litestream does not copy commits: {said}", cure)
        return
    since = litestream.unconfirmed_since(found)
    if since is not None and now - since > MINUTE:
        said = f"Litestream has uploaded nothing that is newer than {ago(since, now)}"
        yield warning("replica", said, "its log says why: the place, its credentials, the network")
        return
    yield ok("replica", "Litestream copies commits; onceward backup --drill examines the replica")


def backup(found: FileReader, path: Path) -> Finding:
    """Examine the age of the newest backup or examined replica that the file knows of."""
    at, now = file_facts(found).backed_up_at, SystemClock().now()
    if at is None:
        return ok("backup", "none is noted: onceward backup, and backup --drill, note theirs")
    said = f"the newest has all commits before {ago(at, now)}"
    if now - at <= 1000 * load_settings(None, {}).tuning.max_backup_age:
        return ok("backup", said)
    cure = f"onceward backup {path} COPY, or onceward backup {path} --drill for a replica"
    return warning("backup", said, cure)


def lost(found: FileReader, path: Path) -> Iterator[Finding]:
    """Tell that commits were lost with a deleted WAL, also after the process that noticed it."""
    at, now = file_facts(found).wal_lost_at, SystemClock().now()
    if at is not None and now - at < MONTH:
        said = f"commits were lost {ago(at, now)}: the -wal was deleted, and a new one existed"
        compare = f"compare the file with its peers: onceward check {path.parent}/*.db"
        yield warning("loss", said, f"{compare}; never delete the -wal of an open file")


def taken_over(found: FileReader) -> Iterator[Finding]:
    """Tell which machine has taken over the agent, after which peers refuse the file."""
    superseded_by = file_facts(found).superseded_by
    if superseded_by is not None:
        _, at, machine, *_ = Takeover.parse(superseded_by)
        said = f"{machine} has taken over this agent at {iso(at)}: peers refuse this file"
        cure = "stop its processes, and keep the file until nothing in it is missed"
        yield serious("takeover", said, f"{cure}; to go on here: onceward takeover")


def clock(health: Health) -> Finding:
    """Examine whether the wall clock is behind the file's time."""
    if health.clock_ahead > MINUTE:
        said = f"the wall clock is {health.clock_ahead // 1000} s behind the file's time"
        wait = "delays and leases take up to twice as long until it catches up"
        return serious("clock", said, f"set the clock if it is wrong: {wait}")
    return ok("clock", "not behind the file's time")


def disabled() -> Iterator[Finding]:
    """Tell that this environment disables every agent, where it does."""
    if disabled_by_environment():
        said = "ONCEWARD_DISABLED is set in this environment"
        yield warning("disabled", said, "unset ONCEWARD_DISABLED")


def held(found: FileReader, path: Path) -> Iterator[Finding]:
    """Tell each thing that holds messages back, in the words of ``onceward why``."""
    now = SystemClock().now()
    named, instead = f" --agent {file_facts(found).agent}", f" --db {path}"
    whys = [
        replace(each, cure=f"{each.cure} ".replace(f"{named} ", f"{instead} ").rstrip())
        for each in agent_whys(found, now)
        if each.reason in CHECKS
    ]
    told = [_held(each, now) for each in whys]
    lately = {each.check for each in told}
    yield from told
    yield from (ok(check, calm) for check, calm in CALM.items() if check not in lately)


def _held(why: Why, now: Millis) -> Finding:
    """Return a reason as a finding; a wait that a handler wants is none to worry about."""
    check, said = CHECKS[why.reason], why.text(now)
    brief = {"answer", "members busy"}  # as they are for a minute
    asked = why.reason in brief and why.since_at is not None and now - why.since_at <= MINUTE
    retried = why.reason == "peer failing" and why.level != "act"
    if asked or retried or why.reason in WANTED:
        return ok(check, said)
    return warning(check, said, why.cure or "")


def keys(path: Path) -> Iterator[Finding]:
    """Examine the keys of the home: their modes, their age, unfinished rotations."""
    found, now = Keys(path.parent).list(), SystemClock().now()
    for key in found:
        if not key.mode_ok or not key.count:
            said = f"the key for {key.peer} is readable by others, or damaged: it is not used"
            cure = f"chmod 700 {path.parent / 'keys'}; chmod 600 {path.parent / 'keys' / key.peer}"
            yield serious("keys", said, f"{cure}; onceward keys rotate {key.peer}")
        elif key.count > 1 and now - key.created_at > WEEK:
            said = f"the rotation of the key for {key.peer} is not finished"
            yield warning("keys", said, f"onceward keys rotate {key.peer} --finish")
        elif now - key.created_at > YEAR:
            said = f"the key for {key.peer} is from {ago(key.created_at, now)}"
            yield warning("keys", said, f"onceward keys rotate {key.peer}")
    if all(key.mode_ok and key.count for key in found):
        yield ok("keys", f"{len(found)} keys, each readable by its owner only" if found else "none")


def homes(path: Path) -> Iterator[Finding]:
    """Ask the other homes for a signed answer: url, certificate, key and clock."""
    if not has_home_key(path.parent):
        return
    try:
        from onceward.homes import Homes  # noqa: PLC0415 - an extra

        known = Homes(path.parent)
        known.show()
    except OncewardError as error:
        yield serious("homes", str(error), "the message says what to do")
        return
    for home in known.list():
        if home.url == POLL:
            said = f"the home {home.name} polls; it has told {home.agents} agents"
            yield ok("homes", said) if home.told_at else warning("homes", said, NOT_TOLD)
            continue
        yield _reached(home.name, known)


def _reached(name: str, known: Homes) -> Finding:
    cure = f"onceward homes ping {name}, until it answers"
    try:
        found = known.ping(name)
    except WrongHome as error:
        return serious("homes", str(error), f"then onceward homes remove {name}, and add it again")
    except OncewardError as error:
        return warning("homes", f"{name}: {error}", cure)
    if abs(found.clock_ahead) > MINUTE:
        said = f"the clock of the home {name} is {found.clock_ahead // 1000} s ahead of ours"
        return warning("homes", said, "correct the wrong one: at 300 s every parcel is refused")
    said = f"{name} answered in {1000 * found.took:.0f} ms, and serves {found.agents} agents"
    return ok("homes", said)


def connections(path: Path) -> Iterator[Finding]:
    """Examine the connections of the processes that listen for the agents of the home."""
    now = SystemClock().now()
    for each in listeners(path.parent):
        taken, most = each["strangers"] + each["peers"] + each["held"], each["most"]
        said = (
            f"process {each['pid']} at {each['url']} has {taken} of {most} connections,"
            f" and holds on them {each['held']} of {each['most_held']} questions"
        )
        if now - each["refused_at"] > LATELY:
            yield ok("connections", said)
            continue
        refused = f"{said}; it has refused {each['refused']} for now"
        cure = "raise ulimit -n, or set --connections; unknown callers are in its log"
        yield warning("connections", refused, cure)


def machines(box: Postbox) -> Iterator[Finding]:
    """Ask the peers on other machines for a signed answer: url, certificate, key and clock."""
    for peer in box.peers.list():
        if peer.url is None or peer.url.partition(":")[0] not in {"http", "https"}:
            continue
        try:
            found = box.peers.ping(peer.name)
        except OncewardError as error:
            cure = f"onceward peers ping {peer.name} --db {box.file.path}, until it answers"
            yield warning("machines", f"{peer.name}: {error}", cure)
            continue
        if abs(found.clock_ahead) > MINUTE:
            said = f"the clock of {peer.name} is {found.clock_ahead // 1000} s ahead of ours"
            yield warning(
                "machines", said, "correct the wrong one: at 300 s every parcel is refused"
            )
        else:
            yield ok("machines", f"{peer.name} answered in {1000 * found.took:.0f} ms")


def nats(box: Postbox) -> Iterator[Finding]:
    """Examine the streams of the NATS servers through which peers are reached."""
    urls = [peer.url for peer in box.peers.list() if (peer.url or "").startswith(NATS)]
    for server in dict.fromkeys(f"{NATS}{str(url)[len(NATS) :].split('/')[0]}" for url in urls):
        yield from _streams(box, server)


def _streams(box: Postbox, server: str) -> Iterator[Finding]:
    from onceward.nats import examine  # noqa: PLC0415 - loads asyncio

    cure = f"onceward nats setup --keeper {box.agent} --url {server} --apply"
    try:
        found = examine(server, box.file.path.parent, box.agent)
    except OncewardError as error:
        yield warning("nats", str(error), "start the server, or correct the peer's url")
        return
    for each in found:
        said = f"{server} {each.name}: {each.found}"
        if each.level == "unsafe":
            change = f"nats stream edit {each.name}: senders can be forged"
            yield serious("nats", said, change)
        elif each.level == "missing":
            yield warning("nats", said, cure)
        elif each.level == "filling":
            more = f"nats stream subjects {each.name} lists recipients that take nothing"
            yield warning("nats", said, f"{more}: start them, or nats stream edit {each.name}")
        elif each.level == "differs":
            yield warning("nats", said, f"nats stream edit {each.name}, unless this is intended")
        else:  # an ordinary user may not look at streams
            yield ok("nats", said)


def undelivered(box: Postbox, found: FileReader) -> Iterator[Finding]:
    """Examine messages that are due but wait: for a relay, or for a recipient without a file."""
    now = SystemClock().now()
    rows = due(found, now)
    urls, nowhere = {peer.name: peer.url for peer in box.peers.list()}, set[str]()
    for row in rows:
        name = row.recipient
        path = box.file.path
        here = urls.get(name) or path.with_name(f"{name}.db").exists()
        if not here and not is_elsewhere(path, name):
            said = f"{many(row.messages, 'message')} for {name}, which has neither url nor file"
            nowhere.add(name)
            yield warning("delivery", said, no_address(name, box.agent))
    facts, count = file_facts(found), sum(row.messages for row in rows)
    if facts.superseded_by is not None and count:
        said = f"{many(count, 'message')} did not leave before the takeover"
        cure = "see onceward ls outbox, and send them where the agent is now"
        yield warning("delivery", said, cure)
        return
    if facts.paused_at is not None:  # no relay would deliver them
        if not nowhere:
            yield ok("delivery", _waiting(count, " until the agent is resumed"))
        return
    left = {peer.name for peer in lists.left_peers(found)}  # under breakers
    away = {peer.name for peer in lists.peers(found) if _is_retried(peer, now)}
    warned = bool(nowhere)
    for row in rows:
        if now - row.oldest_at > MINUTE and row.recipient not in nowhere | left:
            name, oldest = row.recipient, ago(row.oldest_at, now)
            said = f"{many(row.messages, 'message')} due for {name}, the oldest from {oldest}"
            repair = f"repair {name}: onceward peers ls --db {box.file.path}"
            run, warned = f"keep onceward relay {box.file.path} running, or a worker", True
            yield warning("delivery", said, repair if name in away else run)
    if not warned:
        count = sum(row.messages for row in rows)
        are = "1 message is" if count == 1 else f"{count} messages are"
        said = f"{are} due, none for longer than a minute"
        said = said if count else "none is due"
        yield ok("delivery", said)


def _is_retried(peer: lists.Peer, now: Millis) -> bool:
    """Return whether a peer fails, and a process that delivers tries again in time."""
    overdue = peer.due_at is not None and now - peer.due_at >= UNTAKEN_AFTER
    return bool(peer.failing or peer.failures) and (peer.owner is not None or not overdue)


def _waiting(count: int, what: str) -> str:
    return f"1 message waits{what}" if count == 1 else f"{count} messages wait{what}"


def _lanes(count: int) -> str:
    """Return a number of lanes in words."""
    return "1 lane" if count == 1 else f"{count} lanes"


def handling(health: Health, found: FileReader, path: Path) -> Finding:
    """
    Examine messages that could be handled but wait: no worker runs, or too few.

    If no live process has taken a message for some seconds, no worker runs. Too few workers are a
    warning only after a minute, because the messages of a burst also wait.
    """
    numbers, now = stats(found), SystemClock().now()
    count = numbers["inbox_pending"] + numbers["inbox_processing"]
    if not count:
        return ok("handling", "no message waits")
    if health.paused:
        return ok("handling", _waiting(count, " until the agent is resumed"))
    row, since_at = unhandled(found, now), untaken(found, now)
    if row.oldest_at is None and since_at is None:
        return ok("handling", _waiting(count, " for a retry, a moment, a message, or a run's end"))
    taken, oldest_at = since_at is None, min(filter(None, (row.oldest_at, since_at)))
    if taken and now - oldest_at <= MINUTE:
        return ok("handling", _waiting(count, ", none ready for longer than a minute"))
    said = f"messages wait in {_lanes(max(1, row.lanes))}, the oldest from {ago(oldest_at, now)}"
    if taken and row.leased:
        leased = f"onceward ls lanes --state leased --db {path} lists the leased lanes"
        why = "a handler hangs, is slow, needs more workers, or waits in box.ask for this one"
        cure = f"{leased}: {why} (use ctx.ask)"
        return warning("handling", f"{said}; leased: {_lanes(row.leased)}", cure)
    return warning("handling", f"{said}; no worker takes them", to_take(found, str(path)))


def calls(health: Health, path: Path) -> Finding:
    """Examine whether calls of aborted runs are still running."""
    if not health.calls_left:
        return ok("runs", "no aborted call is still running")
    said = f"{health.calls_left} calls of aborted runs have not returned"
    shown = f"onceward runs ls --state aborted --db {path} shows left_at"
    return warning("runs", said, f"{shown}; call raise_if_cancelled() in the handler, in time")


def leases(box: Postbox, path: Path) -> Iterator[Finding]:
    """Examine leases that no process will end, and positions past the last message."""
    found = box.file.repair(dry_run=True)
    cure = f"onceward doctor --repair {path}"
    for each in found:
        skips = each.kind == "position"  # the next messages would be skipped
        yield (serious if skips else warning)(f"{each.kind}s", each.found, f"{cure}: {each.change}")
    for kind, sound in SOUND.items():
        if not any(each.kind == kind for each in found):
            yield ok(f"{kind}s", sound)


def limits(box: Postbox, found: FileReader, path: Path) -> Finding:
    """Examine whether a limit is reached or nearly reached."""
    used_by = box.limits.fullness()
    full = [
        f"{scope} holds {many(used[0], 'message')}, {many(used[1], 'byte')}"
        for limit in box.limits.list()
        for scope, used in used_by.items()
        if scope.partition(" ")[0] == limit.scope and limit.name in {"*", scope.partition(" ")[2]}
        if used[0] >= NEARLY * (limit.messages or math.inf)
        or used[1] >= NEARLY * (limit.size or math.inf)
    ]
    if full:
        cure = (
            f"onceward ls queues --db {path} lists waiting messages; onceward limits set raises it"
        )
        return warning("limits", f"reached or nearly reached: {', '.join(full)}", cure)
    told = [
        f"{each.name} is limited to {each.set_limits} (declared: {each.declared})"
        for each in handler_limits(found)
        if each.set_limits
    ]
    return ok("limits", "; ".join(("none is nearly reached", *told)))


def differing(found: FileReader, path: Path) -> Iterator[Finding]:
    """Examine whether messages came a second time with other contents."""
    if count := lists.count_differing(found):
        said = f"{count} messages came a second time under their ids, with other contents"
        look = f"read the view onceward_differing_messages of {path}"
        cure = "the first ones stayed; a handler must send the same when it is called again"
        yield warning("contents", said, f"{look}; {cure}")


def drops(found: FileReader, path: Path) -> Finding:
    """Examine whether a policy dropped messages that are not pruned yet."""
    rows = lists.drops(found, MOST_DROPS)
    if not rows:
        return ok("drops", "no policy dropped a message")
    said = ", ".join(
        f"{row.messages} by {row.policy} at {row.scope} {row.name}".rstrip() for row in rows
    )
    look = f"read the view onceward_drops of {path}"
    return warning("drops", f"dropped: {said}", f"{look}; raise the limit, or let it refuse")
