"""The open file of a workshop: its handler, and what the world outside learns of it."""

from __future__ import annotations

import random
from datetime import timedelta
from threading import Thread
from typing import Final

from tests.proof.power_cut.scene import Scene
from tests.proof.stepped import SteppedEngines

from onceward import Tuning, step
from onceward.api.agent import Agent
from onceward.api.contexts import Context
from onceward.api.postbox import Postbox
from onceward.features.streams.reading import Chunk, Ended, Restarted, StreamItem
from onceward.message.body import Msg
from onceward.message.parcel import Durability
from onceward.testing import Controls
from onceward.testing.clock import ManualClock

SESSIONS: Final = 2
WORDS: Final = 6
"""Chunks of output of each job."""
BATCH: Final = 2
"""Chunks that are committed together."""
PAUSE: Final = 5.0
LIMIT: Final = 61.0
"""Seconds after which each retry and each sleep is over."""
CANCELLED_WITHIN: Final = 5
"""One job in so many is cancelled while its step runs, by another thread."""
A_LIFE: Final = 1000
MONTH: Final = 30 * 86_400.0
"""Retention: more than all lives of a workshop."""
PLACE: Final = 100
TABLES: Final = """
CREATE TABLE IF NOT EXISTS jobs (n INTEGER PRIMARY KEY, id TEXT);
CREATE TABLE IF NOT EXISTS approved (k INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS made (n INTEGER, what TEXT);
CREATE TABLE IF NOT EXISTS ended (n INTEGER, thought INTEGER, first INTEGER, second INTEGER)
"""
ORDER: Final = "INSERT INTO jobs (n, id) VALUES (?, ?)"
JOBS: Final = "SELECT n, id FROM jobs ORDER BY n"
APPROVE: Final = "INSERT INTO approved (k) VALUES (?)"
APPROVED: Final = "SELECT k FROM approved"
MAKE: Final = "INSERT INTO made (n, what) VALUES (?, ?)"
END: Final = "INSERT INTO ended (n, thought, first, second) VALUES (?, ?, ?, ?)"
DONE: Final = "SELECT n FROM ended ORDER BY n"
CANCELLED: Final = """
SELECT j.n FROM jobs AS j JOIN onceward_inbox AS b ON b.id = j.id WHERE b.state = 'cancelled'
UNION
SELECT j.n FROM jobs AS j JOIN onceward_outbox AS o ON o.id = j.id WHERE o.state = 'cancelled'
"""


class Job(Msg, type="workshop.job"):
    """Something to be done in steps."""

    n: int


class Approved(Msg, type="workshop.approved"):
    """What a job waits for, twice."""

    k: int


class Told(Msg, type="workshop.told"):
    """What a step that writes sends."""

    n: int


