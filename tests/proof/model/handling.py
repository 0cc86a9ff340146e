"""
Steps and waits of the recipient's handlers, as transitions of the model.

A handler calls one step, which writes; the handler of the first message then waits for the
second one. A process dies or loses its lease at any point. What it had not committed is gone,
or comes late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.proof.model.values import CANCELLED, DEAD, NOBODY, Receiver, Rules, State, Work

BEGUN, CALLING, RETURNED, PAST, LOOKED = "begun", "calling", "returned", "past", "looked"
"""Where a handler is: begun, in its step, after its function, past its step, in its wait."""
WAITS: Final = 0
"""The message whose handler waits."""
AWAITED: Final = 1
"""The message that it waits for, which reaches no handler."""
Step = tuple[str, State]


def steps(state: State, rules: Rules) -> Iterator[Step]:
    """Yield what the handlers of the recipient may do next, before their effects."""
    receiver = state.receiver
    work, i = receiver.work, receiver.running
    if i != NOBODY:
        yield from _at[work.at](state, rules)
        yield "die", _with(state, receiver._replace(running=NOBODY, work=work._replace(at="")))
        if work.at in (CALLING, RETURNED) and work.late == NOBODY:
            yield "expire", _with(state, fenced(receiver)._replace(running=NOBODY))
    elif receiver.queue and not work.waiting:
        claimed = receiver._replace(running=receiver.queue[0], work=work._replace(at=BEGUN))
        yield "claim", _with(state, claimed)
    if work.late != NOBODY:
        yield "store_late", _stored_late(state, rules)
    for ended in work.results - set(receiver.queue):
        yield "forget", _working(state, work._replace(results=work.results - {ended}))
    if work.waiting and state.sender.states[AWAITED:] in ((DEAD,), (CANCELLED,)):
        yield "time_out", _working(state, work._replace(waiting=False, taken=True))


def may_end(receiver: Receiver, rules: Rules) -> bool:
    """Return whether the running handler has nothing left but its effect."""
    waits = rules.waits and receiver.running == WAITS and not receiver.work.taken
    return receiver.running != NOBODY and receiver.work.at == PAST and not waits


def ended(receiver: Receiver, i: int) -> Receiver:
    """Return the file once a message has ended: nothing of its step is asked about again."""
    work, gone = receiver.work, frozenset({i})
    return receiver._replace(
        work=work._replace(
            rows=work.rows - gone,
            returned=work.returned - gone,
            acted=work.acted - gone,
            waiting=work.waiting and i != WAITS,
        )
    )


def fenced(receiver: Receiver) -> Receiver:
    """Canceller.end, and a lease that ran out: a handler that is in its step goes on."""
    work = receiver.work
    late = receiver.running if work.at in (CALLING, RETURNED) else work.late
    return receiver._replace(work=work._replace(at="", late=late))


def kept(receiver: Receiver) -> Receiver:
    """awaited.keep: the awaited message is kept once, and wakes the lane in the same commit."""
    return receiver._replace(
        marks=receiver.marks | {AWAITED},
        effects=receiver.effects | {AWAITED},
        work=receiver.work._replace(kept=True, waiting=False),
    )


def beside(rules: Rules) -> frozenset[int]:
    """Return the messages that have no place in the order of handlers."""
    return frozenset({AWAITED} if rules.waits else ())


def _begun(state: State, rules: Rules) -> Iterator[Step]:
    """MessageSteps._begin: the stored result, or the function."""
    work, i = state.receiver.work, state.receiver.running
    if i in work.results:
        never = i not in work.returned
        found = _working(state, work._replace(at=PAST, acted=work.acted | {i}))
        yield "found", _judged(found, never, "a step has a result that its function never gave")
        return
    early = frozenset({i} if rules.broken == "early" else ())
    called = _working(state, work._replace(at=CALLING, results=work.results | early))
    yield (
        "call",
        _judged(called, i in work.acted, "a function was called after its result was used"),
    )


def _calling(state: State, _: Rules) -> Iterator[Step]:
    work = state.receiver.work
    returned = work.returned | {state.receiver.running}
    yield "return", _working(state, work._replace(at=RETURNED, returned=returned))


def _returned(state: State, _: Rules) -> Iterator[Step]:
    """stored.store: the result, and what the step wrote, in one commit under the lease."""
    stored, i = _stored(state, state.receiver.running), state.receiver.running
    work = stored.receiver.work
    yield "store", _working(stored, work._replace(at=PAST, acted=work.acted | {i}))


def _past(state: State, rules: Rules) -> Iterator[Step]:
    work, i = state.receiver.work, state.receiver.running
    if rules.broken == "deleted" and i in work.results:
        yield "delete", _working(state, work._replace(results=work.results - {i}))
    if not rules.waits or i != WAITS or work.taken:
        return
    if not work.kept:
        yield from _unmet(state, rules)
    elif rules.broken == "taken":
        yield "take", _working(state, work._replace(kept=False, at=LOOKED))
    else:
        yield "take", _working(state, work._replace(kept=False, taken=True))


def _unmet(state: State, rules: Rules) -> Iterator[Step]:
    """MessageSteps._look and suspend: the call ends, unless the message is there by then."""
    if rules.broken == "looked":
        yield "look", _working(state, state.receiver.work._replace(at=LOOKED))
    else:
        yield "suspend", _suspended(state)


def _looked(state: State, rules: Rules) -> Iterator[Step]:
    """Go on with a mistake: a look, or the message that was taken, is in a commit before."""
    if rules.broken == "looked":
        yield "suspend", _suspended(state)
    else:
        yield "note", _working(state, state.receiver.work._replace(at=PAST, taken=True))


def _suspended(state: State) -> State:
    work = state.receiver.work._replace(at="", waiting=True)
    return _with(state, state.receiver._replace(running=NOBODY, work=work))


def _stored_late(state: State, rules: Rules) -> State:
    """stored.store of a worker whose lease is over: the statement that stores finds no lease."""
    work = state.receiver.work
    late, after = work.late, _working(state, work._replace(late=NOBODY))
    return _stored(after, late) if rules.broken == "unfenced_step" else after


def _stored(state: State, i: int) -> State:
    work = state.receiver.work
    after = _working(
        state,
        work._replace(
            results=work.results | {i}, rows=work.rows | {i}, returned=work.returned | {i}
        ),
    )
    twice = _judged(after, i in work.rows, "a step has written twice")
    gone = i not in state.receiver.queue
    return _judged(twice, gone, "a step was stored under a message that had ended")


def _judged(state: State, broken: bool, wrong: str) -> State:
    return state._replace(wrong=wrong) if broken else state


def _working(state: State, work: Work) -> State:
    return _with(state, state.receiver._replace(work=work))


def _with(state: State, receiver: Receiver) -> State:
    return state._replace(receiver=receiver)


_at: Final = {
    BEGUN: _begun,
    CALLING: _calling,
    RETURNED: _returned,
    PAST: _past,
    LOOKED: _looked,
}
