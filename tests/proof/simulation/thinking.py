"""Handlers of a simulated world that take steps, wait and put out chunks, and who judges them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from tests.proof.simulation.process import Died, Process

from onceward import step
from onceward.api.contexts import Context
from onceward.errors import AnswerTimeout, OncewardError

if TYPE_CHECKING:
    from tests.proof.simulation.history import File
    from tests.proof.simulation.world import Simulation

Key = tuple[str, str, str]
"""Agent, sender and id of a message."""
GO: Final = "go"
"""Type of the messages that are waited for."""
CHUNKS: Final = 4
DIES, FAILS, POINTS = 0.08, 0.2, 12
"""How often a process dies and a function fails, and the points at which it dies then."""
LATE, LEASE, DEEP = 0.3, 6.0, 2
"""How often a process is overtaken, and how long that takes; not inside of many others."""
PAUSE: Final = 2.0
PATIENCE: Final = 20.0
TABLES: Final = """
CREATE TABLE simulated_steps (sender TEXT NOT NULL, id TEXT NOT NULL);
CREATE TABLE simulated_waits (go TEXT NOT NULL);
CREATE TABLE simulated_ends (sender TEXT NOT NULL, id TEXT NOT NULL, drawn INTEGER)
"""
STEPPED: Final = "INSERT INTO simulated_steps (sender, id) VALUES (?, ?)"
WAITED: Final = "INSERT INTO simulated_waits (go) VALUES (?)"
ENDED: Final = "INSERT INTO simulated_ends (sender, id, drawn) VALUES (?, ?, ?)"
TWICE: Final = """
SELECT 'the rows of the step of ' || id || ' were written twice'
  FROM simulated_steps GROUP BY sender, id HAVING count(*) > 1
UNION ALL
SELECT 'two waits took message ' || go FROM simulated_waits GROUP BY go HAVING count(*) > 1
UNION ALL
SELECT id || ' has ended without the rows of its step' FROM simulated_ends AS e
 WHERE NOT EXISTS (SELECT 1 FROM simulated_steps AS s WHERE s.sender = e.sender AND s.id = e.id)
"""
HELD: Final = """
SELECT 1 FROM _onceward_lanes WHERE lane_id = ? AND token = ? AND owner = ?
"""
DRAWN: Final = "SELECT sender, id, drawn FROM simulated_ends"
OUTPUT: Final = """
SELECT first, last, kinds, chunks FROM _onceward_output_batches
 WHERE sender = ? AND message_id = ? ORDER BY first
