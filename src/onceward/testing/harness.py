"""Test one agent: its real file, a manual clock, no threads, a crash at any named point."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from typing_extensions import TypeForm

from onceward.api.agent import Agent
from onceward.api.postbox import Postbox
from onceward.core.deliver.transport import Accept
from onceward.features.checks.invariants import Violation
from onceward.file.environment import load_settings
from onceward.message.arguments import checked, checks_arguments
from onceward.message.body import Body, Msg, decode
from onceward.message.events import Event
from onceward.message.frame import Frame
from onceward.message.names import DEFAULT_SESSION
from onceward.message.settings import Controls, Tuning, merge_tuning
from onceward.message.times import Span
from onceward.testing.clock import ManualClock
from onceward.testing.crash import Crash, Life, Point, StepPoint, mortal
from onceward.testing.during_run import MiddleOfRun
from onceward.testing.handler_test import TrialContext, trial
from onceward.testing.wire import SCHEME, Wire, acceptor

STEADY: Final[Mapping[str, Any]] = {
    "delivery_retry": "±0%",
    "handler_retry": "±0%",
    "tuning": Tuning(share_commit_for=0.0),
    "hold_unknown": True,
}
"""Settings that make each run the same: no jitter, one commit per message, any recipient."""
UNDECLARED: Final = frozenset({"json", "text", "bytes"})
"""Types of bodies without a class."""
ROUNDS: Final = 10_000
EVERYTHING: Final = 1_000_000


@checks_arguments()
class Harness:
    """
    An agent under test, with the peers that write to it.

    Everything is real (schema, dispatcher, worker, transactions) except the clock, which you
    advance, and threads, of which there are none: ``deliver`` runs the engines here until nothing
    is due. Settings are given as keywords, as for ``Postbox``.
    """

    @checked
    def __init__(
        self,
        agent: Agent | str,
        *,
        schema: str = "",
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        self._agent = agent if isinstance(agent, Agent) else Agent(agent)
        self._given = {**STEADY, **settings}
        self._given["tuning"] = merge_tuning(STEADY["tuning"], settings.get("tuning", {}))
        self._settings = load_settings(None, self._given)
        self.clock = ManualClock() if clock is None else clock
        """The time of all postboxes of this harness."""
        self._folder = TemporaryDirectory(prefix="onceward-")
        self._life = Life(self._path(self._agent.name))
        self._acceptors: dict[str, Accept] = {}
        self._peers: dict[str, Postbox] = {}
        self._trials: list[TrialContext] = []
        self._box = self._open(mortal(self._agent, self._life), Wire(self._acceptors, self._life))
        if schema:
            self.sql(schema)

    # -- opening and closing ------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name}.db"

    def _open(self, agent: Agent, wire: Wire) -> Postbox:
        box = Postbox(
            self._path(agent.name),
            agent=agent,
            start=False,
            testing=Controls(clock=self.clock, rng=random.Random(0)),  # noqa: S311 - same jitter
            transports={SCHEME: wire},
            **self._given,
        )
        box.on(Event, self._life.told)
        self._acceptors[agent.name] = acceptor(box, self._settings)
        return box

    def _leave(self, box: Postbox) -> None:
        del self._acceptors[box.agent]
        box.close()

    def restart(self) -> None:
        """Close the agent's file and open it again, as a new process does; peers stay."""
        self._undo_trials()
        self._leave(self._box)
        self._life.again()
        self._box = self._open(mortal(self._agent, self._life), Wire(self._acceptors, self._life))

    def close(self) -> None:
        """Close all files and delete them; safe to call twice."""
        if not self._acceptors:
            return
        self._undo_trials()
        for box in (self._box, *self._peers.values()):
            self._leave(box)
        self._life.end_watch()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        """Use the harness for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # -- who is here --------------------------------------------------------------------------

    @property
    def postbox(self) -> Postbox:
        """The agent's postbox; another object after a crash or a restart."""
        return self._box

    def peer(self, name: str, agent: Agent | None = None) -> Postbox:
        """Return the postbox of a peer, made on first use, with the handlers of *agent*."""
        if name not in self._peers:
            box = self._peers[name] = self._open(agent or Agent(name), Wire(self._acceptors))
            box.peers.add(self._agent.name, f"{SCHEME}:{self._agent.name}")
            self._box.peers.add(name, f"{SCHEME}:{name}")
        return self._peers[name]

    # -- mail and time ------------------------------------------------------------------------

    def send(
        self,
        body: object,
        *,
        sender: str = "tester",
        session: str = DEFAULT_SESSION,
        **options: Any,
    ) -> str:
        """Commit a message to the agent in the outbox of *sender*; return its id."""
        return self.peer(sender).session(session).send(self._agent.name, body, **options)

    def deliver(self) -> int:
        """Carry messages and run handlers until nothing is due; return the number of steps."""
        self._undo_trials()
        pumping, self._life.pumping = self._life.pumping, True
        total = 0
        try:
            for _ in range(ROUNDS):
                moved = sum(box.run_until_idle() for box in (*self._peers.values(), self._box))
                total += moved
                if not moved:
                    break
        finally:
            self._life.pumping = pumping
        return total

    def advance(self, span: Span) -> None:
        """Advance the clock: leases, retries and delays become due; ``deliver`` acts on them."""
        self.clock.advance(span)

    @contextmanager
    def crash_at(self, point: Point | StepPoint, *, step: str | None = None) -> Iterator[None]:
        """
        Kill the agent's process at *point* within the block, and start it again after the block.

        Points of steps are those of *step*, such as ``think#2``, or of the first one. Uncommitted
        writes are lost; a leased message stays leased until its lease ends, and peers do not
        notice.

        Raises:
            AssertionError: the block ended, but the process did not reach that point.

        """
        self._life.arm(point, step)
        try:
            yield
            self._life.told()
        except Crash:
            if not self._life.over:
                raise
        finally:
            died = self._life.over
            self._life.arm(None)
            if died:
                self.restart()
        if not died:
            msg = f"the block never reached the point {point}: the process is still alive"
            raise AssertionError(msg)

    @contextmanager
    def during_run(self, act: Callable[[], object]) -> Iterator[None]:
        """
        Call *act* once, in the middle of the next run, and deliver its messages.

        The middle is the first ``checkpoint`` or ``write`` of a handler, its first
        ``inbox()`` or its first look at ``cancelled``; of a coroutine its first
        ``checkpoint``, ``write`` or ``inbox()``. So a message that steers, sent by
        *act*, ends that run: its handler sees ``cancelled``, or is cancelled.

        Raises:
            AssertionError: the block ended, but no run reached its middle.

        """
        middle = self._life.middle = MiddleOfRun(lambda: (act(), self.deliver()))
        try:
            yield
        finally:
            self._life.middle = None
        if not middle.over:
            msg = "the block never reached the middle of a run: its handler called no method"
            raise AssertionError(msg)

    # -- looking ------------------------------------------------------------------------------

    def check(self) -> list[Violation]:
        """Return the violated invariants of all files and of the messages between them."""
        self._undo_trials()
        boxes = [self._box, *self._peers.values()] if self._acceptors else []
        return [
            broken
            for index, box in enumerate(boxes)
            for broken in box.file.check(*(other.file for other in boxes[index + 1 :]))
        ]

    def sql(
        self, sql: str, bindings: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run your own statements in the agent's file, commit, and return the rows."""
        with self._box.begin() as tx:
            return tx.execute(sql, bindings)

    def sent(self, to: str, model: TypeForm[Body] | None = None) -> list[Body]:
        """
        Return the bodies of all messages that the agent committed for *to*, in order.

        Bodies are read as *model*, else as the ``Msg`` class of their type where
        there is one, else as plain values.
        """
        page = self._box.history(recipient=to, limit=EVERYTHING)
        mine = [past.frame for past in reversed(page.messages) if past.box in {"out", "outbox"}]
        declared: list[Any] = [*self._agent.handlers, *self._agent.sessions]
        home = {handler.call.__module__ for handler in declared}
        return [_body(frame, model or _model(frame.type, home)) for frame in mine]

    def context(
        self,
        body: object = None,
        *,
        sender: str = "tester",
        session: str = DEFAULT_SESSION,
        attempt: int = 1,
    ) -> TrialContext:
        """Return a context to call a handler with: ``pay(Invoice(…), harness.context())``."""
        conversation, name, at = self._box.session(session), self._agent.name, self.clock.now()
        made = trial(body, session=conversation, agent=name, sender=sender, attempt=attempt, at=at)
        self._trials.append(made)
        return made

    def _undo_trials(self) -> None:
        while self._trials:
            self._trials.pop().undo()


def _body(frame: Frame, model: Any) -> Any:
    return decode(frame.data, frame.data_base64, model, frame.datacontenttype)


def _model(type_name: str, home: set[str]) -> type | None:
    """Return the message class of that wire name: the handlers' own module's, else the newest."""
    if type_name in UNDECLARED:
        return None
    found = [model for model in _family(Msg) if model.__message_type__ == type_name]
    return next(
        (model for model in found if model.__module__ in home), found[-1] if found else None
    )


def _family(model: type[Msg]) -> list[type[Msg]]:
    return [each for child in model.__subclasses__() for each in (child, *_family(child))]
