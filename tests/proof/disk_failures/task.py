"""Tasks: short pieces of two agents' life, run again for every operation that may fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from tests.proof.disk_failures.failing import Fault
from tests.proof.power_cut.pair import Pair, Side, Terms, session_of
from tests.proof.power_cut.scene import Scene

from onceward.errors import OncewardError, OutcomeUnknown

TASKS: Final[dict[str, tuple[str, str]]] = {
    "create": ("", "open-near open-far sign carry"),
    "send": ("open-near open-far sign turn sign", "open-near open-far sign send many undone sign"),
    "carry": ("open-near open-far sign turn sign sign send", "open-near open-far carry carry"),
    "handle": ("open-near open-far sign many send carry", "open-near open-far handle wait handle"),
    "answer": (
        "open-near open-far many sign sign carry handle",
        "open-near open-far answer handle turn",
    ),
    "tidy": (
        "open-near open-far many turn wait turn wait sign",
        "open-near open-far wait tidy-near tidy-far checkpoint-near checkpoint-far",
    ),
    "reopen": (
        "open-near open-far many turn sign",
        "open-near open-far sign reopen-near reopen-far carry",
    ),
    "upgrade": ("older open-near open-far many turn sign", "open-near open-far sign turn"),
}
"""By name: what has happened before, without failures, and what is done while the disk fails."""
Lasts = Literal["once", "while", "sticky"]
"""How long a disk fails: in one operation, until the end of a task, or until all is closed."""
ROUNDS: Final = 4
SIDES: Final = ("near", "far")


class _Undone(Exception):
    """Ends a block whose writes are to be taken back."""


@dataclass(slots=True)
class Task:
    """One task under way: steps that may raise what we document, and nothing else."""

    scene: Scene
    terms: Terms
    after_step: Callable[[], None]
    """Called whenever a step has ended, well or badly."""
    fault: Fault
    unknown: int = 0
    """How many steps ended with an unknown outcome."""

    def run(self, script: str, lasts: Lasts | None) -> list[str]:
        """
        Go through *script*, on a disk that fails once, until the end of it, or for good.

        Return what was raised that should not be, and whether nothing heals that should.
        """
        pair, wrong = Pair(self.scene, self.terms), list[str]()
        for step in script.split():
            wrong += self._do(pair, step)
        if lasts == "while":
            self.fault.kind = ""
            wrong += self._recovered(pair, script)
        if lasts in {"once", "while"} and not wrong:
            wrong += self._healed(pair, script)
        return wrong + self._guarded("close", pair.close)

    def _do(self, pair: Pair, step: str) -> list[str]:
        verb, _, side = step.partition("-")
        if verb == "open":
            return self._guarded(step, lambda: pair.open(_side(side)))
        wrong = [
            words
            for missing in SIDES
            if missing not in pair.boxes
            for words in self._do(pair, f"open-{missing}")
        ]
        if any(missing not in pair.boxes for missing in SIDES):
            return wrong
        return wrong + self._guarded(step, lambda: _STEPS[verb](pair, side))

    def _guarded(self, step: str, call: Callable[[], object]) -> list[str]:
        before = len(self.scene.facts)
        try:
            call()
        except OutcomeUnknown:
            self.unknown += 1
            return []
        except OncewardError:
            self._deny(before)
            return []
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return [f"UNTYPED {step}: {type(error).__name__}: {error}"]
        finally:
            self.after_step()
        return []

    def _deny(self, before: int) -> None:
        """Nothing was written, said the error: what was begun must not be there."""
        begun = [fact.n for fact in self.scene.facts[before:] if fact.kind in {"began", "signing"}]
        ended = {fact.n for fact in self.scene.facts[before:] if fact.kind == "sent"}
        for n in begun:
            if n not in ended:
                self.scene.note("undone", n)

    def _recovered(self, pair: Pair, script: str) -> list[str]:
        """Return what does not work at once on a disk that works again, without any write."""
        wrong = list[str]()
        for box in pair.boxes.values():
            for step in (box.run_until_idle, box.file.stats, box.file.health, box.file.check):
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - that is what is looked for
                    wrong.append(f"CLOSED after {script}: {step.__name__}: {error!r}")
        return wrong

    def _healed(self, pair: Pair, script: str) -> list[str]:
        """Return whether a process that met one failure works again, without being restarted."""
        for _ in range(ROUNDS):
            self._do(pair, "turn")
            pair.clock.advance(61)
        before = len(self.scene.known("sent"))
        for _ in range(2):  # the one failure may not have come before now
            self._do(pair, "sign")
        return (
            []
            if len(self.scene.known("sent")) > before
            else [f"SICK after {script}: one failure, and sending never works again"]
        )


def _undone(pair: Pair, _: str) -> None:
    with suppress(_Undone):
        pair.sign(pair.next_number(), undo=_Undone)


def _many(pair: Pair, _: str) -> None:
    first = pair.next_number()
    pair.send_many(
        [
            first,
            *(
                n
                for n in (pair.next_number() for _ in range(5))
                if session_of(n) == session_of(first)
            ),
        ]
    )


def _side(name: str) -> Side:
    return "near" if name == "near" else "far"


_STEPS: Final[dict[str, Callable[[Pair, str], object]]] = {
    "sign": lambda pair, _: pair.sign(pair.next_number()),
    "send": lambda pair, _: pair.send(pair.next_number()),
    "many": _many,
    "undone": _undone,
    "carry": lambda pair, _: pair.carry(),
    "answer": lambda pair, _: pair.near.run_until_idle(),
    "handle": lambda pair, _: pair.far.run_until_idle(),
    "turn": lambda pair, _: pair.turn(),
    "wait": lambda pair, _: pair.clock.advance(31),
    "tidy": lambda pair, side: pair.boxes[_side(side)].file.run_maintenance(),
    "checkpoint": lambda pair, side: pair.boxes[_side(side)]._db.checkpoint(truncate=True),
    "reopen": lambda pair, side: pair.reopen(_side(side)),
}
