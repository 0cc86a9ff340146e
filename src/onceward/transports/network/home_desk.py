"""
Keep the parcels for the agents of a home that cannot be called, until it asks for them.

One question of each of its processes is held, for all agents of that process. A question names the
parcels that are being accepted there: one that was handed out and is not among them was lost on
the way, and is handed out again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from onceward.errors import DeliveryError, InvalidParcel, Unreachable
from onceward.message import wire
from onceward.message.clock import monotonic
from onceward.message.names import AGENT
from onceward.message.parcel import Answer, Parcel
from onceward.message.protocol import Spoken
from onceward.message.validators import parsed
from onceward.transports.network.poll_answers import read_answer

GONE: Final = 5.0
"""Seconds after its last question after which a process counts as gone."""
FORGOTTEN: Final = 60.0
BATCH: Final = 64
"""Maximum parcels of one answer."""
BATCH_BYTES: Final = 4 << 20
"""Bytes of parcels after which an answer gets no more."""
ANSWERS_MAX: Final = 256
Name = Annotated[str, Field(max_length=128, pattern=f"^{AGENT.pattern}$")]
Pair = tuple[Name, Name]
"""The sender and the recipient of a parcel."""
Length = Annotated[int, Field(ge=0, lt=2**31)]


class Question(BaseModel):
    """The poll of a process for its agents; its answers to parcels follow it."""

    model_config = ConfigDict(extra="ignore")

    process: Annotated[str, Field(max_length=64)]
    """A random name of the process."""
    hold: Annotated[int, Field(ge=0)]
    """Milliseconds for which it may be held while no parcel waits."""
    agents: Annotated[list[Name], Field(max_length=10_000)]
    """The agents that it takes parcels for."""
    pending: Annotated[list[Pair], Field(max_length=ANSWERS_MAX)] = []
    """The parcels that it is accepting."""
    answers: Annotated[list[tuple[Name, Name, Length]], Field(max_length=ANSWERS_MAX)] = []
    """Sender and recipient of answered parcels, and the length of each answer."""


to_json(Question(process="", hold=0, agents=[]))  # as in ``message.frame``
Answers = Sequence[tuple[tuple[str, str], bytes]]
"""Answers by the sender and the recipient of their parcels."""


def encode_question(question: Question, answers: Answers) -> bytes:
    """Return a question with answers as bytes that ``decode_question`` reads back."""
    listed = [(sender, recipient, len(text)) for (sender, recipient), text in answers]
    head = to_json(question.model_copy(update={"answers": listed}))
    return b"".join((head, b"\n", *(text for _, text in answers)))


def decode_question(body: bytes) -> tuple[Question, Answers]:
    """Return a question and its answers; raise InvalidParcel for another form."""
    head, _, rest = body.partition(b"\n")
    try:
        question = parsed(Question, head)
    except (ValidationError, RecursionError) as error:
        raise InvalidParcel(f"not a question: {str(error)[:200]}") from error
    texts = _cut(rest, [length for *_, length in question.answers])
    named = [(sender, recipient) for sender, recipient, _ in question.answers]
    return question, list(zip(named, texts, strict=True))


def encode_parcels(parcels: Iterable[Parcel]) -> bytes:
    """Return parcels as bytes that ``decode_parcels`` reads back."""
    texts = [wire.encode_parcel(each) for each in parcels]
    return b"".join((to_json([len(text) for text in texts]), b"\n", *texts))


def decode_parcels(body: bytes) -> list[bytes]:
    """Return the encoded parcels of an answer; raise InvalidParcel for another form."""
    head, _, rest = body.partition(b"\n")
    try:
        lengths = json.loads(head)
        if not isinstance(lengths, list) or not all(type(each) is int for each in lengths):
            raise InvalidParcel("not a list of parcels")
    except (ValueError, RecursionError) as error:
        raise InvalidParcel("not a list of parcels") from error
    return _cut(rest, lengths)


def _cut(rest: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Cut bytes by lengths; raise InvalidParcel if they do not match."""
    if min(lengths, default=0) < 0 or sum(lengths) != len(rest):
        raise InvalidParcel("the lengths do not match")
    found, start = list[bytes](), 0
    for length in lengths:
        found.append(rest[start : start + length])
        start += length
    return found


@dataclass(slots=True, eq=False)
class _Waiting:
    """A parcel that waits for its answer."""

    parcel: Parcel
    taken: bool = False
    answer: Answer | DeliveryError | None = None


