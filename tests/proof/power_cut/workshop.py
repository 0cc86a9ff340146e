"""A program of one agent whose jobs have steps, waits and output, and go on after each cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.proof.power_cut import planted
from tests.proof.power_cut.bench import LIMIT, SESSIONS, Bench, approvals_of
from tests.proof.power_cut.scene import Scene

from onceward.errors import OncewardError
from onceward.message.parcel import Durability

ACTS: Final[dict[str, int]] = {
    "order": 6,
    "approve": 5,
    "cancel": 1,
    "work": 14,
    "read": 4,
    "wait": 4,
    "checkpoint": 2,
    "maintain": 2,
    "reopen": 2,
}
"""What may happen next, and how often it does."""
ROUNDS: Final = 30
ENDED: Final = "SELECT n, thought, first, second FROM ended ORDER BY n"
ROWS: Final = "SELECT n, what, count(*) FROM made GROUP BY n, what"
LEFT: Final = """
SELECT 'step ' || name FROM _onceward_steps
UNION ALL SELECT 'output of ' || name FROM _onceward_output_batches
UNION ALL SELECT 'awaited message ' || type FROM _onceward_awaited_messages
"""
"""What is to be gone once its messages are forgotten."""
OPEN: Final = """
SELECT (SELECT count(*) FROM _onceward_outbox WHERE state IN ('pending', 'sent'))
  + (SELECT count(*) FROM _onceward_inbox WHERE state = 'pending')
"""


@dataclass(frozen=True, slots=True)
class Workshop:
    """
    An agent that orders jobs from itself: think, put words out, make rows, sleep, wait, end.

    Some are cancelled, while they wait or while their step runs.

    Each function that is a step tells the world outside that it is called, so that a call
    after its result was acted upon is seen.
    """

    seed: int = 1
    durability: Durability = "safe"
    mutants: tuple[str, ...] = ()
    """Names of the bugs that are planted; see ``planted``."""
    engines: bool = True
    """Whether its engines work as started ones do."""
    steps: int = 50
    """How much happens in a first life."""

    def planted(self) -> AbstractContextManager[object]:
        """Return the block in which the bugs are at work."""
        return planted.all_of(self.mutants)

    def perform(self, scene: Scene) -> None:
        """Live through a day."""
        rng = Random(self.seed)
        with self._bench(scene) as bench:
            for act in rng.choices(list(ACTS), list(ACTS.values()), k=self.steps):
                getattr(bench, act)()
                bench.observe()

    def judge(self, scene: Scene) -> list[str]:
        """Start again, look, order more, let all jobs end, and look again."""
        try:
            with self._bench(scene) as bench:
                bench.forgotten()
                bench.observe()
                bench.order()
                _drain(bench)
                bench.forgotten()
                bench.read()
                _judge_rows(bench)
                if scene.vfs is None:  # no life follows, which would begin before its end
                    _judge_rest(bench)
                return bench.wrong
        except OncewardError as error:
            return [f"BROKE {type(error).__name__}: {error}"]

    @contextmanager
    def _bench(self, scene: Scene) -> Iterator[Bench]:
        bench = Bench(scene, durability=self.durability, engines=self.engines, seed=self.seed)
        try:
            bench.open()
            yield bench
        finally:
            bench.close()


def _drain(bench: Bench) -> None:
    for _ in range(ROUNDS):
        while bench.approve():
            pass
        bench.work()
        if not bench.box._db.read(OPEN)[0][0]:
            return
        bench.clock.advance(LIMIT)
    bench.wrong.append("STUCK: jobs still wait after they had time enough")


def _judge_rows(bench: Bench) -> None:
    """Judge that each job has each of its effects once, with the messages meant for it."""
    given_up = bench.cancelled()
    jobs = bench.jobs().keys() - given_up
    made = {(n, what): count for n, what, count in bench.box._db.read(ROWS)}
    owed = {(n, what) for n in jobs for what in ("built", "told", "last")}
    bench.wrong += [f"LOST_EFFECT {n}: {what} is missing" for n, what in sorted(owed - set(made))]
    partial = {(n, what) for n in given_up for what in ("built", "told")}
    phantoms = sorted(set(made) - owed - partial)
    bench.wrong += [f"PHANTOM {n}: {what} of no job" for n, what in phantoms]
    bench.wrong += [
        f"DUP_EFFECT {n}: {what} {count} times"
        for (n, what), count in sorted(made.items())
        if count > 1
    ]
    ended = bench.box._db.read(ENDED)
    if [n for n, *_ in ended] != sorted(jobs):
        bench.wrong.append("ENDS: not each job has ended once")
    for n, thought, *_ in ended:
        if thought not in bench.scene.known(f"drawn {n}"):
            bench.wrong.append(f"UNDONE {n}: its function has never returned {thought}")
    _judge_waits(bench, {n: (first, second) for n, _, first, second in ended}, given_up)


def _judge_waits(bench: Bench, taken: dict[int, tuple[int, int]], given_up: set[int]) -> None:
    """Judge that no two waits took the same message; of a cancelled job the next one may."""
    by_session: dict[int, int] = {}
    for n, (first, second) in sorted(taken.items()):
        before = by_session.get(n % SESSIONS, -1)
        by_session[n % SESSIONS] = second
        left = any(other < n and other % SESSIONS == n % SESSIONS for other in given_up)
        if not before < first < second or not (left or (first, second) == approvals_of(n)):
            bench.wrong.append(f"TAKEN {n}: its waits took {first} and {second}")


def _judge_rest(bench: Bench) -> None:
    """Judge that steps and output end with the records of their messages."""
    bench.forget()
    bench.wrong += [f"LEFT {row}" for (row,) in bench.box._db.read(LEFT)]
