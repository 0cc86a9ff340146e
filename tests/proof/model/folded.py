"""
States that differ only in what can make no difference any more are one.

So three messages fit, with late copies of parcels.

All of it rests on one lemma, which the search asserts at every step that it
takes: a message that the recipient knows, waiting, marked or below the
horizon, stays known. It holds only without backups and with all rules in
force, and places are compared where epochs say what they build on, so there
nothing is folded. A test folds every state of a search that folds none, and
gets the same.
"""

from __future__ import annotations

from typing import Final

from tests.proof.model.values import (
    NOBODY,
    PENDING,
    Parcel,
    Receiver,
    Rules,
    Sender,
    State,
    with_parts,
)

SOMEBODY: Final = -2
"""
Stands for messages that are known, where it does not matter which.

Below every horizon, and the last of no parcel.
"""


def foldable(rules: Rules) -> bool:
    """Return whether what is folded makes no difference under these rules."""
    return rules.folds and not (rules.backups or rules.relies or rules.broken)


def folded(before: State, state: State) -> State:
    """Forget what can make no difference any more in a state that was reached from *before*."""
    receiver = state.receiver
    assert receiver is before.receiver or all(
        known(receiver, i) for i in range(len(before.sender.states)) if known(before.receiver, i)
    ), "a known message was forgotten"
    late = None if state.late is None else _late(state.late, state.sender, receiver)
    sender = _sender(state.sender, receiver, late)
    return with_parts(state, sender, _receiver(receiver, sender, late), late, state.saved)


def known(receiver: Receiver, i: int) -> bool:
    """Return whether a message that is judged by its id is not stored again."""
    return i <= receiver.horizon or i in receiver.marks or i in receiver.queue


def _late(late: Parcel, sender: Sender, receiver: Receiver) -> Parcel | None:
    """
    A first parcel may begin its epoch again at any time, others must continue the stream.

    First parcels and repetitions are judged frame by frame, whatever they say
    of themselves; what is known of them already adds nothing. A first parcel of
    an older epoch is refused.
    """
    if late.number == 1 and late.epoch < receiver.epoch:
        return None
    if late.number == 1 and late.epoch != receiver.epoch:
        last = late.frames[-1][0]
        if late.epoch != sender.epoch and all(known(receiver, i) for i, _ in late.frames):
            return late._replace(frames=((SOMEBODY, True),))
        return late._replace(
            frames=tuple((i, True) for i, _ in late.frames if i == last or not known(receiver, i))
        )
    if late.epoch != receiver.epoch or late.number < receiver.number:
        return None
    if late.number == receiver.number and (
        late.frames[-1][0] != receiver.last or all(known(receiver, i) for i, _ in late.frames)
    ):
        return None
    return None if late.number == receiver.number + 1 and late.previous != receiver.last else late


def _sender(sender: Sender, receiver: Receiver, late: Parcel | None) -> Sender:
    """
    Whether a message was pushed before is asked when it is packed.

    A place in the lane is asked by older ones that are still to come.

    Where the recipient is in another epoch to stay, every further parcel is a
    fork, whatever its number.
    """
    kinds = enumerate(zip(sender.again, sender.states, strict=True))
    again = tuple(was or (kind != PENDING and i not in sender.flight) for i, (was, kind) in kinds)
    spoilt, done = sender.spoilt, receiver.effects
    for i in sorted(done - spoilt):
        if all(j in spoilt or j in done for j in range(i)):
            spoilt |= {i}
    parted = (
        sender.number
        and receiver.epoch != sender.epoch
        and (late is None or late.epoch != sender.epoch)
    )
    number, last = (1, SOMEBODY) if parted else (sender.number, sender.last)
    if (again, spoilt, number, last) == (sender.again, sender.spoilt, sender.number, sender.last):
        return sender
    return sender._replace(again=again, spoilt=spoilt, number=number, last=last)


def _receiver(receiver: Receiver, sender: Sender, late: Parcel | None) -> Receiver:
    """An epoch that neither the sender nor a late parcel continues counts as any other."""
    continued = (
        late is not None and late.epoch == receiver.epoch and late.frames != ((SOMEBODY, True),)
    )
    return (
        receiver
        if continued or receiver.epoch in {NOBODY, sender.epoch}
        else receiver._replace(number=1, last=SOMEBODY)
    )
