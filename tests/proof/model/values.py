"""
What the model's files hold, and small names for what differs in name alone.

Only the order of epochs matters, and of numbers only which is first, the
same, the next, or the greater: both are renamed, so that there are few states.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

NOBODY: Final = -1
REQUEST: Final = -3
"""Stands for requests to cancel a message, each in a parcel of its own."""
PENDING, SENT, ACKED, DEAD, CANCELLED = "pending", "sent", "acked", "dead", "cancelled"
"""States of a message at its sender."""


class Place(NamedTuple):
    """Where a stream stands: an epoch, and a number in it."""

    epoch: int = NOBODY
    number: int = 0


NOWHERE: Final = Place()
BESIDE: Final = Place(NOBODY, 1)
"""Settled by an outcome that came beside the stream: in no parcel that is known to have arrived."""
LONG_AGO: Final = Place(NOBODY, 2)
"""In a parcel of an epoch that the sender no longer remembers."""


class Parcel(NamedTuple):
    """A pushed parcel: place, last message of the one before, messages, base of a first one."""

    epoch: int
    number: int
    previous: int
    frames: tuple[tuple[int, bool], ...]
    relies_on: Place = NOWHERE
    unsettled: frozenset[int] = frozenset()
    """Of a first one: last messages of the parcels that were given up since its base."""


class Answer(NamedTuple):
    """What a parcel was answered, as its sender remembers it without having settled it."""

    verdict: str
    receipts: tuple[tuple[int, str], ...]
    place: Place = NOWHERE
    """Where the recipient stands, after a fork."""


class Sender(NamedTuple):
    """The sender's file."""

    states: tuple[str, ...] = ()
    again: tuple[bool, ...] = ()
    """Whether a message is marked as one that may have been pushed before."""
    left: frozenset[int] = frozenset()
    """Messages of parcels that were answered or given up: what an observer sees of the above."""
    places: tuple[Place, ...] = ()
    """In which parcel a message was settled."""
    spoilt: frozenset[int] = frozenset()
    """Messages that were dead once: their place in the lane is promised no more."""
    epoch: int = 0
    number: int = 0
    last: int = NOBODY
    flight: tuple[int, ...] = ()
    """The parcel that is stored and not settled."""
    relied: Place = NOWHERE
    """What the present epoch was built on, or what was told beside it."""
    foreign: bool = False
    """Whether that is an epoch whose place among our own is forgotten."""
    unsettled: frozenset[int] = frozenset()
    """Last messages of the parcels that were given up since one was settled."""

    @property
    def settled(self) -> Place:
        """How far the recipient has said that it is."""
        return Place(self.epoch, self.number) if self.number else self.relied

    def age(self, place: Place) -> tuple[int, int]:
        """
        Return where *place* stands among the remembered ones.

        Nothing else is as old as (0, 0).
        """
        if place.epoch == self.epoch:
            return 2, place.number
        known = self.number == 0 and not self.foreign and place.epoch == self.relied.epoch != NOBODY
        return (1, place.number) if known else (0, 0)


class Work(NamedTuple):
    """What the recipient's file and its handler hold of steps, besides effects."""

    at: str = ""
    """Where the running handler is; a crash forgets it."""
    late: int = NOBODY
    """A message whose handler has lost its lease in its step, and goes on."""
    results: frozenset[int] = frozenset()
    """Messages whose step has a stored result."""
    rows: frozenset[int] = frozenset()
    """Messages whose step has written its rows: what an observer sees until they end."""
    returned: frozenset[int] = frozenset()
    """Messages whose function has ended once."""
    acted: frozenset[int] = frozenset()
    """Messages whose handler went on after its step."""
    kept: bool = False
    """Whether the awaited message is there, and no wait has taken it."""
    waiting: bool = False
    """Whether the handler that waits has ended its call; its lane waits with it."""
    taken: bool = False
    """Whether the wait has a stored result."""


class Receiver(NamedTuple):
    """The recipient's file."""

    epoch: int = NOBODY
    number: int = 0
    last: int = NOBODY
    relied: Place = NOWHERE
    """What its sender's epoch was built on."""
    queue: tuple[int, ...] = ()
    """Messages that wait for their handler, oldest first."""
    marks: frozenset[int] = frozenset()
    horizon: int = NOBODY
    effects: frozenset[int] = frozenset()
    """Messages that took effect: what an observer sees."""
    cancelled: frozenset[int] = frozenset()
    """Messages that it has said to be cancelled."""
    running: int = NOBODY
    """The message whose handler runs, under a lease."""
    work: Work = Work()

    @property
    def place(self) -> Place:
        """Where its sender's stream stands."""
        return Place(self.epoch, self.number)


class State(NamedTuple):
    """Both files, an old parcel still in flight between them, a backup of the recipient's file."""

    sender: Sender = Sender()
    receiver: Receiver = Receiver()
    late: Parcel | None = None
    saved: Receiver | None = None
    answer: Answer | None = None
    """The answer of the parcel in flight that waits for a commit: gone after a crash."""
    backups: int = 0
    """How many were taken so far."""
    wrong: str = ""
    """What should never have happened."""


