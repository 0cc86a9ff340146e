"""
Carry parcels to agents that cannot be called: they poll, and their next poll has the answer.

The sender waits in its process for the peer's poll, which ``HttpEndpoint`` receives. The peer's
side is a listener that polls, by the signed requests of ``HttpTransport``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, Final

from onceward.core.deliver.transport import Accept, Features, TransportContext
from onceward.errors import (
    DeliveryError,
    InvalidArgument,
    InvalidParcel,
    ParcelTooLarge,
    Unreachable,
    UnsupportedVersion,
)
from onceward.file import forks
from onceward.message import wire
from onceward.message.clock import Millis, iso, monotonic
from onceward.message.log import Level, log
from onceward.message.names import POLL
from onceward.message.parcel import Answer, Parcel, in_version
from onceward.message.protocol import Speaks, Spoken
from onceward.message.wire import Notice, NoticeKind, encode_notice
from onceward.transports.network.home_desk import HomeDesk
from onceward.transports.network.peer_busy import PeerBusy
from onceward.transports.network.poll_answers import HOLD, PAUSES, answered, read_answer
from onceward.transports.network.poll_marks import OF_HOMES, read_mark

if TYPE_CHECKING:
    from onceward.transports.network.http import HttpTransport

LATELY: Final = 2 * HOLD
"""Seconds after its last poll after which a ping reports a peer as away."""
GONE: Final = 5.0
"""Seconds after its last poll after which a peer counts as gone."""


@dataclass(slots=True, eq=False)
class Place:
    """The parcel that waits for one peer, the peer's answer to it, and its poll."""

    changed: Condition = field(default_factory=Condition)
    parcel: Parcel | None = None
    answer: Answer | DeliveryError | None = None
    wake: Callable[[], object] | None = None
    """Wakes the held poll; None if there is none."""
    asked_at: float = field(default_factory=monotonic)
    """When it polled last; a new desk waits for the first poll."""
    asked: bool = False
    spoken: Spoken = field(default_factory=Spoken)
    """The statement in the peer's last poll."""

    def ask(self, answer: bytes) -> bool:
        """
        Accept the peer's poll, with its answer to the waiting parcel.

        Return whether the peer was away before.
        """
        with self.changed:
            away = not self.asked or (self.wake is None and self._gone_in() <= 0)
            self._note()
            if self.parcel is None or not answer:
                return away
            try:
                self.answer = read_answer(answer, self.parcel)
            except InvalidParcel:  # to a parcel that was given up in between
                return away
            self.parcel = None
            self.changed.notify_all()
            return away

    def _gone_in(self) -> float:
        """Return the seconds after which the peer counts as gone."""
        return GONE - (monotonic() - self.asked_at)

    def _note(self) -> None:
        self.asked_at, self.asked = monotonic(), True
        self.changed.notify_all()

    def hold(self, wake: Callable[[], object]) -> Parcel | None:
        """Return the waiting parcel; if there is none, hold the poll."""
        with self.changed:
            self._note()
            self.wake = None if self.parcel is not None else wake
            return self.parcel

    def let_go(self, wake: Callable[[], object]) -> Parcel | None:
        """Stop holding that poll and return the waiting parcel; keep a newer poll."""
        with self.changed:
            if self.wake is not wake:
                return None
            self._note()
            self.wake = None
            return self.parcel

    def push(self, parcel: Parcel, seconds: float) -> Answer:
        """Make a parcel wait for the peer, and return its answer; raise Unreachable."""
        with self.changed:
            left = self._gone_in()
            if self.wake is None and not self.changed.wait_for(lambda: self.asked, left):
                left = 0.0
            if self.wake is None and left <= 0:
                raise Unreachable(f"{parcel.recipient} is not polling for its parcels")
            self.parcel, self.answer = parcel, None
            if self.wake is not None:
                self.wake()
            answered = self.changed.wait_for(lambda: self.parcel is not parcel, seconds)
            self.parcel = None if not answered else self.parcel
            if self.answer is None or not answered:
                msg = f"{parcel.recipient} took no parcel, or sent no answer, within {seconds:g} s"
                raise Unreachable(msg)
            if isinstance(self.answer, DeliveryError):
                raise self.answer
            return self.answer

    def give_up(self) -> None:
        """End the waiting push and the held poll."""
        with self.changed:
            if self.wake is not None:
                self.wake()
            self.parcel = self.answer = None
            self.changed.notify_all()


