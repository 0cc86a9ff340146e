"""
The protocol between one sender and one recipient, small enough to be searched to the last state.

Every transition stands for one commit of the real code, and names the function
that makes it. A crash of either side loses what was not committed and nothing
else, so crashes are the interleavings in which a transition does not happen.

What makes it small keeps it honest, for each step only allows more than the
real files do: a row is pruned as soon as it may be, so that marks alone remember;
any mark may be pruned; asking again and replaying have no budget. A recipient
may be put back to an earlier state of its file: everything that it knew later
is gone, and its sender must notice before anything new is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.proof.model import handling
from tests.proof.model.folded import foldable, folded
from tests.proof.model.values import (
    ACKED,
    BESIDE,
    CANCELLED,
    DEAD,
    NOBODY,
    NOWHERE,
    PENDING,
    REQUEST,
    SENT,
    Answer,
    Parcel,
    Place,
    Receiver,
    Rules,
    Sender,
    State,
    renamed,
)

Step = tuple[str, State]


def steps(state: State, rules: Rules) -> Iterator[Step]:
    """Yield every transition from a state with its name; arguments follow after a blank."""
    folds = foldable(rules)
    for name, after in _all(state, rules):
        seen = after if rules.delays or not after.sender.left else _unobserved(after)
        yield name, renamed(folded(state, seen) if folds else seen)


def _unobserved(state: State) -> State:
    """Forget what only one judge asks about, so that there are fewer states."""
    return state._replace(sender=state.sender._replace(left=frozenset()))


def _all(state: State, rules: Rules) -> Iterator[Step]:
    sender, receiver, late = state.sender, state.receiver, state.late
    if len(sender.states) < rules.messages:
        yield "send", state._replace(sender=_sent(sender))
    if state.answer is not None:
        yield from _settlements(state, state.answer, rules)
    elif sender.flight:
        yield from _pushes(state, rules)
        yield from _turned_down(state, rules)
    else:
        yield from _packings(state, rules)
        yield from _requests(state, rules) if rules.asks else ()
    if late is not None:
        yield "arrive", state._replace(receiver=accept(receiver, late, rules)[0])
    if rules.steps:
        yield from handling.steps(state, rules)
    elif rules.claims and receiver.queue and receiver.running == NOBODY:
        yield "claim", state._replace(receiver=receiver._replace(running=receiver.queue[0]))
    if _may_end(receiver, rules):
        yield "handle", _handled(state, rules)
    if SENT in sender.states:
        yield "ask", state._replace(sender=_asked(sender))
    yield from _single(state, rules)
    yield from _upkeep(state, rules)


def _may_end(receiver: Receiver, rules: Rules) -> bool:
    if rules.steps:
        return handling.may_end(receiver, rules)
    return receiver.running != NOBODY if rules.claims else bool(receiver.queue)


def _single(state: State, rules: Rules) -> Iterator[Step]:
    """Steps of one message: its outcome is told beside the stream, it is replayed or withdrawn."""
    sender, receiver = state.sender, state.receiver
    for i, kind in enumerate(sender.states):
        if kind in (PENDING, SENT) and i in receiver.effects | receiver.cancelled:
            told = _told(sender, i, receiver, rules)
            # A base that moves releases the lease, and what was answered under it does not count.
            answer = state.answer if told.relied == sender.relied else None
            yield f"tell {i}", state._replace(sender=told, answer=answer)
        if kind == DEAD and rules.replays:
            yield f"replay {i}", state._replace(sender=_with(sender, i, PENDING))
        if rules.cancels and cancellable(sender, i):
            yield f"cancel {i}", state._replace(sender=_with(sender, i, CANCELLED))


def _requests(state: State, rules: Rules) -> Iterator[Step]:
    """
    Cancelling._ask, parcels.next_parcel, accept.accept and parcels.settle of a request to cancel.

    It is in a parcel of its own, which no failure parts: parcels of messages show those.
    """
    sender, receiver = state.sender, state.receiver
    parcel = Parcel(sender.epoch, sender.number + 1, sender.last, ((REQUEST, False),))
    if sender.number == 0:
        parcel = parcel._replace(relies_on=sender.relied, unsettled=sender.unsettled)
    if _judged(receiver, parcel, rules)[0] != "accepted":
        return
    for i, kind in enumerate(sender.states):
        if kind not in (PENDING, SENT) or not sender.again[i]:
            continue
        decided = _cancelled(receiver, i, rules)
        if decided != receiver:
            yield (
                f"decide {i}",
                state._replace(
                    sender=sender._replace(
                        number=parcel.number, last=REQUEST, unsettled=frozenset()
                    ),
                    receiver=_moved(decided, parcel),
                ),
            )


def _cancelled(receiver: Receiver, i: int, rules: Rules) -> Receiver:
    """Canceller.take: the recipient decides the request of a sender, in one commit."""
    ended = i in receiver.marks or i in receiver.effects or i <= receiver.horizon
    if ended and rules.broken != "after":
        return receiver
    queue = tuple(each for each in receiver.queue if each != i)
    fenced = receiver.running == i and rules.broken != "unfenced"
    unmarked = rules.broken == "unmarked" and i not in receiver.queue
    if rules.steps:
        receiver = handling.ended(handling.fenced(receiver) if fenced else receiver, i)
    return receiver._replace(
        queue=queue,
        marks=receiver.marks if unmarked else receiver.marks | {i},
        cancelled=receiver.cancelled | {i},
        running=NOBODY if fenced else receiver.running,
    )


def _turned_down(state: State, rules: Rules) -> Iterator[Step]:
    """Transport.deliver: the peer never takes this parcel, or the way none of its size."""
    yield "refused", state._replace(sender=_refused(state.sender, rules))
    if len(state.sender.flight) > 1:
        yield "too_large", state._replace(sender=_too_large(state.sender, rules))


def _upkeep(state: State, rules: Rules) -> Iterator[Step]:
    """
    Retention, and an operator.

    Marks are forgotten, the recipient's file is backed up and put back.
    """
    for i in state.receiver.marks if rules.prunes else ():
        yield f"prune {i}", state._replace(receiver=_pruned(state.receiver, i, rules))
    if state.saved is not None:
        yield "restore", _restored(state, state.saved)
    elif state.backups < rules.backups:
        yield "backup", state._replace(saved=state.receiver, backups=state.backups + 1)


def _sent(sender: Sender) -> Sender:
    """outbox.add."""
    return sender._replace(
        states=(*sender.states, PENDING),
        again=(*sender.again, False),
        places=(*sender.places, BESIDE),
    )


def _packings(state: State, rules: Rules) -> Iterator[Step]:
    """parcels.next_parcel: the next messages in order, as many as fit; delayed ones come later."""
    sender = state.sender
    waiting = [i for i, kind in enumerate(sender.states) if kind == PENDING]
    for first in range(len(waiting) if rules.delays else 1):
        for size in range(1, min(len(waiting) - first, rules.frames) + 1):
            packed = sender._replace(flight=tuple(waiting[first : first + size]))
            yield (f"pack {size}" if not first else "pack_later"), state._replace(sender=packed)


def cancellable(sender: Sender, i: int) -> bool:
    """outbox.cancel: it waits, is not in the parcel in flight and was in none before."""
    return sender.states[i] == PENDING and i not in sender.flight and not sender.again[i]


def _pushes(state: State, rules: Rules) -> Iterator[Step]:
    """
    Transport.deliver: settled, or its answer lost, or a copy of it left on the way.

    A row that is gone opens an epoch.
    """
    sender, receiver, late = state.sender, state.receiver, state.late
    kinds = {sender.states[i] for i in sender.flight}
    if ACKED in kinds or DEAD in kinds:
        yield "repack", state._replace(sender=_given_up(sender, rules))
    if DEAD in kinds:
        return
    parcel = Parcel(
        sender.epoch,
        sender.number + 1,
        sender.last,
        tuple((i, sender.again[i]) for i in sender.flight),
    )
    if sender.number == 0 and rules.broken != "relied":
        parcel = parcel._replace(relies_on=sender.relied, unsettled=sender.unsettled)
    after, verdict, receipts = accept(receiver, parcel, rules)
    pushed = state._replace(
        sender=settle(sender, verdict, receipts, receiver.place, rules),
        receiver=after,
        wrong=_misjudged(sender, verdict, receipts, rules),
    )
    yield ("forked", pushed) if verdict == "fork" else ("push", _noticed(pushed, rules))
    if rules.rides:
        place = receiver.place if verdict == "fork" else NOWHERE
        answer = Answer(verdict, tuple(receipts.items()), place)
        early = _advanced(sender) if rules.broken == "half" else sender
        taken = state._replace(sender=early, receiver=after, answer=answer)
        yield "answered", taken if verdict == "fork" else _noticed(taken, rules)
    if rules.broken == "unsent":
        unsent = parcel._replace(frames=((len(sender.states), False),))
        yield "unsent", state._replace(receiver=accept(receiver, unsent, rules)[0])
    if after != receiver:
        yield "push_lost", state._replace(receiver=after)
    if rules.late and parcel != late:
        yield "leave", state._replace(late=parcel)


def _settlements(state: State, answer: Answer, rules: Rules) -> Iterator[Step]:
    """
    Dispatcher._write_answer: the settlement rides on a commit, or its process dies before one.

    The recipient may have moved on meanwhile, and may have told outcomes beside the stream.
    """
    sender, receipts = state.sender, dict(answer.receipts)
    settled = state._replace(
        sender=settle(sender, answer.verdict, receipts, answer.place, rules),
        answer=None,
        wrong=_misjudged(sender, answer.verdict, receipts, rules),
    )
    yield ("forked" if answer.verdict == "fork" else "settle"), settled
    if rules.broken == "forgotten":
        sender = sender._replace(flight=())
    yield "crash", state._replace(sender=sender, answer=None)


def _advanced(sender: Sender) -> Sender:
    """Move the stream on without the rows of its parcel."""
    return sender._replace(number=sender.number + 1, last=sender.flight[-1], flight=())


def _with(sender: Sender, i: int, kind: str, place: Place | None = None) -> Sender:
    spoilt = sender.spoilt | {i} if kind == DEAD else sender.spoilt
    places = (
        sender.places if place is None else (*sender.places[:i], place, *sender.places[i + 1 :])
    )
    return sender._replace(
        states=(*sender.states[:i], kind, *sender.states[i + 1 :]), spoilt=spoilt, places=places
    )


def _misjudged(sender: Sender, verdict: str, receipts: dict[int, str], rules: Rules) -> str:
    """A message that was in no parcel before is new to its recipient, however old it is."""
    refused = {i for i, said in receipts.items() if said == "rejected"} - sender.left
    return (
        "a message that never left was refused"
        if rules.delays and verdict == "accepted" and refused
        else ""
    )


def renewed(sender: Sender, rules: Rules, stands: Place | None = None) -> Sender:
    """peers.new_epoch: a new epoch with its base; the parcel in flight may have arrived."""
    every, marked = rules.broken == "every", rules.broken != "mark"
    behind = stands is not None and (0, 0) < sender.age(stands) < sender.age(sender.settled)
    doubt = stands is not None and stands.epoch != NOBODY and not behind
    again = tuple(
        was or every or doubt or (marked and i in sender.flight)
        for i, was in enumerate(sender.again)
    )
    unsettled = sender.unsettled.union(sender.flight[-1:] if rules.relies else ())
    left = sender.left | set(sender.flight)
    sender = sender._replace(again=again, left=left, unsettled=unsettled)
    if stands is not None:
        sender = sender._replace(relied=stands, foreign=sender.age(stands) == (0, 0))
    elif sender.number and (
        sender.relied.epoch != sender.epoch or sender.relied.number < sender.number
    ):
        sender = sender._replace(relied=sender.settled, foreign=False)
    return sender._replace(
        epoch=sender.epoch + 1000,
        number=0,
        last=NOBODY,
        flight=(),
    )


def _told(sender: Sender, i: int, peer: Receiver, rules: Rules) -> Sender:
    """
    outbox.settle and peers.rely, in accept.accept.

    An outcome comes beside the stream, with where the recipient stands.
    """
    end = CANCELLED if i in peer.cancelled else ACKED
    after, stands = _left(_with(sender, i, end), i), peer.place
    news = sender.number < stands.number if stands.epoch == sender.epoch else sender.number == 0
    if (
        not rules.relies
        or not news
        or (sender.relied.epoch == stands.epoch and sender.relied.number >= stands.number)
    ):
        return after
    near = (sender.epoch, sender.number + 1), (sender.relied.epoch, sender.relied.number + 1)
    if not any(stands.epoch == epoch and stands.number <= upto for epoch, upto in near):
        after = after._replace(again=(True,) * len(after.again))
    return after._replace(relied=stands, foreign=sender.age(stands) == (0, 0))


def _left(sender: Sender, i: int) -> Sender:
    """Mark a message of which the recipient has told."""
    again = (*sender.again[:i], True, *sender.again[i + 1 :])
    return sender._replace(again=again, left=sender.left | {i})


def _given_up(sender: Sender, rules: Rules) -> Sender:
    return renewed(sender, rules, None if rules.relies else NOWHERE)


def _refused(sender: Sender, rules: Rules) -> Sender:
    """
    Setbacks.refused, and a spent budget.

    The parcel's messages become dead letters, a new epoch opens without them.
    """
    for i in sender.flight:
        if sender.states[i] in (PENDING, SENT):
            sender = _with(sender, i, DEAD)
    return _given_up(sender, rules)


def _too_large(sender: Sender, rules: Rules) -> Sender:
    """DeliveryFailures.too_large: the parcel's messages wait again, for smaller parcels."""
    if rules.broken == "shrunk":
        return sender._replace(flight=())
    return _given_up(sender, rules)