"""


class Thinking:
    """
    What handlers that take steps do, and what is known outside of it.

    A function draws a number and puts chunks out while others act; a step writes a row and
    sends a message to its agent; then the handler sleeps, waits for such a message, and ends.
    """

    def __init__(self) -> None:
        self.world: Simulation
        self._numbers = count(1)
        self._drawn: dict[Key, set[int]] = {}
        """What the function of a message has returned, by all its calls."""
        self._acted: dict[Key, int | None] = {}
        """The results that handlers have acted upon."""

    # -- the handler ----------------------------------------------------------------------------

    def work(self, ctx: Context) -> None:
        """Handle a message in steps."""
        process, message = self.world.busy[-1], ctx.message
        key = (process.agent, message.sender, message.id)
        drawn = self._think(process, ctx, key)

        def write() -> None:
            step.tx.execute(STEPPED, (message.sender, message.id))
            step.tx.send(process.agent, {"of": f"{message.sender} {message.id}"}, type=GO)
            self._mishap(process)

        ctx.step(write, tx=True)
        ctx.sleep(PAUSE)
        self._mishap(process)
        try:
            body = ctx._steps.wait(GO, PATIENCE)
        except AnswerTimeout:
            body = None
            self.world.history.reached["wait ended by AnswerTimeout"] += 1
        if body is not None:
            ctx.tx.execute(WAITED, (body["of"],))
            self.world.history.reached["wait ended by a message"] += 1
        self._mishap(process)
        ctx.tx.execute(ENDED, (message.sender, message.id, drawn))

    def _think(self, process: Process, ctx: Context, key: Key) -> int | None:
        """Call the function that puts chunks out, and act upon its result."""
        called: list[int] = []

        def think() -> int | None:
            self._begin(process, key)
            stream = ctx.stream()
            for chunk in range(CHUNKS):
                self._put_out(process, ctx, partial(stream.append, chunk))
                self._mishap(process)
                self.world.meanwhile()
                if chunk % 2:
                    self._put_out(process, ctx, stream.flush)
            self._overtake(process)
            if self._happens(FAILS):
                raise RuntimeError(key[2])
            called.append(next(self._numbers))
            self._drawn.setdefault(key, set()).add(called[-1])
            return called[-1]

        found = ctx.step(think, attempts=2)
        if called:
            self._prove_lease(process, ctx, f"the step of {key[2]}")
        if process not in self.world.clones:
            self._act(key, found)
        return found

    def _happens(self, rate: float) -> bool:
        """Draw an accident; there are none once the world settles."""
        return bool(self.world.weather.blows) and self.world.luck.random() < rate

    def _mishap(self, process: Process) -> None:
        """Let a process die at one of its next points, now and then."""
        if self._happens(DIES):
            process.kill_in(self.world.luck.randrange(POINTS))

    def _overtake(self, process: Process) -> None:
        """Let another process of the agent take what this one handles, now and then."""
        rival = self.world.awake(process.agent)
        if rival is None or len(self.world.busy) > DEEP or not self._happens(LATE):
            return
        self.world.pass_time(LEASE)
        for worker in rival.workers:
            with suppress(OncewardError, Died):
                if not rival.over:
                    self.world.enter(rival, partial(rival.handle, worker))

    def _begin(self, process: Process, key: Key) -> None:
        """Judge a call of the function: nothing has acted upon its result before."""
        self.world.history.reached["step called"] += 1
        if key in self._acted and not self._has_another_past(process):
            self.world.history.wrong.append(
                f"{process.agent}: the step of {key[2]} is called after its result was acted upon"
            )

    def _act(self, key: Key, found: int | None) -> None:
        agent, _, message_id = key
        known = self._acted.setdefault(key, found)
        if found != known and agent not in self.world.history.doubled:
            self.world.history.wrong.append(
                f"{agent}: the step of {message_id} returned {known}, and {found} later"
            )
        self.world.history.reached["step acted upon"] += 1

    def _has_another_past(self, process: Process) -> bool:
        return process in self.world.clones or process.agent in self.world.history.doubled

    def _put_out(self, process: Process, ctx: Context, act: Callable[[], None]) -> None:
        """Append or commit chunks; judge that the lease was held, if any were stored."""
        file = self.world.history.files[process.agent]
        of = (ctx.message.sender, ctx.message.id)
        before = file.ask(OUTPUT, of)
        act()
        if file.ask(OUTPUT, of) != before:
            self._prove_lease(process, ctx, f"chunks of {ctx.message.id}")

    def _prove_lease(self, process: Process, ctx: Context, what: str) -> None:
        """Judge what a worker has just stored: it still had its message."""
        lane, token, owner = ctx._steps._home.lease[:3]  # type: ignore[attr-defined]
        if process not in self.world.clones:
            file = self.world.history.files[process.agent]
            if not file.ask(HELD, (lane, token, owner)):
                self.world.history.wrong.append(f"{process.agent}: a late worker has stored {what}")

    # -- the end --------------------------------------------------------------------------------

    def judge(self) -> None:
        """Judge the rows and the output of all messages that have ended."""
        for agent, file in self.world.history.files.items():
            self.world.history.wrong += [f"{agent}: {row}" for (row,) in file.ask(TWICE)]
            for sender, message_id, drawn in file.ask(DRAWN):
                if drawn not in self._drawn.get((agent, sender, message_id), ()):
                    self.world.history.wrong.append(
                        f"{agent}: the step of {message_id} has never returned {drawn}"
                    )
                if self.world.history.remembers:
                    self._judge_output(file, sender, message_id)

    def _judge_output(self, file: File, sender: str, message_id: str) -> None:
        kept: list[Any] = []
        end = 0
        for first, last, kinds, chunks in file.ask(OUTPUT, (sender, message_id)):
            if first <= end:
                self.world.history.wrong.append(
                    f"{file.agent}: output of {message_id} lies over other"
                )
            end = last
            for kind, chunk in zip(kinds, json.loads(chunks), strict=True):
                kept = [] if kind == "r" else [*kept, chunk]
        if kept != list(range(CHUNKS)):
            self.world.history.wrong.append(f"{file.agent}: the output of {message_id} is {kept}")
        self.world.history.reached["output judged"] += 1