class Rules(NamedTuple):
    """How large the model is, and which of its rules is left out on purpose."""

    messages: int = 3
    frames: int = 2
    """Most messages of one parcel."""
    replays: bool = False
    """
    Whether dead letters are put back on their way.

    Only with one message, for in the files they take a new place then.
    """
    late: bool = True
    """Whether a copy of a push may arrive at any later time."""
    backups: int = 0
    """How often the recipient may be put back to an earlier state of its file."""
    relies: bool = True
    """
    Whether epochs say what they build on.

    It matters only once a recipient is put back, and without it there are few states.
    """
    prunes: bool = True
    """Whether marks are forgotten."""
    cancels: bool = False
    """Whether a message that has not left may be withdrawn."""
    asks: bool = False
    """Whether a sender may ask its recipient to cancel a message that has left."""
    claims: bool = False
    """Whether a handler takes time, so that its message may be cancelled while it runs."""
    steps: bool = False
    """Whether a handler calls a step before its effect; its lease may be lost meanwhile."""
    waits: bool = False
    """Whether the handler of the first message waits for the second one; with ``steps``."""
    delays: bool = False
    """Whether a message may leave after later ones; then no order is promised."""
    rides: bool = False
    """Whether the settlement of an answer may wait for a later commit of the sender."""
    folds: bool = True
    """Whether states that differ in nothing that matters any more are one, where that may be."""
    broken: str = ""
    """Name of the rule that is left out, to show that the search would notice."""


def renamed(state: State) -> State:
    """Forget what is never asked about again; give epochs and distant numbers small names."""
    sender = _sender_needs(state)
    named = {sender.epoch, sender.relied.epoch, state.receiver.epoch}
    if state.late is not None:
        named |= {state.late.epoch, state.late.relies_on.epoch}
    if state.saved is not None:
        named.add(state.saved.epoch)
    if state.answer is not None:
        named.add(state.answer.place.epoch)
    receiver = _receiver_needs(state.receiver, named)
    saved = state.saved and _receiver_needs(state.saved, named)
    new = _names((*_places(sender, receiver, state.late, saved), _answered_at(state)))
    if not new:  # most steps change no place
        return with_parts(state, sender, receiver, state.late, saved)
    late = state.late and state.late._replace(
        **_at(state.late, new), relies_on=_new(state.late.relies_on, new)
    )
    return state._replace(
        sender=sender._replace(
            **_at(sender, new),
            relied=_new(sender.relied, new),
            places=tuple(_new(p, new) for p in sender.places),
        ),
        receiver=receiver._replace(**_at(receiver, new), relied=_new(receiver.relied, new)),
        late=late,
        answer=state.answer and state.answer._replace(place=_new(state.answer.place, new)),
        saved=saved and saved._replace(**_at(saved, new), relied=_new(saved.relied, new)),
    )


def _answered_at(state: State) -> Place:
    return NOWHERE if state.answer is None else state.answer.place


def with_parts(
    state: State, sender: Sender, receiver: Receiver, late: Parcel | None, saved: Receiver | None
) -> State:
    """Return the state with these parts; it takes half as long as ``_replace``."""
    return State(sender, receiver, late, saved, state.answer, state.backups, state.wrong)


def _places(
    sender: Sender, receiver: Receiver, late: Parcel | None, saved: Receiver | None
) -> list[Place]:
    found = [receiver.place, Place(sender.epoch, sender.number), receiver.relied, sender.relied]
    if late is not None:
        found += [Place(late.epoch, late.number), late.relies_on]
    if saved is not None:
        found += [saved.place, saved.relied]
    return [*found, *sender.places]


def _sender_needs(state: State) -> Sender:
    """An epoch's base matters before its first parcel arrived and where messages settle."""
    sender = state.sender
    if sender.unsettled:  # a recipient asks whether its own last message is among them
        sender = sender._replace(unsettled=sender.unsettled & _ends(state))
    if sender.number and sender.relied.epoch != sender.epoch:
        sender = sender._replace(relied=NOWHERE, foreign=False)
    places = tuple(
        BESIDE
        if state == DEAD
        else place
        if place.epoch == NOBODY or sender.age(place) != (0, 0)
        else LONG_AGO
        for state, place in zip(sender.states, sender.places, strict=True)
    )
    return sender if places == sender.places else sender._replace(places=places)


def _ends(state: State) -> set[int]:
    """Return the messages that the recipient's stream ends with, or may come to end with."""
    late, saved = state.late, state.saved
    ends = {state.receiver.last, *state.sender.flight[-1:]}
    return ends | ({late.frames[-1][0]} if late else set()) | ({saved.last} if saved else set())


def _receiver_needs(receiver: Receiver, named: set[int]) -> Receiver:
    """Return the receiver; an epoch that its own builds on is forgotten once no place names it."""
    return receiver if receiver.relied.epoch in named else receiver._replace(relied=NOWHERE)


@lru_cache(maxsize=1 << 16)  # millions of states have thousands of lists of places
def _names(every: tuple[Place, ...]) -> dict[Place, Place]:
    """Return a small name of each place; none where all have theirs."""
    places = [place for place in every if place.epoch != NOBODY]
    epochs = {epoch: name for name, epoch in enumerate(sorted({place.epoch for place in places}))}
    near = {
        epoch: _nearer([place.number for place in places if place.epoch == epoch])
        for epoch in epochs
    }
    new = {place: Place(epochs[place.epoch], near[place.epoch][place.number]) for place in places}
    return new if any(place != name for place, name in new.items()) else {}


def _new(place: Place, new: dict[Place, Place]) -> Place:
    return new.get(place, place)


def _at(each: Sender | Receiver | Parcel, new: dict[Place, Place]) -> dict[str, Any]:
    return _new(Place(each.epoch, each.number), new)._asdict()


def _nearer(numbers: list[int]) -> dict[int, int]:
    """
    Map numbers to smaller ones.

    Only 'first', 'the same', 'the next' and 'not less' are ever asked.
    """
    found: dict[int, int] = {}
    before = new = 0
    for number in sorted(set(numbers)):
        new += min(number - before, 2)
        before, found[number] = number, new
    return found