def _asked(sender: Sender) -> Sender:
    """outbox.wake: what was stored and not processed in time is pushed again."""
    return sender._replace(
        states=tuple(PENDING if kind == SENT else kind for kind in sender.states)
    )


def accept(
    receiver: Receiver, parcel: Parcel, rules: Rules
) -> tuple[Receiver, str, dict[int, str]]:
    """accept.accept: the file after it, the verdict, and the receipt of each message."""
    verdict, judge_all = _judged(receiver, parcel, rules)
    receipts: dict[int, str] = {}
    queue = receiver.queue
    for i, again in parcel.frames if verdict != "fork" else ():
        if i in queue and rules.broken != "known":
            receipts[i] = "duplicate"
        elif i in receiver.marks and rules.broken != "known":
            receipts[i] = "cancelled" if i in receiver.cancelled else "processed"
        elif (judge_all or again) and i <= receiver.horizon and rules.broken != "horizon":
            receipts[i] = "rejected"
        elif rules.waits and i == handling.AWAITED:
            receipts[i] = "processed"
            receiver = handling.kept(receiver)
        else:
            receipts[i] = "stored"
            queue = (*queue, i)
    after = receiver._replace(queue=queue)
    return _moved(after, parcel) if verdict == "accepted" else after, verdict, receipts


