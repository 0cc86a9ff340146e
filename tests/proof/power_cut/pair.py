"""Two agents of one town, open: ``near`` promises work, ``far`` does it and answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Final, Literal, Self

from tests.proof.power_cut import planted
from tests.proof.power_cut.scene import Scene
from tests.proof.stepped import SteppedEngines

from onceward import Tuning
from onceward.api.agent import Agent
from onceward.api.contexts import Context
from onceward.api.postbox import Postbox
from onceward.errors import Reject, Retry
from onceward.features.batches.context import BatchContext
from onceward.message.body import Msg
from onceward.message.clock import Clock, Millis, SystemClock
from onceward.message.events import Acked, DeadLettered, Event, MessageEvent, Processed
from onceward.message.parcel import Durability
from onceward.testing import Controls
from onceward.testing.clock import ManualClock

Side = Literal["near", "far"]
SESSIONS: Final = 3
GROUPS: Final = 2
"""Groups of the work of a keyed agent."""
A_LIFE: Final = 100_000
"""Numbers of one life; those of the next begin beyond."""
ROWS: Final = {
    "near": (
        "CREATE TABLE IF NOT EXISTS promised (n INTEGER PRIMARY KEY); "
        "CREATE TABLE IF NOT EXISTS noted (seq INTEGER PRIMARY KEY, n INTEGER); "
        "CREATE TABLE IF NOT EXISTS remembered (n INTEGER PRIMARY KEY); "
        "CREATE TABLE IF NOT EXISTS answers (seq INTEGER PRIMARY KEY, n)"
    ),
    "far": "CREATE TABLE IF NOT EXISTS effects (seq INTEGER PRIMARY KEY, n INTEGER, session TEXT)",
}
SIGN: Final = "INSERT INTO promised (n) VALUES (?)"
TAKE_EFFECT: Final = "INSERT INTO effects (n, session) VALUES (?, ?)"
TAKE_ANSWER: Final = "INSERT INTO answers (n) VALUES (?)"
REMEMBER: Final = "INSERT INTO remembered (n) VALUES (?)"
TAKE_NOTE: Final = "INSERT INTO noted (n) VALUES (?)"
NO: Final = "never"
ALONE: Final = 0.003
"""Seconds after which a claim is committed before its handler's effects."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How durable both are, and how mail gets from one to the other."""

    seed: int = 1
    transport: Literal["memory", "file"] = "memory"
    near: Durability = "safe"
    far: Durability = "safe"
    accept_weaker: bool = False
    mutants: tuple[str, ...] = ()
    """Names of the bugs that are planted; see ``planted``."""
    busy_timeout: float = 30.0
    """How long they wait for each other."""
    engines: bool = True
    """Whether their engines are as started: parcels, answers and claims share commits."""
    batch: bool = False
    """Whether the far one takes several messages at once."""
    keyed: bool = False
    """Whether its messages wait for the turns of groups, which have a rate and one call at once."""


class Work(Msg, type="town.work"):
    """Something to be done once."""

    n: int
    pad: str = ""


def group_of(work: Work) -> int:
    """Return the group of a piece of work: those of a session are in several."""
    return work.n // SESSIONS % GROUPS


class Answer(Msg, type="town.answer"):
    """It was done."""

    n: int


class Note(Msg, type="town.note"):
    """What the near one tells itself."""

    n: int


def _hear(box: Postbox, hook: Callable[[Event], None]) -> None:
    """Tell of what has ended; without a hook on Received a message may be handled as it arrives."""
    for kind in (Acked, DeadLettered, Processed):
        box.on(kind, hook)


