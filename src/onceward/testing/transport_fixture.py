"""Test a line: a postbox that sends, a far end that receives, a transport between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from onceward.api.agent import Agent
from onceward.api.postbox import Postbox
from onceward.core.deliver.transport import Accept, Transport, TransportContext
from onceward.errors import Unreachable
from onceward.message.body import decode
from onceward.message.clock import SystemClock
from onceward.message.frame import Frame
from onceward.message.parcel import Answer, Parcel, Receipt
from onceward.message.record import MessageRecord
from onceward.message.settings import Controls, Settings
from onceward.testing.builders import build_frame
from onceward.testing.clock import ManualClock
from onceward.testing.faults import Fault, FaultyTransport
from onceward.testing.wire import SCHEME, Wire, acceptor

NEAR: Final = "near"
FAR: Final = "far"
MAX_BODY: Final = 64 << 10
MAX_INBOX: Final = 1000
DELIVER_TIMEOUT: Final = 30.0
LIMITS: Final = Settings(max_body=MAX_BODY, max_inbox=MAX_INBOX, delivery_retry="±0%")
"""Settings of the far end, with limits that a test can reach."""
EVERYTHING: Final = 1_000_000
Answered = Answer | Exception | Callable[[Parcel], Answer]


def from_near(body: object) -> Frame:
    """Return a frame of the near end for the far end."""
    return build_frame(body, sender=NEAR, recipient=FAR)


def stored(parcel: Parcel) -> Answer:
    """Answer that all frames of a parcel are stored."""
    receipts = tuple(Receipt(frame.id, "stored") for frame in parcel.frames)
    return Answer(verdict="accepted", receipts=receipts)


class Inbox:
    """Accepts parcels: as the answers say, then as usual."""

    def __init__(self, usual: Accept = stored) -> None:
        self._usual = usual
        self.arrivals: list[Parcel] = []
        """Parcels that ``accept`` was called with, in order."""
        self.answers: list[Answered] = []
        """Answers and errors of the next calls of ``accept``, instead of the usual ones."""

    def accept(self, parcel: Parcel) -> Answer:
        """Keep a parcel once and answer after the commit; used by transports with streams."""
        self.arrivals.append(parcel)
        said = self.answers.pop(0) if self.answers else self._usual
        if isinstance(said, Exception):
            raise said
        return said(parcel) if callable(said) else said


class FarEnd(Inbox):
    """
    The far end: give one of its two receivers to the transport that you create.

    ``accept(parcel)`` is the inbox of a real postbox, ``take(frames)`` a plain
    function that keeps frame ids, as the contract of such functions asks.
    """

    def __init__(
        self, path: Path, clock: ManualClock, near: Accept, deliver_timeout: float
    ) -> None:
        self.agent, self.path = FAR, path
        self.context = TransportContext(
            agent=NEAR,
            folder=path.parent,
            settings=Settings(deliver_timeout=deliver_timeout),
            clock=SystemClock(),
        )
        """The context for a factory of the near end's transport."""
        wire = Wire({NEAR: near})
        self.postbox = Postbox(
            path,
            agent=Agent(FAR),
            start=False,
            testing=Controls(clock=clock),
            settings=LIMITS,
            transports={SCHEME: wire},
        )
        self.postbox.peers.add(NEAR, f"{SCHEME}:{NEAR}")
        self.at_the_end = ExitStack()
        """Takes what the transport needs closed: ``far.at_the_end.callback(listener.close)``."""
        self.silent: list[Any] = []
        """Bodies that ``take`` neither keeps nor mentions."""
        self.seen: list[Any] = []
        """Bodies that ``take`` has kept, in order."""
        self.handled: list[Any] = []
        """Bodies that were handled, in order: effects, that is."""
        self._known: set[str] = set()
        super().__init__(acceptor(self.postbox, LIMITS))
        self.at_the_end.callback(self.postbox.close)

    def take(self, frames: list[Frame]) -> dict[str, Receipt]:
        """Keep frames once and answer for each; used by function transports."""
        return {frame.id: self._take(frame) for frame in frames if _plain(frame) not in self.silent}

    def _take(self, frame: Frame) -> Receipt:
        if frame.id not in self._known:
            self._known.add(frame.id)
            self.seen.append(_plain(frame))
        return Receipt(frame.id, "processed")

    def handle(self) -> list[Any]:
        """Handle all that waits; return the bodies handled so far, in order."""
        while (message := self.postbox.receive()) is not None:
            with message:
                self.handled.append(message.body)
        return self.handled

    @property
    def kept(self) -> list[Any]:
        """Bodies that the inbox has kept, in order of their sending."""
        return [_plain(past.frame) for past in _past(self.postbox, "in")]