def _moved(receiver: Receiver, parcel: Parcel) -> Receiver:
    """accept.advance: the stream stands at an accepted parcel."""
    relied = receiver.relied if parcel.epoch == receiver.epoch else parcel.relies_on
    return receiver._replace(
        epoch=parcel.epoch, number=parcel.number, last=parcel.frames[-1][0], relied=relied
    )


def _judged(receiver: Receiver, parcel: Parcel, rules: Rules) -> tuple[str, bool]:
    """streams.judge: whether the parcel continues its stream."""
    if rules.broken == "stream":
        return "accepted", False
    if parcel.epoch == receiver.epoch:
        if (parcel.number, parcel.previous) == (receiver.number + 1, receiver.last):
            return "accepted", False
        if (parcel.number, parcel.frames[-1][0]) == (receiver.number, receiver.last):
            return "duplicate", rules.broken != "duplicate"
    elif (
        parcel.number == 1
        and parcel.previous == NOBODY
        and (parcel.epoch > receiver.epoch or rules.broken == "older")
        and _holds(receiver, parcel.relies_on)
    ):
        return "accepted", not (rules.relies and _known_to(receiver, parcel))
    return "fork", False


def _known_to(receiver: Receiver, parcel: Parcel) -> bool:
    """StreamPosition.known_to: whether the sender knows of every parcel that was accepted."""
    return parcel.relies_on == receiver.place or receiver.last in parcel.unsettled


