"""
The protocol between one sender and one recipient, small enough to be searched to the last state.

Every transition stands for one commit of the real code, and names the function
that makes it. A crash of either side loses what was not committed and nothing
else, so crashes are the interleavings in which a transition does not happen.

What makes it small keeps it honest, for each step only allows more than the
real files do: a row is pruned as soon as it may be, so that marks alone remember;
any mark may be pruned; asking again and replaying have no budget. Only the
identity of epochs matters, and the distance of numbers that are not the first:
both are renamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

NOBODY: Final = -1
PENDING, SENT, ACKED, DEAD = "pending", "sent", "acked", "dead"
"""States of a message at its sender."""


class Parcel(NamedTuple):
    """What is pushed: an epoch, a number in it, the last message of the parcel before, and (message, pushed before?)."""

    epoch: int
    number: int
    previous: int
    frames: tuple[tuple[int, bool], ...]


class Sender(NamedTuple):
    """The sender's file."""

    states: tuple[str, ...] = ()
    again: tuple[bool, ...] = ()
    """Whether a message may have been pushed before."""
    spoilt: frozenset[int] = frozenset()
    """Messages that were dead once: their place in the lane is promised no more."""
    epoch: int = 0
    number: int = 0
    last: int = NOBODY
    flight: tuple[int, ...] = ()
    """The parcel that is stored and not settled."""


class Receiver(NamedTuple):
    """The recipient's file."""

    epoch: int = NOBODY
    number: int = 0
    last: int = NOBODY
    queue: tuple[int, ...] = ()
    """Messages that wait for their handler, oldest first."""
    marks: frozenset[int] = frozenset()
    horizon: int = NOBODY
    effects: frozenset[int] = frozenset()
    """Messages that took effect: what an observer sees."""


class State(NamedTuple):
    """Both files, and one old parcel that is still under way between them."""

    sender: Sender = Sender()
    receiver: Receiver = Receiver()
    late: Parcel | None = None
    wrong: str = ""
    """What should never have happened."""


class Rules(NamedTuple):
    """How large the model is, and which of its rules is left out on purpose."""

    messages: int = 3
    frames: int = 2
    """Most messages of one parcel."""
    replays: bool = False
    """Whether dead letters are put back on their way; only with one message, for in the files they take a new place then."""
    late: bool = True
    """Whether a copy of a push may arrive at any later time."""
    broken: str = ""
    """Name of the rule that is left out, to show that the search would notice."""


Step = tuple[str, State]


def steps(state: State, rules: Rules) -> Iterator[Step]:
    """Yield every transition from a state with its name; arguments follow after a blank."""
    for name, after in _all(state, rules):
        yield name, _renamed(after)


def _all(state: State, rules: Rules) -> Iterator[Step]:
    sender, receiver, late, _ = state
    if len(sender.states) < rules.messages:
        yield "send", state._replace(sender=_sent(sender))
    if sender.flight:
        yield from _pushes(state, rules)
        yield "refused", state._replace(sender=_refused(sender))
    else:
        yield from _packings(state, rules)
    if late is not None:
        yield "arrive", state._replace(receiver=accept(receiver, late, rules)[0])
    if receiver.queue:
        yield "handle", _handled(state)
    if SENT in sender.states:
        yield "ask", state._replace(sender=_asked(sender))
    for i, kind in enumerate(sender.states):
        if kind in (PENDING, SENT) and i in receiver.effects:
            yield f"tell {i}", state._replace(sender=_with(sender, i, ACKED))
        if kind == DEAD and rules.replays:
            yield f"replay {i}", state._replace(sender=_replayed(sender, i))
    for i in receiver.marks:
        yield f"prune {i}", state._replace(receiver=_pruned(receiver, i, rules))


def _sent(sender: Sender) -> Sender:
    """outbox.add."""
    return sender._replace(states=(*sender.states, PENDING), again=(*sender.again, False))