@dataclass(slots=True)
class Line:
    """The objects of a conformance test."""

    near: Postbox
    far: FarEnd
    transport: Transport
    """The transport under test, without faults: for pushing parcels by hand."""
    url: str
    clock: ManualClock
    script: list[Fault] = field(default_factory=list)
    """Faults of the next deliveries of the near postbox."""

    def push(self, parcel: Parcel) -> Answer:
        """Push a parcel by hand, without faults."""
        return self.transport.deliver(self.url, parcel)

    def turn(self, rounds: int = 1, seconds: float = 61.0) -> None:
        """Pass the longest backoff or deadline *rounds* times; run both ends each time."""
        for _ in range(rounds):
            self.clock.advance(seconds)
            self.run()

    def run(self) -> None:
        """Run both ends until nothing is due."""
        self.near.run_until_idle()
        self.far.handle()
        self.far.postbox.run_until_idle()
        self.near.run_until_idle()

    def arrived(self) -> list[Any]:
        """Return the bodies that took effect at the far end, in order."""
        return self.far.handle() if self.transport.features.streams else self.far.seen

    def wrong(self) -> list[str]:
        """Return which invariants of both files, and between them, do not hold."""
        found = [
            f"{box.agent}: {v.invariant} {v.rule}: {v.offender}"
            for box in (self.near, self.far.postbox)
            for v in box.file.check()
        ]
        return found + [
            f"{body!r} was acknowledged, and the far end does not have it" for body in self._lost()
        ]

    def _lost(self) -> list[Any]:
        there = self.far.kept if self.transport.features.streams else self.far.seen
        past = _past(self.near, "out")
        return [
            body
            for body in (_plain(p.frame) for p in past if p.state in {"sent", "acked"})
            if body not in there
        ]


@contextmanager
def open_line(
    folder: Path,
    make: Callable[[FarEnd], tuple[Transport, str]],
    *,
    deliver_timeout: float = DELIVER_TIMEOUT,
) -> Iterator[Line]:
    """Open both ends in *folder* with the transport that *make* returns between them."""
    clock, acceptors, script = ManualClock(), list[Accept](), list[Fault]()
    with ExitStack() as stack:
        far = FarEnd(folder / f"{FAR}.db", clock, _late(acceptors), deliver_timeout)
        stack.enter_context(far.at_the_end)
        transport, url = make(far)
        faulty = FaultyTransport(
            transport, iter(lambda: script.pop(0) if script else Fault.NONE, None)
        )
        near = stack.enter_context(
            Postbox(
                folder / f"{NEAR}.db",
                agent=NEAR,
                start=False,
                testing=Controls(clock=clock),
                transports={url.partition(":")[0]: faulty},
                delivery_retry="±0%",
            )
        )
        near.peers.add(FAR, url)
        acceptors.append(acceptor(near, Settings()))
        yield Line(near, far, transport, url, clock, script)


def _late(acceptors: list[Accept]) -> Accept:
    """Return the function that will be the first of *acceptors*, once it is there."""

    def accept(parcel: Parcel) -> Answer:
        if not acceptors:
            raise Unreachable(f"{NEAR} is not open yet")
        return acceptors[0](parcel)

    return accept


def _past(box: Postbox, side: str) -> list[MessageRecord]:
    return [past for past in reversed(box.history(limit=EVERYTHING).messages) if past.box == side]


def _plain(frame: Frame) -> Any:
    return decode(frame.data, frame.data_base64, None)