def _holds(receiver: Receiver, relies_on: Place) -> bool:
    """Stream.holds: whether everything is there that a new epoch builds on."""
    known = (receiver.place, receiver.relied)
    return relies_on.epoch == NOBODY or any(
        p.epoch == relies_on.epoch and p.number >= relies_on.number for p in known
    )


def settle(
    sender: Sender, verdict: str, receipts: dict[int, str], stands: Place, rules: Rules
) -> Sender:
    """
    parcels.settle, and Setbacks.forked where the answer is a fork.

    A peer elsewhere may have lost what it had.
    """
    if verdict == "fork":
        return (
            sender
            if rules.broken == "fork"
            else renewed(_resent(sender, stands), rules, stands if rules.relies else NOWHERE)
        )
    here = Place(sender.epoch, sender.number + 1) if rules.relies else BESIDE
    for i, said in receipts.items():
        kind, sender = sender.states[i], _left(sender, i)
        if said in ("stored", "duplicate") and kind == PENDING:
            sender = _with(sender, i, ACKED if rules.broken == "custody" else SENT, here)
        elif said == "processed" and kind in (PENDING, SENT):
            sender = _with(sender, i, ACKED, here)
        elif said == "cancelled" and kind in (PENDING, SENT):
            sender = _with(sender, i, CANCELLED, here)
        elif said == "rejected" and kind in (PENDING, SENT):
            sender = _with(sender, i, DEAD)
    if not sender.flight:  # the mistake of settling in two commits
        return sender
    return _advanced(sender)._replace(unsettled=frozenset())


