"""
The project's own program.

Two agents that live through everything a file goes through, and the users of both.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from random import Random
from time import monotonic, sleep
from typing import Final
from unittest.mock import patch

from tests.proof.power_cut import planted, verdict
from tests.proof.power_cut.pair import LivePair, Pair, Side, Terms, session_of
from tests.proof.power_cut.scene import Scene

from onceward.api.postbox import Postbox
from onceward.errors import OncewardError

STEPS: Final[dict[str, int]] = {
    "send": 10,
    "block": 14,
    "many": 4,
    "undone": 3,
    "carry": 20,
    "handle": 20,
    "remember": 6,
    "regret": 2,
    "take": 6,
    "wait": 6,
    "checkpoint": 5,
    "maintain": 4,
    "reopen": 3,
}
"""What may happen next, and how often it does."""


PATIENCE: Final = 20.0
"""Seconds in which live engines do all that waits."""


class _Undone(Exception):
    """Ends a block whose writes are to be taken back."""


@dataclass(frozen=True, slots=True)
class Town(Terms):
    """
    Two agents, *near* and *far*: what one promises the other does once, and answers.

    In the course of a run both files are created, migrated, checkpointed, pruned, closed and
    opened, while blocks commit or are taken back, handlers fail, answer and refuse.
    """

    steps: int = 60
    """How much happens in a first life."""
    brisk: bool = False
    """Whether messages also arrive one by one, so that most are handled as they arrive."""

    def planted(self) -> AbstractContextManager[object]:
        """Return the block in which the bugs are at work."""
        return planted.all_of(self.mutants)

    def perform(self, scene: Scene) -> None:
        """Live through a day."""
        rng = Random(self.seed)
        with ExitStack() as stack:
            older = stack.enter_context(ExitStack())
            older.enter_context(planted.older_schema())
            pair = stack.enter_context(Pair(scene, self))
            day = _Day(pair, rng)
            for number, step in enumerate(
                rng.choices(list(STEPS), list(STEPS.values()), k=self.steps)
            ):
                if number == self.steps // 2:
                    older.close()
                    pair.reopen("near")
                    pair.reopen("far")
                day.step(step)
                if self.brisk:
                    day.step("one")
            if self.brisk and pair.handled_on_arrival < self.steps // 20:
                msg = f"only {pair.handled_on_arrival} messages were handled as they arrived"
                raise AssertionError(msg)
            for _ in range(3):
                pair.clock.advance(61)
                pair.turn()

    def judge(self, scene: Scene) -> list[str]:
        """Start again, look, send more, drain, and look again."""
        try:
            with Pair(scene, self) as pair:
                return verdict.judge(pair, scene)
        except OncewardError as error:
            return [f"BROKE {type(error).__name__}: {error}"]


@dataclass(frozen=True, slots=True)
class LiveTown(Town):
    """
    The two agents with engines that run on threads of their own, as in a program.

    No run repeats another one exactly: threads decide the order. What was told is known from the
    operation on that was the last one by then.
    """

    def perform(self, scene: Scene) -> None:
        """Promise, and let the engines do the rest, until nothing waits."""
        rng = Random(self.seed)
        with (
            patch("onceward.file.file_checks.is_dead", lambda _: False),  # names are made up
            LivePair(scene, self) as pair,
        ):
            day = _Day(pair, rng)
            for step in rng.choices(["send", "block", "many", "remember"], k=self.steps):
                day.step(step)
                sleep(rng.choice((0.0, 0.0, 0.002)))
            until = monotonic() + PATIENCE
            while monotonic() < until and any(map(verdict.waits, pair.boxes.values())):
                sleep(0.005)


class _Day:
    """One thing after the other."""

    def __init__(self, pair: Pair, rng: Random) -> None:
        self._pair, self._rng = pair, rng

    def step(self, name: str) -> None:
        """Do what is called so."""
        getattr(self, f"_{name}")()

    def _send(self) -> None:
        self._pair.send(self._pair.next_number())

    def _one(self) -> None:
        for _ in range(2):
            self._pair.run("far")
            self._pair.run("near")
            self._send()
            self._carry()

    def _block(self) -> None:
        self._pair.sign(self._pair.next_number())

    def _many(self) -> None:
        first = self._pair.next_number()
        more = [
            n
            for n in (self._pair.next_number() for _ in range(5))
            if session_of(n) == session_of(first)
        ]
        self._pair.send_many([first, *more])

    def _undone(self) -> None:
        with suppress(_Undone):
            self._pair.sign(self._pair.next_number(), undo=_Undone)

    def _carry(self) -> None:
        self._pair.carry()

    def _handle(self) -> None:
        self._pair.clock.advance(1.5)
        self._pair.run("far")

    def _remember(self) -> None:
        self._pair.remember(self._pair.next_number())

    def _regret(self) -> None:
        with suppress(_Undone):
            self._pair.remember(self._pair.next_number(), undo=_Undone)

    def _take(self) -> None:
        self._pair.clock.advance(1.5)
        self._pair.take()

    def _wait(self) -> None:
        self._pair.clock.advance(self._rng.choice((0.5, 2, 31)))

    def _checkpoint(self) -> None:
        self._box()._db.checkpoint(truncate=self._rng.random() < 0.5)

    def _maintain(self) -> None:
        self._box().file.run_maintenance()

    def _reopen(self) -> None:
        self._pair.reopen(self._side())

    def _side(self) -> Side:
        return self._rng.choice(("near", "far"))

    def _box(self) -> Postbox:
        return self._pair.boxes[self._side()]