class Bench:
    """One agent with its file, without threads."""

    def __init__(self, scene: Scene, *, durability: Durability, engines: bool, seed: int) -> None:
        self.scene, self._durability, self._started, self._seed = scene, durability, engines, seed
        self.clock = ManualClock(scene.starts_at)
        self.wrong: list[str] = []
        """Contradictions found so far."""
        self.box: Postbox
        self._engines: SteppedEngines | None = None
        self._minted = self._drawn = self._asked = 0

    def open(self) -> None:
        """Open the file, as a program does that does not know how it ended."""
        self.box = Postbox(
            self.scene.folder / "ann.db",
            agent=self._agent(),
            start=False,
            testing=Controls(
                clock=self.clock,
                ids=self._mint,
                rng=random.Random(self._seed),
                vfs=self.scene.vfs,
            ),
            durability=self._durability,
            tuning=Tuning(checkpoint_pages=60, share_commit_for=0.0),
            retention=MONTH,
            delivery_retry="1s..1.5s ±0%",
            handler_retry="1s..1.5s ±0%",
            network_filesystem=True,
        )
        if self._started:
            self._engines = SteppedEngines(self.box, is_dead=lambda _: False)
            self._engines.begin_alone()
        with self.box.begin() as tx:
            tx.execute(TABLES)

    def close(self) -> None:
        """Close the file, where it could be opened."""
        engines, self._engines = self._engines, None
        if engines is not None:
            engines.close()
        if hasattr(self, "box"):
            self.box.close()

    # -- acts -----------------------------------------------------------------------------------

    def order(self) -> None:
        """Send the next job, with a row of it."""
        n = max([0, *self.jobs(), *self.scene.known("ordered")]) + 1
        with self.box.session(_session_of(n)).begin() as tx:
            tx.execute(ORDER, (n, tx.send("ann", Job(n=n))))
        self._note("ordered", n)

    def approve(self) -> bool:
        """Send the next message that a job waits for; say whether there was one."""
        sent = {k for (k,) in self.box._db.read(APPROVED)}
        k = next((k for n in self.jobs() for k in approvals_of(n) if k not in sent), None)
        if k is None:
            return False
        with self.box.session(_session_of(k // 2)).begin() as tx:
            tx.execute(APPROVE, (k,))
            tx.send("ann", Approved(k=k))
        return True

    def cancel(self) -> None:
        """Cancel the newest job that is not known to have ended, or in turn the oldest one."""
        known = {*self.scene.known("ended"), *self.scene.known("cancelled")}
        left = [n for n in self.jobs() if n not in known] or list(self.jobs())
        self._asked += 1
        if left:
            self._cancel(left[-(self._asked % 2)])

    def _cancel(self, n: int) -> None:
        """Cancel a job, and let the world know what was said."""
        outcome = self.box.cancel(self.jobs()[n]).outcome
        self._note(outcome, n)
        if outcome == "too_late" and n not in {done for (done,) in self.box._db.read(DONE)}:
            self.wrong.append(f"TOO_LATE {n}: its cancel came too late, and it has not ended")

    def work(self) -> None:
        """Handle all that is due."""
        self.clock.advance(1.5)
        if self._engines is None:
            self.box.run_until_idle()
        else:
            self._engines.run_until_idle()

    def wait(self) -> None:
        """Let time pass."""
        self.clock.advance(PAUSE)

    def checkpoint(self) -> None:
        """Move the WAL into the file."""
        self.box._db.checkpoint(truncate=True)

    def maintain(self) -> None:
        """Prune what is old."""
        self.box.file.run_maintenance()

    def reopen(self) -> None:
        """Close the file in good order and open it again."""
        self.close()
        self.open()

    def forget(self) -> None:
        """Let the records of all messages be pruned."""
        self.clock.advance(2 * MONTH)
        for _ in range(3):
            self.maintain()

    # -- the world outside ----------------------------------------------------------------------

    def jobs(self) -> dict[int, str]:
        """Return the ids of all jobs."""
        return dict(self.box._db.read(JOBS))

    def observe(self) -> None:
        """Let the world read which jobs have ended: that must stay true."""
        for (n,) in self.box._db.read(DONE):
            self._note("ended", n)
            if n in self.scene.known("cancelled"):
                self.wrong.append(f"UNDEAD {n}: it has ended, and was said to be cancelled")

    def cancelled(self) -> set[int]:
        """Return the jobs that are cancelled in the file."""
        return {n for (n,) in self.box._db.read(CANCELLED)}

    def forgotten(self) -> None:
        """Judge that what was known outside is still in the file."""
        jobs, ended = set(self.jobs()), {n for (n,) in self.box._db.read(DONE)}
        ordered = set(self.scene.known("ordered"))
        done = set(self.scene.known("ended"))
        self.wrong += [f"LOST_ACK {n}: its block had ended" for n in sorted(ordered - jobs)]
        self.wrong += [f"LOST_END {n}: it was seen to have ended" for n in sorted(done - ended)]
        lost = set(self.scene.known("cancelled")) - self.cancelled()
        self.wrong += [f"LOST_CANCEL {n}: it was said to be cancelled" for n in sorted(lost)]

    def read(self) -> None:
        """Read the output of all jobs, each from where the world has last read it."""
        for n, message_id in self.jobs().items():
            known = self.scene.known(f"shown {n}")
            place, count = divmod(known[-1], PLACE) if known else (0, 0)
            for item in self.box.follow(message_id, after=place, timeout=0):
                count = self._follow(n, item, place, count)
                place = item.position
            self._note(f"shown {n}", place * PLACE + count)

    def _follow(self, n: int, item: StreamItem, place: int, count: int) -> int:
        """Judge one item of output after *count* chunks; return how many there are now."""
        match item:
            case Restarted():
                return 0
            case Chunk(body=body):
                if body != count or item.position <= place:
                    self.wrong.append(f"OUTPUT {n}: chunk {body} after {count} others")
                return count + 1
            case Ended(state=state) if state != "cancelled" and (state, count) != (
                "processed",
                WORDS,
            ):
                self.wrong.append(f"OUTPUT {n}: {state} after {count} chunks of {WORDS}")
        return count

    def _note(self, kind: str, n: int) -> None:
        """Let the world know something that it does not know yet."""
        if n not in self.scene.known(kind):
            self.scene.note(kind, n)

    # -- the agent ------------------------------------------------------------------------------

    def _mint(self) -> str:
        self._minted += 1
        at = f"{self.clock.now():012x}"
        return f"{at[:8]}-{at[8:]}-7000-8000-{self.scene.life:04x}{self._minted:08x}"

    def _agent(self) -> Agent:
        agent = Agent("ann")
        agent.waits(Approved)
        agent.on(Job)(self._job)
        agent.on(Told)(self._told)
        return agent

    def _told(self, told: Told, ctx: Context) -> None:
        ctx.tx.execute(MAKE, (told.n, "told"))

    def _job(self, job: Job, ctx: Context) -> None:
        thought = self._thought(job.n, ctx)
        ctx.step(_build, job.n, tx=True)
        begun = ctx.now()
        ctx.sleep(PAUSE)
        if ctx._steps.now() - begun < timedelta(seconds=PAUSE):
            self.wrong.append(f"AWAKE {job.n}: its sleep was not over")
        first, second = ctx.wait(Approved).k, ctx.wait(Approved).k
        if job.n % 2:
            ctx.step(_end, job.n, thought, first, second, tx=True)
        else:
            ctx.tx.execute(MAKE, (job.n, "last"))
            ctx.tx.execute(END, (job.n, thought, first, second))

    def _thought(self, n: int, ctx: Context) -> int | None:
        """Call the step that puts words out, and tell the world its result."""

        def think(n: int) -> int | None:
            return self._think(n, ctx)

        found = ctx.step(think, n, attempts=3)
        if n in self.scene.known("cancelled"):
            self.wrong.append(f"UNDEAD {n}: its step is stored, and it was said to be cancelled")
        known = self.scene.known(f"thought {n}")
        if known and known[-1] != found:
            self.wrong.append(f"CHANGED {n}: its step returned {known[-1]}, and now {found}")
        if found is not None:
            self._note(f"thought {n}", found)
        return found

    def _think(self, n: int, ctx: Context) -> int:
        key = int(step.key[:12], 16)
        if n in self.scene.known("cancelled"):
            self.wrong.append(f"UNDEAD {n}: its step is called, and it was said to be cancelled")
        if self.scene.known(f"thought {n}"):
            self.wrong.append(f"CALLED_AGAIN {n}: its result was acted upon before")
        if self.scene.known(f"key {n}") not in ([], [key]):
            self.wrong.append(f"KEY {n}: it is another one than before")
        self._note(f"key {n}", key)
        stream = ctx.stream()
        for word in range(WORDS):
            stream.append(word)
            if word % BATCH:
                stream.flush()
            if word == WORDS // 2 and n % 3 == 0 and step.attempt == 1:
                raise ValueError(n)
            if word == WORDS // 2 and n % CANCELLED_WITHIN == 0:
                outside = Thread(target=self._cancel, args=(n,))
                outside.start()
                outside.join()
        self._drawn += 1
        drawn = self.scene.life * A_LIFE + self._drawn
        self.scene.note(f"drawn {n}", drawn)
        return drawn


def _build(n: int) -> None:
    step.tx.execute(MAKE, (n, "built"))
    step.tx.send("ann", Told(n=n))


def _end(n: int, thought: int | None, first: int, second: int) -> None:
    step.tx.execute(MAKE, (n, "last"))
    step.tx.execute(END, (n, thought, first, second))


def approvals_of(n: int) -> tuple[int, int]:
    """Return what the two messages say that a job waits for."""
    return 2 * n, 2 * n + 1


def _session_of(n: int) -> str:
    return f"s{n % SESSIONS}"