class Desks:
    """The desks of all agents of this process, by home, agent and peer."""

    def __init__(self) -> None:
        self._places: dict[tuple[Path, str, str], Place] = {}
        self._homes: dict[tuple[Path, str], HomeDesk] = {}
        self._lock = forks.new_lock()
        self.agents = Counter[tuple[Path, str]]()
        """The endpoints of this process that accept polls, by home and agent."""

    def serve(self, home: Path, agent: str, more: int) -> None:
        """Count one endpoint more, or less, that accepts polls for an agent."""
        with self._lock:
            self.agents[home.resolve(), agent] += more

    def place(self, home: Path, agent: str, peer: str) -> Place:
        """Return the desk at which a peer polls an agent."""
        with self._lock:
            return self._places.setdefault((home.resolve(), agent, peer), Place())

    def home(self, home: Path, other: str) -> HomeDesk:
        """Return the desk at which another home polls the agents of a home."""
        with self._lock:
            return self._homes.setdefault((home.resolve(), other), HomeDesk())

    def give_up(self, home: Path, agent: str) -> None:
        """End the pushes of an agent."""
        with self._lock:
            desks = [at for key, at in self._homes.items() if key[0] == home.resolve()]
            places = [at for key, at in self._places.items() if key[:2] == (home.resolve(), agent)]
        for place in places:
            place.give_up()
        for desk in desks:
            desk.give_up(agent)


desks: Final = Desks()