def _resent(sender: Sender, stands: Place) -> Sender:
    """
    Setbacks.forked and outbox.resend.

    What left after the recipient's place is pushed again, or in no known parcel.
    """
    upto = sender.age(stands)
    if upto != (0, 0) and upto >= sender.age(sender.settled):
        return sender
    lost = [
        place == BESIDE or upto == (0, 0) or sender.age(place) > upto for place in sender.places
    ]
    return sender._replace(
        states=tuple(
            PENDING if gone and kind in (SENT, ACKED) else kind
            for gone, kind in zip(lost, sender.states, strict=True)
        )
    )


def _restored(state: State, saved: Receiver) -> State:
    """
    An operator puts a backup in the place of the recipient's file.

    Lanes keep no order that was promised before.
    """
    spoilt = frozenset(range(len(state.sender.states)))
    return state._replace(receiver=saved, saved=None, sender=state.sender._replace(spoilt=spoilt))


def _noticed(state: State, rules: Rules) -> State:
    """After a parcel is taken, all that the sender counts as done is there or on its way again."""
    there = state.receiver.effects | set(state.receiver.queue)
    lost = [i for i, kind in enumerate(state.sender.states) if kind == ACKED and i not in there]
    return (
        state._replace(wrong="a recipient was put back, and no peer noticed")
        if lost and rules.backups
        else state
    )


def _handled(state: State, rules: Rules) -> State:
    """inbox.claim and inbox.settle: effect and mark in one commit."""
    sender, receiver = state.sender, state.receiver
    first = receiver.running if rules.claims else receiver.queue[0]
    others = [i for i in receiver.queue if i != first]
    wrong = "a message took effect twice" if first in receiver.effects else ""
    if rules.delays:
        pass  # no order is promised
    elif first not in sender.spoilt and any(
        i > first for i in receiver.effects - sender.spoilt - handling.beside(rules)
    ):
        wrong = "a lane lost its order"
    after = handling.ended(receiver, first)
    after = after._replace(
        work=after.work._replace(at=""),
        queue=tuple(others),
        marks=receiver.marks | {first},
        effects=receiver.effects | {first},
        running=NOBODY,
    )
    return state._replace(receiver=after, wrong=wrong)


def _pruned(receiver: Receiver, i: int, rules: Rules) -> Receiver:
    """retention.marks: a mark goes, the horizon before it."""
    horizon = receiver.horizon if rules.broken == "retention" else max(receiver.horizon, i)
    return receiver._replace(marks=receiver.marks - {i}, horizon=horizon)


def wrong(state: State, rules: Rules) -> str:
    """
    Return what must never be, empty where all is well.

    A recipient that may be put back is judged when it takes a parcel.
    """
    if rules.backups:
        return state.wrong
    forgotten = [
        i
        for i, kind in enumerate(state.sender.states)
        if kind == ACKED and i not in state.receiver.effects
    ]
    if state.receiver.cancelled & state.receiver.effects:
        return "a message was said to be cancelled, and took effect"
    withdrawn = {i for i, kind in enumerate(state.sender.states) if kind == CANCELLED}
    known = state.receiver.effects | set(state.receiver.queue)
    if any(i >= len(state.sender.states) for i in known):
        return "a message was never sent, and its recipient has it"
    if withdrawn & known:
        return "a message was withdrawn, and its recipient has it"
    return state.wrong or ("the sender forgot what had no effect" if forgotten else "")


def finished(state: State) -> bool:
    """Whether nothing waits any more."""
    return (
        not state.receiver.queue
        and not state.sender.flight
        and set(state.sender.states) <= {ACKED, DEAD, CANCELLED}
    )