@dataclass(slots=True, eq=False)
class _Process:
    """A process that asks, and its held questions."""

    agents: frozenset[str] = frozenset()
    asked_at: float = field(default_factory=monotonic)
    wakes: list[Callable[[], object]] = field(default_factory=list)

    def is_there(self) -> bool:
        """Return whether it asks now, or did a moment ago."""
        return bool(self.wakes) or monotonic() - self.asked_at < GONE


class HomeDesk:
    """The parcels of this process for the agents of one home that polls."""

    def __init__(self) -> None:
        self.spoken = Spoken()
        self._changed = Condition()
        self._made_at = monotonic()
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._processes: dict[str, _Process] = {}

    def ask(self, question: Question, answers: Answers) -> list[str]:
        """Take a question with its answers; return the agents that were away before."""
        with self._changed:
            came = self._note(question)
            for key, text in answers:
                if (waiting := self._waiting.get(key)) is None:
                    continue
                try:
                    waiting.answer = read_answer(text, waiting.parcel)
                except InvalidParcel:  # to a parcel that was given up in between
                    continue
            pending, agents = set(question.pending), set(question.agents)
            for key, waiting in self._waiting.items():
                if waiting.answer is None and key[1] in agents and key not in pending:
                    waiting.taken = False
            self._changed.notify_all()
            return came

    def _note(self, question: Question) -> list[str]:
        there = Counter(
            name for each in self._processes.values() if each.is_there() for name in each.agents
        )
        now = monotonic()
        for token, each in [*self._processes.items()]:
            if not each.wakes and now - each.asked_at > FORGOTTEN:
                del self._processes[token]
        found = self._processes.setdefault(question.process, _Process())
        found.agents, found.asked_at = frozenset(question.agents), now
        return [name for name in question.agents if not there[name]]

    def hold(self, question: Question, wake: Callable[[], object]) -> list[Parcel]:
        """Return the waiting parcels for a process; if there is none, hold its question."""
        with self._changed:
            parcels = self._take(question.process)
            if not parcels:
                self._processes[question.process].wakes.append(wake)
            return parcels

    def let_go(self, question: Question, wake: Callable[[], object]) -> list[Parcel]:
        """Stop holding a question, and return the waiting parcels."""
        with self._changed:
            found = self._processes[question.process]
            found.asked_at = monotonic()
            found.wakes.remove(wake)
            return self._take(question.process)

    def _take(self, process: str) -> list[Parcel]:
        found, size = list[Parcel](), 0
        agents = self._processes[process].agents
        for (_, recipient), waiting in self._waiting.items():
            if waiting.taken or waiting.answer is not None or recipient not in agents:
                continue
            if len(found) == BATCH or size > BATCH_BYTES:
                break
            waiting.taken = True
            found.append(waiting.parcel)
            size += wire.encoded_size(waiting.parcel)
        return found

    def push(self, parcel: Parcel, seconds: float) -> Answer:
        """Make a parcel wait for the home, and return its answer; raise Unreachable."""
        key, recipient = (parcel.sender, parcel.recipient), parcel.recipient
        with self._changed:
            if not self._changed.wait_for(lambda: self._askers(recipient), self._patience()):
                raise Unreachable(f"no process of its home is polling for {recipient}")
            waiting = self._waiting[key] = _Waiting(parcel)
            try:
                self._wake(recipient)
                self._changed.wait_for(lambda: waiting.answer is not None, seconds)
            finally:
                if self._waiting.get(key) is waiting:
                    del self._waiting[key]
            match waiting.answer:
                case None:
                    msg = f"{recipient} took no parcel, or sent no answer, within {seconds:g} s"
                    raise Unreachable(msg)
                case DeliveryError():
                    raise waiting.answer
            return waiting.answer

    def _askers(self, recipient: str) -> list[_Process]:
        every = self._processes.values()
        return [each for each in every if recipient in each.agents and each.is_there()]

    def _patience(self) -> float:
        """Return the seconds for which a push waits for a question: after a start some are due."""
        return max(0.0, GONE - (monotonic() - self._made_at))

    def _wake(self, recipient: str) -> None:
        for process in self._askers(recipient):
            if process.wakes:
                process.wakes[-1]()  # the newest: an older one may have lost its caller
                return

    def give_up(self, sender: str) -> None:
        """End the pushes of an agent."""
        with self._changed:
            for (each, _), waiting in self._waiting.items():
                if each == sender and waiting.answer is None:
                    waiting.answer = Unreachable(f"{sender} is no longer served here")
            self._changed.notify_all()