class PollTransport:
    """
    Deliver to peers that poll an endpoint of this process for their parcels; url ``poll:``.

    The agents of a known home that polls have the url ``poll:HOME``: one question of each of its
    processes gets the parcels for all of them.
    """

    features = Features(schemes=frozenset({"poll"}), max_bytes=8 << 20, network=True)

    def __init__(self, context: TransportContext) -> None:
        self._context = context
        self._desk = context.folder.resolve(), context.agent

    def here(self) -> bool:
        """Return whether peers poll this process for the parcels of the agent."""
        return desks.agents[self._desk] > 0

    def check(self, url: str) -> None:
        """Raise InvalidArgument unless *url* is ``poll:``, alone."""
        if url != POLL:
            msg = f"{url!r}: the url of a polling peer is {POLL}, without an address"
            raise InvalidArgument(msg)

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Wait for the peer's poll and return its answer.

        Raises:
            Unreachable: the peer does not poll, or sent no answer within ``deliver_timeout``.
            Refused: the peer's signed answer says that it will never accept the parcel.
            ParcelTooLarge: the parcel exceeds ``features.max_bytes``.
            UnsupportedVersion: one side must be upgraded before.

        """
        if wire.encoded_size(parcel) > self.features.max_bytes:
            msg = f"at most {self.features.max_bytes} bytes travel at once"
            raise ParcelTooLarge(msg, limit=self.features.max_bytes)
        if url != POLL:
            desk = desks.home(self._context.folder, url.removeprefix(POLL))
            parcel = in_version(parcel, desk.spoken.version(parcel.recipient))
            return desk.push(parcel, self._context.settings.deliver_timeout)
        place = desks.place(self._context.folder, parcel.sender, parcel.recipient)
        parcel = in_version(parcel, place.spoken.version(parcel.recipient))
        return place.push(parcel, self._context.settings.deliver_timeout)

    def ping(self, url: str, peer: str) -> Millis:
        """
        Return how far the peer's clock was ahead of ours at its last poll.

        Raises:
            Unreachable: it has not polled recently; the error says what to check.

        """
        agent, now = self._context.agent, self._context.clock.now()
        home = url.removeprefix(POLL)
        asked = (OF_HOMES, home) if home else (agent, peer)
        mark = read_mark(self._context.folder, *asked)
        if mark is not None and now - mark.at <= 1000 * LATELY:
            return mark.ahead
        since = "yet" if mark is None else f"since {iso(mark.at)}"
        raise Unreachable(
            f"{peer} has not polled for its parcels {since}: {agent} must listen (onceward serve "
            f"--listen), and {peer} must poll (onceward work --ask {agent}); there, onceward "
            f"peers ping {agent} says what is wrong"
        )

    def speaks(self, peer: str) -> Speaks | None:
        """Return what a peer said with its last poll of this process."""
        place = desks.place(self._context.folder, self._context.agent, peer)
        return place.spoken.said(peer)

    def close(self) -> None:
        """End the pushes of this agent. Safe to call twice."""
        desks.give_up(self._context.folder, self._context.agent)


class PollListener:
    """
    Poll the agent *peer* of the home at *url* for its parcels, as a listener of a postbox.

    For machines that no other can call. The peer registers this agent at the url ``poll:``; the
    peer's listening process delivers.
    """

    def __init__(self, url: str, peer: str) -> None:
        self._url, self._peer = url, peer

    def __call__(self, context: TransportContext) -> Asking:
        """Return the listener of one postbox."""
        return Asking(self._url, self._peer, context)


class Asking:
    """Polls on its own thread, one request after another."""

    def __init__(self, url: str, peer: str, context: TransportContext) -> None:
        from onceward.transports.network.http import HttpTransport  # noqa: PLC0415 - an extra

        self._url, self._peer, self._context = url, peer, context
        self._http: HttpTransport = HttpTransport(context)
        self._http.check(url)
        self._stopping = Event()
        self._threads: list[Thread] = []

    def listen(self, name: str, accept: Accept) -> None:
        """Pass parcels for *name* to *accept*."""
        thread = Thread(
            target=self._ask_on, args=(name, accept), name=f"onceward-poll-{name}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Stop polling; wait for running calls. Safe to call twice."""
        self._stopping.set()
        self._http.close()
        while self._threads:
            self._threads.pop().join()

    def _ask_on(self, name: str, accept: Accept) -> None:
        answer, pause = b"", PAUSES[0]
        level: Level = "warning"
        while not self._stopping.is_set():
            try:
                answer = self._ask(name, accept, answer)
                pause, level = PAUSES[0], "warning"
            except PeerBusy as error:
                self._note(level if error.after >= PAUSES[0] else "debug", error, name)
                level = "debug"
                self._stopping.wait(error.after)
            except Exception as error:  # noqa: BLE001 - the thread survives every error
                self._note(level, error, name)
                answer, level = b"", "debug"
                self._stopping.wait(pause)
                pause = min(2 * pause, PAUSES[1])

    def _note(self, level: Level, error: Exception, name: str) -> None:
        if not self._stopping.is_set():
            log.failure(level, "polling failed", error, agent=name, peer=self._peer)

    def _ask(self, name: str, accept: Accept, answer: bytes) -> bytes:
        """Poll once, with the last answer; return the answer to the received parcel."""
        hold = min(HOLD, self._context.settings.deliver_timeout / 2)
        question = Notice(
            kind="collect",
            sender=name,
            recipient=self._peer,
            at=self._context.clock.now(),
            limit=round(1000 * hold),
        )
        body = encode_notice(question) + b"\n" + answer
        found = self._http.collect(self._url, name, self._peer, body)
        if not found.startswith(b"["):
            return b""
        try:
            parcel = wire.decode_parcel(found)
        except UnsupportedVersion as error:
            log.failure("warning", "parcel not read", error, agent=name, peer=self._peer)
            return self._told("unread", name, 0, str(error))
        if (parcel.sender, parcel.recipient) != (self._peer, name):
            raise InvalidParcel(f"the parcel is of {parcel.sender} for {parcel.recipient}")
        return answered(accept, parcel)

    def _told(self, kind: NoticeKind, name: str, number: int, detail: str) -> bytes:
        """Return the notice that a parcel was not accepted; it names the parcel by its number."""
        told = Notice(kind=kind, sender=name, recipient=self._peer, at=number, detail=detail)
        return encode_notice(told)