def _packings(state: State, rules: Rules) -> Iterator[Step]:
    """parcels.pack: the next messages in order, as many as fit."""
    waiting = [i for i, kind in enumerate(state.sender.states) if kind == PENDING]
    for size in range(1, min(len(waiting), rules.frames) + 1):
        yield f"pack {size}", state._replace(sender=state.sender._replace(flight=tuple(waiting[:size])))


def _pushes(state: State, rules: Rules) -> Iterator[Step]:
    """Transport.deliver: settled, or its answer lost, or a copy of it left on the way; a row that is gone opens an epoch."""
    sender, receiver, late, _ = state
    kinds = {sender.states[i] for i in sender.flight}
    if ACKED in kinds or DEAD in kinds:
        yield "repack", state._replace(sender=renewed(sender))
    if DEAD in kinds:
        return
    parcel = Parcel(sender.epoch, sender.number + 1, sender.last, tuple((i, sender.again[i]) for i in sender.flight))
    after, verdict, receipts = accept(receiver, parcel, rules)
    yield "push", state._replace(sender=settle(sender, verdict, receipts, receiver, rules), receiver=after)
    if after != receiver:
        yield "push_lost", state._replace(receiver=after)
    if rules.late and parcel != late:
        yield "leave", state._replace(late=parcel)


def _with(sender: Sender, i: int, kind: str) -> Sender:
    spoilt = sender.spoilt | {i} if kind == DEAD else sender.spoilt
    return sender._replace(states=(*sender.states[:i], kind, *sender.states[i + 1 :]), spoilt=spoilt)


def renewed(sender: Sender) -> Sender:
    """peers.renew: a new epoch, in which everything written so far may have been pushed before."""
    return sender._replace(epoch=sender.epoch + 1000, number=0, last=NOBODY, flight=(), again=(True,) * len(sender.again))


def _refused(sender: Sender) -> Sender:
    """Setbacks.refused, and a spent budget: the parcel's messages become dead letters, a new epoch opens without them."""
    for i in sender.flight:
        if sender.states[i] in (PENDING, SENT):
            sender = _with(sender, i, DEAD)
    return renewed(sender)


def _asked(sender: Sender) -> Sender:
    """outbox.wake: what was stored and not processed in time is pushed again."""
    return sender._replace(
        states=tuple(PENDING if kind == SENT else kind for kind in sender.states),
        again=tuple(was or kind == SENT for kind, was in zip(sender.states, sender.again, strict=True)),
    )


def _replayed(sender: Sender, i: int) -> Sender:
    """dead_letters.replay: back in the outbox under its own id."""
    return _with(sender, i, PENDING)._replace(again=(*sender.again[:i], True, *sender.again[i + 1 :]))


def accept(receiver: Receiver, parcel: Parcel, rules: Rules) -> tuple[Receiver, str, dict[int, str]]:
    """accept.accept: the file after it, the verdict, and the receipt of each message."""
    verdict, judge_all = _judged(receiver, parcel, rules)
    receipts: dict[int, str] = {}
    queue = receiver.queue
    for i, again in parcel.frames if verdict != "fork" else ():
        if i in queue and rules.broken != "known":
            receipts[i] = "duplicate"
        elif i in receiver.marks and rules.broken != "known":
            receipts[i] = "processed"
        elif (judge_all or again) and i <= receiver.horizon and rules.broken != "horizon":
            receipts[i] = "rejected"
        else:
            receipts[i] = "stored"
            queue = (*queue, i)
    after = receiver._replace(queue=queue)
    if verdict == "accepted":
        after = after._replace(epoch=parcel.epoch, number=parcel.number, last=parcel.frames[-1][0])
    return after, verdict, receipts


def _judged(receiver: Receiver, parcel: Parcel, rules: Rules) -> tuple[str, bool]:
    """accept._judge: whether the parcel continues its stream."""
    if rules.broken == "stream":
        return "accepted", False
    if parcel.epoch == receiver.epoch:
        if (parcel.number, parcel.previous) == (receiver.number + 1, receiver.last):
            return "accepted", False
        if (parcel.number, parcel.frames[-1][0]) == (receiver.number, receiver.last):
            return "duplicate", rules.broken != "duplicate"
    elif parcel.number == 1 and parcel.previous == NOBODY:
        return "accepted", rules.broken != "new_epoch"
    return "fork", False


