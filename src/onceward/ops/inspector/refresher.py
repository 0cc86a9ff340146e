"""Keep a snapshot of every file; separate threads renew it when the file has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

from onceward.file.read_only import FileReader, opened
from onceward.message.clock import Clock, Millis, SystemClock, monotonic
from onceward.message.dates import Schedule
from onceward.message.log import log
from onceward.ops.inspector.targets import Targets
from onceward.ops.observe.snapshots import FileSnapshot, stamp_of
from onceward.ops.views import waiting
from onceward.ops.views.failures import Failure, failures
from onceward.ops.views.links import Link, links
from onceward.ops.views.lists import MailboxReader, mailbox_readers, schedules
from onceward.ops.views.overview import DeadGroup, dead_groups, overview
from onceward.ops.views.rates import Rates, rates
from onceward.ops.views.why import Why, agent_whys

INTERVAL: Final = 1.0
"""Seconds between two scans of the files."""
THREADS: Final = 2
LAZY: Final = 4
"""A slow scan is followed by a pause of this multiple of its length."""
OLDEST: Final = 300_000
"""Milliseconds after which a snapshot of an unchanged file is renewed, because leases end."""
STEPS: Final = 64
"""Number of recent changes that are remembered, for readers that reconnect."""

LISTED: Final = 200
"""Maximum schedules, and readers of mailboxes, kept from one file."""
RANGES: Final = {"hour": (180_000, 20), "day": (3_600_000, 24)}
"""Length and number of the spans of rates, by the name of their range."""
LONGEST: Final = 5.0
"""Seconds after which a statement is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(FileSnapshot):
    """The state of one file at one moment, or why it could not be read."""

    key: str
    dead: tuple[DeadGroup, ...] = ()
    whys: tuple[Why, ...] = ()
    failures: tuple[Failure, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    readers: tuple[MailboxReader, ...] = ()
    links: tuple[Link, ...] = ()
    rates_of: Mapping[str, Rates] = field(default_factory=dict)
    """Its rates by range."""


class Refresher:
    """Threads that take the snapshots; pages read them without opening a file."""

    def __init__(self, targets: Targets, *, clock: Clock | None = None) -> None:
        self.targets = targets
        self.clock = clock or SystemClock()
        self.snapshots: dict[str, Snapshot] = {}
        self.version = 0
        """Version, which grows with every change of a snapshot."""
        self.pause = INTERVAL
        """Seconds until the next scan; longer if many files keep changing."""
        self.looked_at: Millis | None = None
        """When the last scan of all files began: every snapshot reflects at least that time."""
        self._changed: list[tuple[int, frozenset[str]]] = []
        self._lock, self._stop = Lock(), Event()
        self._pool = ThreadPoolExecutor(THREADS, "onceward-inspector")
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start scanning the files, unless it was started before."""
        with self._lock:
            if self._thread is None:
                name = "onceward-inspector-watch"
                self._thread = Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop the threads."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._pool.shutdown(cancel_futures=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            began = monotonic()
            try:
                self.refresh()
            except Exception as error:  # noqa: BLE001 - the next scan may succeed
                log.failure("warning", "scan of the files failed", error)
            self.pause = max(INTERVAL, LAZY * (monotonic() - began))
            self._stop.wait(self.pause)

    def refresh(self) -> None:
        """Renew the snapshots of changed files, and drop those of deleted files."""
        files, began_at = self.targets.files(), self.clock.now()
        self._renew(files)
        self.looked_at = began_at
        if gone := [key for key in self.snapshots if key not in files]:
            self._keep(dict.fromkeys(gone))

    def refresh_some(self, keys: Iterable[str]) -> None:
        """Do so only for files with an open page."""
        known = [each for key in keys if (each := self.snapshots.get(key))]
        self._renew({each.key: each.path for each in known if each.path.exists()})

    def _renew(self, files: dict[str, Path]) -> None:
        now = self.clock.now()
        stale = [key for key, path in files.items() if self._is_stale(key, path, now)]
        taken = self._pool.map(lambda key: self._take(key, files[key]), stale)
        for at in range(0, len(stale), STEPS):
            found: dict[str, Snapshot | None] = dict(
                zip(stale[at : at + STEPS], taken, strict=False)
            )
            known = self.snapshots
            if new := {key: each for key, each in found.items() if each is not known.get(key)}:
                self._keep(new)

    def _is_stale(self, key: str, path: Path, now: Millis) -> bool:
        known = self.snapshots.get(key)
        if known is None or known.problem:  # which may have passed without a write
            return True
        return known.stamp != stamp_of(path) or now - known.taken_at > OLDEST

    def _take(self, key: str, path: Path) -> Snapshot:
        before, now = stamp_of(path), self.clock.now()
        unread = Snapshot(key=key, path=path, agent=path.stem, taken_at=now, stamp=before)
        try:
            with page_reader(path) as reader:
                reader.hold()
                found = overview(reader)
                taken = replace(
                    unread,
                    agent=found.file.agent,
                    overview=found,
                    idle=partial(waiting.idle, found, *waiting.processes(reader, found, now)),
                    dead=dead_groups(reader),
                    whys=agent_whys(reader, now, found),
                    failures=failures(reader, now),
                    schedules=schedules(reader, limit=LISTED),
                    readers=mailbox_readers(reader, LISTED),
                    links=links(reader, now),
                    rates_of={
                        name: rates(reader, now, span=span, count=count)
                        for name, (span, count) in RANGES.items()
                    },
                )
        except Exception as error:  # noqa: BLE001 - other files must still be read
            known = self.snapshots.get(key)
            same = known is not None and known.problem == str(error)
            return known if known is not None and same else replace(unread, problem=str(error))
        return taken

    def _keep(self, found: dict[str, Snapshot | None]) -> None:
        with self._lock:
            kept = self.snapshots | found
            self.snapshots = {key: each for key, each in kept.items() if each is not None}
            self.version += 1
            self._changed = [*self._changed[1 - STEPS :], (self.version, frozenset(found))]

    def changed_since(self, version: int) -> tuple[int, frozenset[str] | None]:
        """Return the current version, and the keys changed since; None if all may have changed."""
        with self._lock:
            if version == self.version:
                return version, frozenset()
            known = [keys for at, keys in self._changed if at > version]
            complete = 0 <= self.version - version <= len(self._changed)
            return self.version, frozenset[str]().union(*known) if complete else None


def page_reader(path: Path) -> AbstractContextManager[FileReader]:
    """Open a file for a page; a statement that takes too long is stopped."""
    return opened(path, longest=LONGEST)
