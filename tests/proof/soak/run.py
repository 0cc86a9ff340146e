"""
One course of a soak.

A sender at a fixed pace, a receiver that handles, and an onlooker that measures both from outside.

Everything is pruned after a short while, as it is after a long one in earnest,
so that a quarter of the course is enough for every table to have found its
size. What still grows after that is a leak.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import apsw

from onceward.api.agent import Agent
from onceward.api.postbox import Postbox
from onceward.message.settings import Tuning
from onceward.testing.kills import end_with_parent

SENDER: Final = "ada"
RECEIVER: Final = "bob"
BATCH: Final = 0.02
"""Seconds between two batches of the sender."""
KEPT_FOR: Final = 10.0
"""Seconds for which ended rows and marks are kept here."""
TIDY_EVERY: Final = 1.0
WARM: Final = 0.25
"""Share of the course that is not judged: caches fill, tables grow to what retention keeps."""
PATIENCE: Final = 120.0
ROWS: Final = """
SELECT (SELECT count(*) FROM _onceward_outbox), (SELECT count(*) FROM _onceward_inbox),
       (SELECT count(*) FROM _onceward_processed_messages),
       (SELECT count(*) FROM _onceward_receipts),
       (SELECT value FROM _onceward_counters WHERE name = 'processed')
"""
KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment, of both processes and files together."""

    at: float
    """Seconds since the beginning."""
    messages: int
    """Messages that had their effect so far."""
    rss: float
    """Resident memory in MiB."""
    descriptors: int
    wal: float
    """Size of both WALs in MiB."""
    rows: int
    """Rows of outbox, inbox, marks and receipts."""
    file: float
    """Size of both files in MiB."""


@dataclass(frozen=True, slots=True)
class Course:
    """A whole course: its samples, and the hourly growth of each figure after warming up."""

    samples: tuple[Sample, ...]

    @property
    def judged(self) -> tuple[Sample, ...]:
        """The samples after warming up."""
        return self.samples[round(len(self.samples) * WARM) :]

    @property
    def rate(self) -> float:
        """Messages in a second, over what is judged."""
        first, last = self.judged[0], self.judged[-1]
        return (last.messages - first.messages) / (last.at - first.at)

    def slope(self, name: str) -> float:
        """Return the growth of one column in an hour, by least squares over what is judged."""
        return 3600 * slope([(each.at, float(getattr(each, name))) for each in self.judged])

    def told(self) -> dict[str, Any]:
        """Return what is worth saying, as JSON can."""
        last = self.samples[-1]
        names = [field.name for field in fields(Sample) if field.name not in {"at", "messages"}]
        return {
            "seconds": round(last.at, 1),
            "messages": last.messages,
            "messages_per_second": round(self.rate),
            **{
                name: {
                    "last": round(getattr(last, name), 2),
                    "most": round(max(getattr(each, name) for each in self.judged), 2),
                }
                | {"growth_per_hour": round(self.slope(name), 2)}
                for name in names
            },
        }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line of least squares through *points*."""
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0


def soak(*, seconds: float, rate: float = 1000.0, every: float = 1.0) -> Course:
    """Pass *rate* messages a second for *seconds* in two processes, sampled *every* so often."""
    context = get_context("spawn")
    stop, ready = context.Event(), [context.Event(), context.Event()]
    with TemporaryDirectory(prefix="onceward-soak-") as name:
        folder = Path(name)
        parts = [
            context.Process(target=receive, args=(folder, ready[0], stop), daemon=True),
            context.Process(target=send, args=(folder, rate, ready[1], stop), daemon=True),
        ]
        for part, is_up in zip(parts, ready, strict=True):
            part.start()
            is_up.wait(PATIENCE)
        try:
            return Course(tuple(_watched(folder, parts, seconds=seconds, every=every)))
        finally:
            stop.set()
            for part in parts:
                part.join(PATIENCE)


def _watched(
    folder: Path, parts: Sequence[BaseProcess], *, seconds: float, every: float
) -> list[Sample]:
    begun, found = time.monotonic(), list[Sample]()
    files = [folder / f"{name}.db" for name in (SENDER, RECEIVER)]
    while (at := time.monotonic() - begun) < seconds and all(part.is_alive() for part in parts):
        found.append(sample(files, [part.pid or 0 for part in parts], at))
        time.sleep(every)
    return found


def sample(files: Sequence[Path], pids: Sequence[int], at: float) -> Sample:
    """Measure some processes and the files of some agents."""
    rows = messages = 0
    for path in files:
        con = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        con.set_busy_timeout(round(1000 * PATIENCE))
        found: list[tuple[Any, ...]] = con.execute(ROWS).fetchall()
        con.close()
        [(*counts, processed)] = found
        rows += sum(counts)
        messages += processed or 0
    wals = [wal for path in files if (wal := Path(f"{path}-wal")).exists()]
    return Sample(
        at=at,
        messages=messages,
        rss=sum(map(_resident, pids)) / KIB,
        descriptors=sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
        wal=sum(path.stat().st_size for path in wals) / KIB / KIB,
        rows=rows,
        file=sum(path.stat().st_size for path in files) / KIB / KIB,
    )


def _resident(pid: int) -> int:
    """Return the resident memory of a process in KiB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return int(text.partition("VmRSS:")[2].split()[0])


# -- the two processes --------------------------------------------------------------------------


def _open(folder: Path, agent: Agent | str) -> Postbox:
    name = agent if isinstance(agent, str) else agent.name
    return Postbox(
        folder / f"{name}.db",
        agent=agent,
        hold_unknown=True,
        retention=KEPT_FOR,
        delivery_attempts=4,
        tuning=Tuning(maintenance_interval=TIDY_EVERY),
    )


def send(folder: Path, rate: float, ready: Event, stop: Event) -> None:
    """Send at a pace until told to stop; what the clock has run ahead of is caught up."""
    end_with_parent()
    with _open(folder, SENDER) as box:
        ready.set()
        begun, sent = time.monotonic(), 0
        while not stop.wait(BATCH):
            due = round((time.monotonic() - begun) * rate) - sent
            if due > 0:
                box.send_many(
                    [(RECEIVER, {"number": sent + k, "text": "x" * 200}) for k in range(due)]
                )
                sent += due


def receive(folder: Path, ready: Event, stop: Event) -> None:
    """Handle what comes until told to stop."""
    end_with_parent()
    agent = Agent(RECEIVER)

    @agent.on("*")
    def take(_body: object) -> None:
        """Be done with it."""

    with _open(folder, agent):
        ready.set()
        stop.wait()