def settle(sender: Sender, verdict: str, receipts: dict[int, str], peer: Receiver, rules: Rules) -> Sender:
    """parcels.settle, and Setbacks.forked where the answer is a fork: a peer elsewhere may have lost what it had."""
    if verdict == "fork":
        lost = peer.epoch != sender.epoch or peer.number < sender.number
        return sender if rules.broken == "fork" else renewed(_resent(sender) if lost else sender)
    for i, said in receipts.items():
        kind = sender.states[i]
        if said in ("stored", "duplicate") and kind == PENDING:
            sender = _with(sender, i, ACKED if rules.broken == "custody" else SENT)
        elif said == "processed" and kind in (PENDING, SENT):
            sender = _with(sender, i, ACKED)
        elif said == "rejected" and kind in (PENDING, SENT):
            sender = _with(sender, i, DEAD)
    return sender._replace(number=sender.number + 1, last=sender.flight[-1], flight=())


def _resent(sender: Sender) -> Sender:
    """outbox.resend: whatever is retained is pushed again."""
    return sender._replace(states=tuple(PENDING if kind in (SENT, ACKED) else kind for kind in sender.states))


def _handled(state: State) -> State:
    """inbox.claim and inbox.settle: effect and mark in one commit."""
    sender, receiver = state.sender, state.receiver
    first, *others = receiver.queue
    wrong = "a message took effect twice" if first in receiver.effects else ""
    if first not in sender.spoilt and any(i > first for i in receiver.effects - sender.spoilt):
        wrong = "a lane lost its order"
    after = receiver._replace(queue=tuple(others), marks=receiver.marks | {first}, effects=receiver.effects | {first})
    return state._replace(receiver=after, wrong=wrong)


def _pruned(receiver: Receiver, i: int, rules: Rules) -> Receiver:
    """retention.marks: a mark goes, the horizon before it."""
    horizon = receiver.horizon if rules.broken == "retention" else max(receiver.horizon, i)
    return receiver._replace(marks=receiver.marks - {i}, horizon=horizon)


def _renamed(state: State) -> State:
    """Give epochs small names, the recipient's before the sender's, and numbers that are far apart small ones."""
    sender, receiver, late, _ = state
    mentioned = (receiver.epoch, sender.epoch, *(() if late is None else (late.epoch,)))
    names = {epoch: name for name, epoch in enumerate(dict.fromkeys(epoch for epoch in mentioned if epoch != NOBODY))}
    near = {epoch: _nearer([place.number for place in (sender, receiver, late) if place and place.epoch == epoch]) for epoch in names}
    sender = sender._replace(epoch=names[sender.epoch], number=near[sender.epoch][sender.number])
    if receiver.epoch != NOBODY:
        receiver = receiver._replace(epoch=names[receiver.epoch], number=near[receiver.epoch][receiver.number])
    if late is not None:
        late = late._replace(epoch=names[late.epoch], number=near[late.epoch][late.number])
    return state._replace(sender=sender, receiver=receiver, late=late)


def _nearer(numbers: list[int]) -> dict[int, int]:
    """Map numbers to smaller ones: only 'first', 'the same' and 'the next' are ever asked."""
    found: dict[int, int] = {}
    before = new = 0
    for number in sorted(set(numbers)):
        new += min(number - before, 2)
        before, found[number] = number, new
    return found


def wrong(state: State) -> str:
    """Return what must never be, empty where all is well."""
    forgotten = [i for i, kind in enumerate(state.sender.states) if kind == ACKED and i not in state.receiver.effects]
    return state.wrong or ("the sender forgot what had no effect" if forgotten else "")


def finished(state: State) -> bool:
    """Whether nothing waits any more."""
    return not state.receiver.queue and not state.sender.flight and set(state.sender.states) <= {ACKED, DEAD}
