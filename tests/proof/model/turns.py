"""
A model of groups that take turns: lanes wait for their group, and groups go round.

Each step is one transaction of the recipient's file, as ``handler_limits.turns`` and its gate make
it. A process may die between any two of them; then its leases run out, and what it had in memory is
gone. One rank, one message of a group for each claim, a limit of calls at once and a rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeVar

Place = Literal["empty", "ready", "parked", "leased", "later"]
T = TypeVar("T")
Step = tuple[str, "Turns"]


class Rules(NamedTuple):
    """What is in the file, and which rule is left out."""

    groups: tuple[int, ...] = (1, 1, 2)
    """The group of each lane."""
    messages: int = 4
    """How many arrive in all, at most two in a lane."""
    at_once: int = 1
    """Calls of a group that may run at once."""
    rate: bool = False
    """Whether a group's next call has to wait for its rate."""
    batch: int = 2
    """Lanes that a claim leases."""
    broken: str = ""


class Turns(NamedTuple):
    """The lanes and turns of one file, and what a process remembers of them."""

    places: tuple[Place, ...] = ()
    waiting: tuple[int, ...] = ()
    """How many messages each lane holds, its leased one included."""
    arrived: int = 0
    turns: tuple[int, ...] = ()
    """The groups that have a turn, in its order."""
    resting: frozenset[int] = frozenset()
    spent: frozenset[int] = frozenset()
    """Groups whose next call must wait for their rate."""
    late: tuple[int, ...] = ()
    """Groups that a process is about to give a turn, in its memory: only by a planted mistake."""
    passed: frozenset[tuple[int, int]] = frozenset()
    """Pairs of a group that waits and may run, and one that was served since."""
    wrong: str = ""


def start(rules: Rules) -> Turns:
    """Return a file without messages."""
    return Turns(tuple("empty" for _ in rules.groups), tuple(0 for _ in rules.groups))


def steps(state: Turns, rules: Rules) -> Iterator[Step]:
    """Yield what may happen next."""
    for lane, place in enumerate(state.places):
        if state.arrived < rules.messages and state.waiting[lane] < 2:
            yield f"arrive {lane}", _arrived(state, lane)
        if place == "leased":
            yield f"end {lane}", _ended(state, lane)
            yield f"fail {lane}", _placed(state, lane, "later")
            yield f"die {lane}", _placed(state, lane, "ready")._replace(late=())
        if place == "later":
            yield f"retry {lane}", _placed(state, lane, "ready")
    if state.spent:
        yield "refill", state._replace(spent=frozenset())
    if state.late:
        yield "forget", state._replace(late=())
    claimed = _claimed(state, rules)
    if claimed != state:
        yield "claim", claimed


def wrong(state: Turns, rules: Rules) -> str:
    """Return what is wrong in a state; "" if nothing is."""
    if state.wrong:
        return state.wrong
    for group in set(rules.groups):
        lanes = _lanes(state, rules, group, "leased")
        if len(lanes) > rules.at_once:
            return "more calls of a group run than may"
        parked = _lanes(state, rules, group, "parked")
        if parked and group not in (*state.turns, *state.late):
            return "a lane waits for a group that has no turn"
    return ""


def finished(state: Turns) -> bool:
    """Return whether no message is left."""
    return not any(state.waiting)


def _arrived(state: Turns, lane: int) -> Turns:
    waiting = _with(state.waiting, lane, state.waiting[lane] + 1)
    found = state._replace(waiting=waiting, arrived=state.arrived + 1)
    return _placed(found, lane, "ready") if state.places[lane] == "empty" else found


def _ended(state: Turns, lane: int) -> Turns:
    """The message is marked, and its lane's next head is ready: it may be of any group."""
    left = state.waiting[lane] - 1
    found = state._replace(waiting=_with(state.waiting, lane, left))
    return _placed(found, lane, "ready" if left else "empty")


def _claimed(state: Turns, rules: Rules) -> Turns:
    """GroupGate: park the ready lanes, wake rests, lease the first lane of groups by turn."""
    state = _parked(state, rules)
    if rules.broken != "asleep":
        state = state._replace(resting=state.resting & state.spent)
    left = rules.batch
    for group in state.turns:
        lanes = _lanes(state, rules, group, "parked")
        if not lanes:
            state = _turned(state, group, more=False, rules=rules)
        elif left and _may_run(state, group, rules):
            if group in state.spent:
                state = state._replace(resting=state.resting | {group})
                continue
            left -= 1
            state = _served(_placed(state, lanes[0], "leased"), group, rules)
            more = len(lanes) > 1 and rules.broken != "emptied"
            state = _turned(state, group, more=more, rules=rules)
    return state


def _parked(state: Turns, rules: Rules) -> Turns:
    """lanes.park and turns.add, in one transaction; a mistake gives the turns in the next one."""
    turns = state.turns + tuple(each for each in state.late if each not in state.turns)
    state = state._replace(turns=turns, late=())
    for lane, place in enumerate(state.places):
        if place != "ready":
            continue
        group = rules.groups[lane]
        state = _placed(state, lane, "parked")
        if group not in (*state.turns, *state.late):
            late = rules.broken == "late"
            state = (
                state._replace(late=(*state.late, group))
                if late
                else state._replace(turns=(*state.turns, group))
            )
    return state


def _may_run(state: Turns, group: int, rules: Rules) -> bool:
    """turns.running counts the leases of all processes; a mistake those of this claim only."""
    runs = 0 if rules.broken == "uncounted" else len(_lanes(state, rules, group, "leased"))
    return group not in state.resting and runs < rules.at_once


def _served(state: Turns, group: int, rules: Rules) -> Turns:
    """Note which groups were passed: one that waits and may run lets each other one by once."""
    spent = state.spent | {group} if rules.rate else state.spent
    passed = {pair for pair in state.passed if pair[0] != group}
    found = state._replace(spent=spent)
    for other in set(rules.groups) - {group}:
        ready = _lanes(state, rules, other, "parked") and _may_run(state, other, rules)
        if not ready or other in state.spent:
            passed = {pair for pair in passed if pair[0] != other}
        elif (other, group) in passed:
            return found._replace(wrong="a group that could run was passed twice by another")
        else:
            passed.add((other, group))
    return found._replace(passed=frozenset(passed))


def _turned(state: Turns, group: int, *, more: bool, rules: Rules) -> Turns:
    """turns.end: the turn of an empty group is deleted, another one comes after all others."""
    if more and rules.broken == "first":
        return state
    rest = tuple(each for each in state.turns if each != group)
    return state._replace(turns=(*rest, group) if more else rest)


def _lanes(state: Turns, rules: Rules, group: int, place: Place) -> list[int]:
    """Return the lanes of a group that are in a place."""
    places = zip(rules.groups, state.places, strict=True)
    return [lane for lane, found in enumerate(places) if found == (group, place)]


def _placed(state: Turns, lane: int, place: Place) -> Turns:
    return state._replace(places=_with(state.places, lane, place))


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])