class Pair:
    """
    Both postboxes on one clock, without threads.

    Every odd thing of a number is a function of the number, so that all lives
    agree on it: which session it belongs to, how long it is, whether its
    handler fails at first, or refuses it.
    """

    def __init__(self, scene: Scene, terms: Terms) -> None:
        self.scene, self.terms = scene, terms
        self.clock = ManualClock(scene.starts_at)
        self.boxes: dict[Side, Postbox] = {}
        self._engines: dict[Side, SteppedEngines] = {}
        self._numbers = scene.life * A_LIFE
        self._minted = 0
        self._by_id: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Open both."""
        try:
            for side in ("near", "far"):
                self.open(side)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close both."""
        self.close()

    def close(self) -> None:
        """Close the agents that are open."""
        while self.boxes:
            self._close(next(reversed(self.boxes)))

    def _close(self, side: Side) -> None:
        engines, box = self._engines.pop(side, None), self.boxes.pop(side)
        try:
            if engines is not None:
                engines.close()
        finally:
            box.close()

    @property
    def near(self) -> Postbox:
        """Who promises."""
        return self.boxes["near"]

    @property
    def far(self) -> Postbox:
        """Who does it."""
        return self.boxes["far"]

    @property
    def handled_on_arrival(self) -> int:
        """Number of messages that were handled in the commit that stored them."""
        return sum(each.handled_on_arrival for each in self._engines.values())

    def path(self, side: Side) -> Path:
        """Return the file of one of them."""
        return self.scene.folder / f"{side}.db"

    def open(self, side: Side) -> None:
        """Start one of them, as a program does that does not know how it ended."""
        box = Postbox(
            self.path(side),
            agent=self._agent(side),
            start=False,
            testing=self._controls(self.clock),
            **self.options(side),
        )
        _hear(box, self._heard)
        try:
            if self.terms.engines:
                self._engines[side] = SteppedEngines(box, is_dead=lambda _: False)
                self._engines[side].begin_alone()
            self._furnish(side, box)
        except BaseException:
            self._engines.pop(side, None)
            box.close()
            raise
        self.boxes[side] = box

    def _controls(self, clock: Clock) -> Controls:
        rng = random.Random(self.terms.seed)
        return Controls(clock=clock, ids=self._mint, rng=rng, vfs=self.scene.vfs)

    def options(self, side: Side) -> dict[str, Any]:
        """Return what the postbox of one side is opened with."""
        terms = self.terms
        return {
            "durability": getattr(terms, side),
            "accept_weaker": terms.accept_weaker,
            "busy_timeout": terms.busy_timeout,
            "tuning": Tuning(
                checkpoint_pages=60, retention_slice=4, share_commit_for=0.0, parcel_max_messages=5
            ),
            "retention": 20.0,
            "delivery_retry": "1s..1.5s ±0%",
            "handler_retry": "1s..1.5s ±0%",
            "network_filesystem": True,
        }

    def _furnish(self, side: Side, box: Postbox) -> None:
        with box.begin() as tx:
            tx.execute(ROWS[side])
        if self.terms.transport == "memory":
            other = "far" if side == "near" else "near"
            if all(peer.name != other or peer.url is None for peer in box.peers.list()):
                box.peers.add(other, f"memory:{other}")

    def reopen(self, side: Side) -> None:
        """Close one of them in good order, let the other knock in vain, and start it again."""
        self._close(side)
        for other in list(self.boxes):
            self.run(other)
        self.open(side)

    def run(self, side: Side) -> None:
        """Let the engines of one of them do all that is due, and commit what waits."""
        engines = self._engines.get(side)
        if engines is None:
            self.boxes[side].run_until_idle()
        else:
            engines.run_until_idle()

    def carry(self) -> None:
        """Let the near one push and hear; an answer that comes waits for the next commit."""
        if "attach" in self.terms.mutants:
            planted.hand_over(
                self.path("near"), self.path("far"), vfs=self.scene.vfs, now=self.clock.now()
            )
        engines = self._engines.get("near")
        if engines is None:
            self.near.run_until_idle()
        else:
            engines.carry(hurry=False)
            engines.handle()

    def turn(self) -> None:
        """Let all agents do what is due."""
        self.carry()
        self.run("far")
        self.run("near")

    # -- promising ----------------------------------------------------------------------------

    def next_number(self) -> int:
        """Return a number that no life has used before."""
        self._numbers += 1
        return self._numbers

    def send(self, n: int) -> None:
        """Promise *n*, by a send of its own."""
        self.scene.note("began", n)
        self.promised(self.near.session(session_of(n)).send("far", work(n)), n)
        self.scene.note("sent", n)

    def send_many(self, numbers: list[int]) -> None:
        """Promise several at once."""
        for n in numbers:
            self.scene.note("began", n)
        ids = self.near.session(session_of(numbers[0])).send_many(
            [("far", work(n)) for n in numbers]
        )
        for message_id, n in zip(ids, numbers, strict=True):
            self.promised(message_id, n)
            self.scene.note("sent", n)

    def sign(self, n: int, *, undo: type[Exception] | None = None) -> None:
        """Promise *n* together with a row of our own, or take both back."""
        self.scene.note("signing" if undo is None else "undone", n)
        with self.near.session(session_of(n)).begin() as tx:
            tx.execute(SIGN, (n,))
            message_id = tx.send("far", work(n))
            self.promised(message_id, n)
            if undo is not None:
                raise undo
        self.scene.note("sent", n)

    def remember(self, n: int, *, undo: type[Exception] | None = None) -> None:
        """Let the near one send *n* to itself with a row of our own, or take both back."""
        self.scene.note("unremembered" if undo else "remembering", n)
        with self.near.begin() as tx:
            tx.execute(REMEMBER, (n,))
            send = self.near.send if n % 2 else tx.send  # at once, or at the end of the block
            send("near", Note(n=n))
            if undo is not None:
                raise undo
        self.scene.note("remembered", n)

    def take(self) -> bool:
        """Let the far one take a message by hand, and end it in a block with its effect."""
        message = self.far.receive()
        if message is None:
            return False
        asked = Work.model_validate(message.body)
        self.promised(message.id, asked.n)
        if fails_first(asked.n) and message.attempt == 1:
            message.retry(after=1)
        elif refused(asked.n):
            message.reject(NO)
        else:
            with self.far.begin() as tx:
                tx.execute(TAKE_EFFECT, (asked.n, message.session))
                message.reply(Answer(n=asked.n))
                message.ack()
        return True

    def promised(self, message_id: str, n: int) -> None:
        """Remember which message is which number."""
        self._by_id[message_id] = n

    # -- what they are ------------------------------------------------------------------------

    def _mint(self) -> str:
        self._minted += 1
        at = f"{self.clock.now():012x}"
        return f"{at[:8]}-{at[8:]}-7000-8000-{self.scene.life:04x}{self._minted:08x}"

    def _agent(self, side: Side) -> Agent:
        agent = Agent(side)
        if side == "far" and self.terms.batch:
            agent.on(Work, batch=4, within=0)(self._works)
        elif side == "far" and self.terms.keyed:
            agent.on(Work, key=group_of, concurrency=1, rate="2/s")(self._work)
        elif side == "far":
            agent.on(Work)(self._work)
        else:
            agent.on(Answer)(self._answer)
            agent.on(Note)(self._note)
        return agent

    def _work(self, work: Work, ctx: Context) -> None:
        self._by_id[ctx.message.id] = work.n
        if "far" in self._engines and slow(work.n):
            self.clock.advance(ALONE)
            self._engines["far"].beat()
        if fails_first(work.n) and ctx.message.attempt == 1:
            again = "not yet"
            raise Retry(again, after=1)
        if refused(work.n):
            raise Reject(NO)
        ctx.tx.execute(TAKE_EFFECT, (work.n, ctx.message.session))
        ctx.reply(Answer(n=work.n))

    def _works(self, works: list[Work], ctx: BatchContext) -> None:
        for each, message in zip(works, ctx.messages, strict=True):
            self._by_id[message.id] = each.n
            if "far" in self._engines and slow(each.n):
                self.clock.advance(ALONE)
                self._engines["far"].beat()
            if fails_first(each.n) and message.attempt == 1:
                again = "not yet"
                raise Retry(again, after=1)
            if refused(each.n):
                ctx.reject(message, NO)
            else:
                ctx.tx.execute(TAKE_EFFECT, (each.n, message.session))
                ctx.reply(message, Answer(n=each.n))

    def _answer(self, answer: Answer, ctx: Context) -> None:
        self._by_id[ctx.message.id] = -answer.n
        ctx.tx.execute(TAKE_ANSWER, (answer.n,))

    def _note(self, note: Note, ctx: Context) -> None:
        ctx.tx.execute(TAKE_NOTE, (note.n,))

    def _heard(self, event: Event) -> None:
        n = self._by_id.get(event.message_id) if isinstance(event, MessageEvent) else None
        if n is None:
            return
        match (event.agent, event.name):
            case ("far", "processed"):
                self.scene.note("done", n)
            case ("far", "dead") if n > 0:
                self.scene.note("refused", n)
            case ("near", "acked"):
                self.scene.note("told", n)
            case ("near", "processed"):
                self.scene.note("answered", -n)


