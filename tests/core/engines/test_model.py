"""
Runs in any order of events, on a real file, against a model without one.

Arrivals, modes, caps, aborts, failures, crashes and restarts are the events.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from onceward import Agent, Postbox, Run
from onceward.features.runs.scheduler import StartedRun
from onceward.features.runs.worker import RunExecution
from onceward.message.vocabulary import (
    ABORTED,
    QUEUE_MODES,
    QUEUE_OVERFLOWS,
    Aborted,
    QueueMode,
    QueueOverflow,
)
from onceward.testing import Controls, ManualClock

LEASE, REST, DEBOUNCE, GRACE = 30_000, 1_000, 2_000, 10_000
Ids = tuple[str, ...]
SESSIONS = ("red", "green")
sessions = st.sampled_from(SESSIONS)

WEIGHTED = (
    *("arrive", "look", "finish") * 4, *("checkpoint", "change", "wait", "speak_late") * 2, "abort",
    "pause", "crash",
)  # fmt: skip


@dataclass
class Session:
    """
    The model of one session, without file, leases or transactions.

    It knows how the session is set, what waits, what is open and how everything ended.
    """

    mode: str = "followup"
    cap: int = 3
    overflow: str = "summarize"
    delivers: bool = False
    paused: bool = False
    waiting: list[str] = field(default_factory=list)
    open: Ids = ()
    partial: bool = False
    until: int = 0
    since: int | None = None
    last: int = 0
    rest: int = 0
    next_mode: str = ""
    began: int = 0
    awaited: int = -1
    awaited_until: int = 0
    runs: list[tuple[str, bool, Ids]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    untold: int = 0
    told: int = 0

    def arrive(self, fresh: list[str], now: int) -> None:
        """Take messages in, one after the other; their ids end in ``!`` if they are protected."""
        self.since, self.last, kept = now if self.since is None else self.since, now, []
        for each in fresh:
            shielded = [one for one in self.waiting if one.endswith("!")]
            if not each.endswith("!") and len(self.waiting) >= self.cap:
                if self.overflow == "reject" or len(shielded) >= self.cap:
                    self.refused.append(each)
                    continue
                while len(self.waiting) >= self.cap:
                    victim = next(one for one in self.waiting if one not in shielded)
                    self.waiting.remove(victim)
                    self.dropped.append(victim)
                    self.untold += self.overflow == "summarize"
            self.waiting.append(each)
            kept.append(each)
        if (
            any(each in self.waiting for each in kept)
            and self.mode in {"steer", "interrupt"}
            and not self.paused
        ):
            self.abort(now, preempted=True)
            self.since, self.rest, self.next_mode = None, 0, self.mode

    def begin(self, now: int) -> None:
        """Begin a run if there is one to begin."""
        mode = self.next_mode or self.mode
        quiet = (
            self.since is None
            or now >= min(self.last + DEBOUNCE, self.since + 5 * DEBOUNCE)
            or len(self.waiting) >= self.cap
        )
        if (
            self.paused
            or now < self.awaited_until
            or self.open
            or not self.waiting
            or now < self.rest
            or (mode == "collect" and not quiet)
        ):
            return
        self.began, self.next_mode, self.awaited = self.began + 1, "", -1
        count = 1 if mode in {"followup", "queue"} else len(self.waiting)
        self.open, self.waiting = tuple(self.waiting[:count]), self.waiting[count:]
        self.partial, self.until, self.rest = False, now + LEASE, 0
        self.since, self.told = self.since if self.waiting else None, self.untold

    def abort(self, now: int, *, preempted: bool) -> None:
        """End the open run from outside; where its lease has not ended, its call is awaited."""
        if self.open:
            self._end("aborted", consumed=preempted and self.delivers and self.partial)
            if preempted:
                self.awaited, self.awaited_until = self.began, now + GRACE

    def returned(self, number: int) -> None:
        """Let the session go on if it waits for this call."""
        if number == self.awaited:
            self.awaited, self.awaited_until = -1, 0

    def finish(self, now: int, *, well: bool) -> None:
        """End the open run by its handler."""
        self._end("done" if well else "failed", consumed=well)
        self.rest = self.rest if well else now + REST

    def _end(self, state: str, *, consumed: bool) -> None:
        self.runs.append((state, consumed, self.open))
        self.waiting = self.waiting if consumed else [*self.open, *self.waiting]
        self.untold -= self.told if consumed else 0
        self.open = ()


class Play(RuleBasedStateMachine):
    """One agent with two sessions; runs stay open until a rule ends them."""

    @initialize(
        mode=st.sampled_from(QUEUE_MODES),
        overflow=st.sampled_from(QUEUE_OVERFLOWS),
        aborted=st.sampled_from(ABORTED),
        cap=st.integers(1, 4),
    )
    def begin(self, mode: QueueMode, overflow: QueueOverflow, aborted: Aborted, cap: int) -> None:
        """Make the files; both sessions begin as their handler says."""
        self.folder = tempfile.TemporaryDirectory(prefix="onceward-model-")
        self.clock, self.fails = ManualClock(), set[str]()
        self.agent = Agent("coder")
        self.agent.runs(
            mode=mode,
            overflow=overflow,
            cap=cap,
            debounce=DEBOUNCE / 1000,
            aborted=aborted,
        )(self._turn)
        self.sent: list[str] = []
        delivers = aborted == "deliver"
        self.model = {
            name: Session(mode=mode, cap=cap, overflow=overflow, delivers=delivers)
            for name in SESSIONS
        }
        self.mail: dict[str, list[str]] = {name: [] for name in SESSIONS}
        self.seats: list[RunExecution] = []
        self.late: list[RunExecution] = []
        self.numbers: dict[str, int] = {}
        self._open()

    def _open(self) -> None:
        home, shared = (
            Path(self.folder.name),
            {
                "start": False,
                "testing": Controls(clock=self.clock),
                "durability": "fast",
            },
        )
        self.box = Postbox(
            home / "coder.db",
            agent=self.agent,
            delivery_retry="1s..1s ±0%",
            handler_retry="1s..1s ±0%",
            handler_attempts=10_000,
            **shared,  # type: ignore[arg-type]
        )
        self.user = Postbox(home / "user.db", agent="user", **shared)  # type: ignore[arg-type]

    def _turn(self, run: Run) -> None:
        if run.id in self.fails:
            raise RuntimeError("as told")

    def _now(self) -> int:
        return self.clock.now()

    # -- what happens -------------------------------------------------------------------------

    @rule(data=st.data())
    def happen(self, data: Any) -> None:
        """One of the things below, the interesting ones more often."""
        getattr(self, data.draw(st.sampled_from(WEIGHTED)))(data)

    def arrive(self, data: Any) -> None:
        """Messages come into the file; no worker looks yet."""
        session, protected = data.draw(sessions), data.draw(st.integers(0, 3)) == 0
        for _ in range(data.draw(st.integers(1, 6))):
            message_id = f"m{len(self.sent):04}" + ("-p" if protected else "")
            name = message_id.replace("-p", "!")
            self.sent.append(name)
            self.user.session(session).send(
                "coder", name, message_id=message_id, priority="critical" if protected else "normal"
            )
            self.user.run_until_idle()
            self.mail[session].append(name)

    def look(self, _: Any = None) -> None:
        """Look once: what died is recovered, mail taken in, runs begun."""
        runner: Any = self.box._runners[0]
        looked = self.box._db.write(lambda tx: runner.scheduler.schedule(tx, 100))
        assert not looked.index_is_damaged
        for session in self.model.values():
            if session.open and self._now() >= session.until:
                session.abort(self._now(), preempted=False)
        for name, fresh in sorted(self.mail.items()):
            if fresh:
                self.model[name].arrive(fresh, self._now())
        self.mail = {name: [] for name in SESSIONS}
        for session in self.model.values():
            session.begin(self._now())
        self.seats += [self._stage(seat) for seat in looked.started]
        still = {run.id for run in self.box.runs.list(state="open")}
        self.late += [stage for stage in self.seats if stage.row.id not in still]
        self.seats = [stage for stage in self.seats if stage.row.id in still]

    def _stage(self, seat: StartedRun) -> RunExecution:
        runner: Any = self.box._runners[0]
        self.numbers[seat.run.id] = self.model[seat.run.session].began
        return RunExecution(
            seat,
            self.box._deps,
            self._no_loop,
            scheduler=runner.scheduler,
            completion=runner.completion,
        )

    def finish(self, data: Any) -> None:
        """Let a handler return or raise; its lease may have ended unnoticed, without harm."""
        if not self.seats:
            self.look()
            return
        stage, well = (
            self.seats.pop(data.draw(st.integers(0, len(self.seats) - 1))),
            data.draw(st.booleans()),
        )
        self.fails |= set() if well else {stage.row.id}
        assert stage.execute(go_on=False) is None
        self.model[stage.row.session].finish(self._now(), well=well)

    def checkpoint(self, data: Any) -> None:
        """Store partial output of an open run."""
        if not self.seats:
            self.look()
            return
        stage = data.draw(st.sampled_from(self.seats))
        stage.checkpoint({"partial": stage.row.id})
        self.model[stage.row.session].partial = True

    def speak_late(self, data: Any) -> None:
        """Let a run that was ended from outside return: its session waits for it no longer."""
        if not self.late:
            self.look()
            return
        stage = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        assert stage.execute(go_on=True) is None
        self.model[stage.session].returned(self.numbers[stage.run_id])

    def abort(self, data: Any) -> None:
        """A caller ends a run by hand."""
        if not self.seats:
            self.look()
            return
        stage = self.seats.pop(data.draw(st.integers(0, len(self.seats) - 1)))
        assert self.box.runs.abort(stage.row.id)
        self.model[stage.row.session].abort(self._now(), preempted=True)
        self.late.append(stage)

    def change(self, data: Any) -> None:
        """A caller sets the queue otherwise while messages wait."""
        session, cap = data.draw(sessions), data.draw(st.integers(1, 5))
        mode, overflow = (
            data.draw(st.sampled_from(QUEUE_MODES)),
            data.draw(st.sampled_from(QUEUE_OVERFLOWS)),
        )
        self.box.runs.set(session, mode=mode, cap=cap, overflow=overflow)
        model = self.model[session]
        model.mode, model.cap, model.overflow = mode, cap, overflow

    def pause(self, data: Any) -> None:
        """A caller pauses or resumes the queue."""
        session, paused = data.draw(sessions), data.draw(st.integers(0, 2)) == 0
        (self.box.runs.pause if paused else self.box.runs.resume)(session)
        self.model[session].paused = paused

    def wait(self, data: Any) -> None:
        """Time passes: quiet, backoffs, leases."""
        self.clock.advance(data.draw(st.sampled_from([0.5, 1.0, 2.0, 11.0, LEASE / 1000 + 1])))

    def crash(self, _: Any) -> None:
        """Lose the process with all its runs; another one opens the files."""
        self.late, self.seats = [], []
        self.box.close()
        self.user.close()
        self._open()

    @staticmethod
    def _no_loop() -> Any:
        raise AssertionError

    # -- what must hold -----------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        """File and model tell the same story of every session."""
        runs = list(reversed(self.box.runs.list(limit=10_000)))
        for name, model in self.model.items():
            queue, mine = self.box.runs.queue(name), [run for run in runs if run.session == name]
            assert model.waiting == [_name(each.id) for each in self.box.runs.waiting(name)]
            assert [model.open] * bool(model.open) == [
                _names(run.event_ids) for run in mine if run.state == "open"
            ]
            assert model.runs == [
                (run.state, run.consumed, _names(run.event_ids))
                for run in mine
                if run.state != "open"
            ]
            assert (0 if queue is None else queue.dropped) == model.untold
            assert sorted(model.dropped) == self._ended(
                name, "SELECT id FROM onceward_inbox WHERE state = 'dropped' AND session = ?"
            )
            assert sorted(model.refused) == self._ended(
                name, "SELECT id FROM onceward_dead_letters WHERE session = ?"
            )

    def _ended(self, session: str, sql: str) -> list[str]:
        return sorted(_name(message_id) for (message_id,) in self.box._db.read(sql, (session,)))

    def teardown(self) -> None:
        """Find the files sound to the end."""
        if hasattr(self, "box"):
            assert [] == self.box.file.check() + self.user.file.check()
            self.box.close()
            self.user.close()
            self.folder.cleanup()


def _name(message_id: str) -> str:
    return message_id.replace("-p", "!")


def _names(ids: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_name, ids))


TestPlay = Play.TestCase
TestPlay.settings = settings(
    max_examples=20,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
