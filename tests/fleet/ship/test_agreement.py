"""Processes that vote agree on one value, however their steps interleave and wherever they die."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Condition, Thread

import pytest

from onceward.fleet.ship import agreement
from onceward.fleet.ship.agreement import agree

SLOT = "slot"


class Turns:
    """Lets one of several threads make one step at a time, in an order that a die chooses."""

    def __init__(self, dice: random.Random, names: list[str]) -> None:
        self._dice, self._changed = dice, Condition()
        self._waiting: set[str] = set()
        self._living = set(names)
        self._next = ""

    def step(self, name: str) -> None:
        """Wait for the turn of *name*."""
        with self._changed:
            self._waiting.add(name)
            self._choose()
            self._changed.wait_for(lambda: self._next == name)
            self._next = ""
            self._waiting.discard(name)

    def end(self, name: str) -> None:
        """Take part no longer."""
        with self._changed:
            self._living.discard(name)
            self._choose()

    def _choose(self) -> None:
        if not self._next and self._waiting == self._living and self._waiting:
            self._next = self._dice.choice(sorted(self._waiting))
            self._changed.notify_all()


class Died(BaseException):
    """The process was killed."""


class Steps:
    """A register in memory, whose every step waits for its turn and may be the last."""

    def __init__(
        self, kept: dict[str, bytes], name: str, turns: Turns, deadly: Callable[[], bool]
    ) -> None:
        self._kept, self._name, self._turns, self._deadly = kept, name, turns, deadly

    def _turn(self) -> None:
        self._turns.step(self._name)
        if self._deadly():
            raise Died

    def put(self, path: str, data: bytes) -> None:
        """Keep an object."""
        self._turn()
        self._kept[path] = data

    def get(self, path: str) -> bytes:
        """Return as many bytes of an object as it had a step before, as object stores do."""
        self._turn()
        length = len(self._kept[path])
        self._turn()
        return self._kept[path][:length]

    def names(self, folder: str) -> list[str]:
        """List a folder."""
        self._turn()
        return [path.removeprefix(f"{folder}/") for path in self._kept]


def _run(seed: int, voters: int, deadly: float) -> tuple[list[str], dict[str, bytes]]:
    """Let voters run against each other; return what each learned that lived."""
    dice = random.Random(seed)
    names = [f"voter-{number}" for number in range(voters)]
    kept, turns, learned = dict[str, bytes](), Turns(dice, names), list[str]()

    def vote(name: str) -> None:
        steps = Steps(kept, name, turns, lambda: dice.random() < deadly)
        try:
            learned.append(agree(steps, SLOT, f"of {name}", pause=lambda _: None, voter=name))
        except (Died, agreement.LogContended):
            pass
        finally:
            turns.end(name)

    threads = [Thread(target=vote, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return learned, kept


def _late(kept: dict[str, bytes]) -> str:
    """Return what a voter learns that comes when all others are gone."""
    turns = Turns(random.Random(0), ["late"])
    return agree(Steps(kept, "late", turns, lambda: False), SLOT, "of late", voter="late")


@pytest.mark.parametrize(("voters", "deadly"), [(2, 0.0), (2, 0.1), (3, 0.0), (3, 0.05)])
def test_all_learn_the_same(voters: int, deadly: float) -> None:
    """Those that learn a value learn the same one, and so does each that comes later."""
    for seed in range(150):
        learned, kept = _run(seed, voters, deadly)
        if learned:
            assert {learned[0]} == {*learned, _late(kept)}, seed


def test_a_value_is_one_that_was_proposed() -> None:
    """A voter alone gets its own value."""
    assert "of late" == _late({})


@pytest.mark.parametrize("mistake", ["ballots", "values"])
def test_a_mistake_in_the_votes_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were higher ballots, or values that were cast, not regarded, two voters would disagree."""
    whole = agreement._round

    def wrong(register: object, slot: str, own: object, value: str) -> object:
        others = agreement._told(register, slot, own)  # type: ignore[arg-type]
        if mistake == "values":
            others = []
        latest = max([own, *others], key=lambda vote: vote.cast)  # type: ignore[attr-defined]
        chosen = latest.value if latest.cast > agreement.NONE else value  # type: ignore[attr-defined]
        own = agreement.replace(own, cast=own.ballot, value=chosen)  # type: ignore[attr-defined, type-var]
        agreement._told(register, slot, own)  # type: ignore[arg-type]
        return own, True

    assert whole is not wrong
    monkeypatch.setattr(agreement, "_round", wrong)

    outcomes = [set(_run(seed, 2, 0.0)[0]) for seed in range(150)]

    assert 2 in {len(learned) for learned in outcomes}


def test_votes_that_are_removed_while_they_are_read_are_passed_over() -> None:
    """A process that slept finds votes of a number that is long past: they end with its drafts."""

    class Vanishing(Steps):
        """Lists a vote that is gone when it is read."""

        def names(self, folder: str) -> list[str]:
            """List the folder, and one name more."""
            return [*super().names(folder), "gone.vote"]

        def get(self, path: str) -> bytes:
            """Return an object that is there."""
            if path not in self._kept:
                raise FileNotFoundError(path)
            return super().get(path)

    steps = Vanishing({}, "late", Turns(random.Random(0), ["late"]), lambda: False)

    assert "of late" == agree(steps, SLOT, "of late", voter="late")