class LivePair(Pair):
    """Both postboxes with their engines on threads of their own, on the machine's clock."""

    def __init__(self, scene: Scene, terms: Terms) -> None:
        super().__init__(scene, terms)
        self._minting = Lock()
        self._wall = OffsetClock(scene.starts_at)

    def open(self, side: Side) -> None:
        """Start one of them, and its engines."""
        box = Postbox(
            self.path(side),
            agent=self._agent(side),
            testing=self._controls(self._wall),
            **self.options(side)
            | {
                "delivery_retry": "0.05s..0.05s ±0%",
                "handler_retry": "0.05s..0.05s ±0%",
            },
        )
        _hear(box, self._heard)
        self.boxes[side] = box
        self._furnish(side, box)

    def _mint(self) -> str:
        with self._minting:
            return super()._mint()


class OffsetClock(SystemClock):
    """The machine's clock, set to a moment at which a life begins."""

    def __init__(self, starts_at: Millis) -> None:
        self._offset = starts_at - SystemClock().now()

    def now(self) -> Millis:
        """Return the present moment of that life."""
        return super().now() + self._offset


def work(n: int) -> Work:
    """Return the message of that number; some need pages of their own."""
    return Work(n=n, pad="x" * (n * 1231 % 6000 if n % 4 == 0 else n % 50))


def session_of(n: int) -> str:
    """Return the session of a number."""
    return f"s{n % SESSIONS}"


def fails_first(n: int) -> bool:
    """Return whether the first attempt at that number fails."""
    return n % 7 == 3


def refused(n: int) -> bool:
    """Return whether no agent will ever do that number."""
    return n % 11 == 5


def slow(n: int) -> bool:
    """Return whether the handler of that number takes so long that its claim is committed first."""
    return n % 5 == 1
