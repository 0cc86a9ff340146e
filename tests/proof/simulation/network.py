"""The network of one simulated world: loses, doubles, delays, damages and reorders parcels."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from tests.proof.simulation.fault_plan import Weather
from tests.proof.simulation.history import History, Push
from tests.proof.simulation.process import SCHEME, Died, Process

from onceward.core.deliver.transport import Features
from onceward.errors import OncewardError, ParcelTooLarge, Refused, Unreachable
from onceward.message.parcel import Answer, Parcel, ParcelFrame, encoded_size
from onceward.message.vocabulary import FOUND, LOST

T = TypeVar("T")
NOBODY: Final = "no receiver is there"
DIED: Final = "it died over it"
LATE_MAX: Final = 12
"""How many parcels may be under way; the oldest is lost to make room."""


class Scene(Protocol):
    """The world, as the network needs it."""

    rng: random.Random
    weather: Weather
    history: History

    def note(self, *facts: object) -> None:
        """Add a fact to the story."""
        ...

    def meanwhile(self) -> None:
        """Let others act."""
        ...

    def reached(self, name: str) -> Process | None:
        """Return a process that takes a parcel for an agent."""
        ...

    def enter(self, process: Process, work: Callable[[], T]) -> T:
        """Let a process do something; raises Died."""
        ...


class Network:
    """Carries parcels between processes of one world."""

    def __init__(self, world: Scene) -> None:
        self._world = world
        self.cut: set[frozenset[str]] = set()
        """Pairs of agents that cannot reach each other now."""
        self.late: list[Parcel] = []
        """Parcels that are still under way."""
        self.fates: dict[str, list[str]] = {}
        """By recipient: what befalls the next parcels to it, in any weather."""

    def port(self, process: Process) -> Port:
        """Return the transport of one process."""
        return Port(self, process)

    def push(self, process: Process, parcel: Parcel) -> Answer:
        """Carry a parcel of *process*, with all that befalls it; raises as transports may."""
        world = self._world
        world.meanwhile()
        fate = self._fate(parcel)
        world.note("push", process.agent, parcel.recipient, parcel.number, len(parcel.frames), fate)
        answer: Answer | None = None
        try:
            answer = self._suffer(fate, parcel)
        finally:
            world.history.pushed(Push(parcel, fate, answer))
            world.meanwhile()
        return answer

    def _fate(self, parcel: Parcel) -> str:
        if frozenset((parcel.sender, parcel.recipient)) in self.cut:
            return "drop"
        if parcel.frames and self.fates.get(parcel.recipient):
            return self.fates[parcel.recipient].pop(0)
        for name, rate in self._world.weather.ways.items():
            if self._world.rng.random() < rate:
                return name
        return "arrive"

    def _suffer(self, fate: str, parcel: Parcel) -> Answer:
        match fate:
            case "drop":
                raise _silence(fate)
            case "delay":
                self.late = [*self.late, parcel][-LATE_MAX:]
                raise _silence(fate)
            case "lose":
                self.hand_over(parcel)
                raise _silence(fate)
            case "refuse":
                msg = "the peer refuses it, as the weather has it"
                raise Refused(msg)
            case "refuse" if len(parcel.frames) > 1 and parcel.number % 2:
                msg = "the parcel is too large, as the weather has it"
                raise ParcelTooLarge(msg, limit=encoded_size(parcel) - 1)
            case "corrupt":
                return self.hand_over(self._damaged(parcel))
            case "twice":
                self.hand_over(parcel)
        return self.hand_over(parcel)

    def hand_over(self, parcel: Parcel) -> Answer:
        """Give a parcel to a process of its recipient; raise Unreachable where none takes it."""
        world = self._world
        process = world.reached(parcel.recipient)
        if process is None:
            raise _silence(NOBODY)
        if process.engines is not None and process.engines.may_take and len(parcel.frames) == 1:
            [frame] = parcel.frames
            world.history.offered.add((parcel.recipient, parcel.sender, frame.id))
        world.history.offered |= {
            (parcel.recipient, parcel.sender, frame.id)
            for frame in parcel.frames
            if f'"{LOST}"' in frame.text or f'"{FOUND}"' in frame.text
        }
        try:
            answer = world.enter(process, lambda: process.box.accept(parcel))
        except Died:
            raise _silence(DIED) from None
        except OncewardError as error:
            raise _silence(repr(error)) from error
        if process.engines is not None:
            world.history.reached["handled on arrival"] += process.engines.handled_on_arrival
            process.engines.handled_on_arrival = 0
        world.note(
            "answer",
            parcel.recipient,
            parcel.sender,
            answer.verdict,
            [(r.state, r.reason) for r in answer.receipts],
        )
        return answer

    def arrive_late(self) -> None:
        """Let a parcel arrive late; its answer is no longer awaited."""
        if not self.late:
            return
        parcel = self.late.pop(self._world.rng.randrange(len(self.late)))
        answer: Answer | None = None
        try:
            answer = self.hand_over(parcel)
        except Unreachable:
            return
        finally:
            self._world.history.pushed(Push(parcel, "late", answer))

    def _damaged(self, parcel: Parcel) -> Parcel:
        if not parcel.frames:
            return parcel
        rng = self._world.rng
        at = rng.randrange(len(parcel.frames))
        frames = list(parcel.frames)
        frames[at] = _flipped(frames[at], rng.randrange(len(frames[at].text)))
        return replace(parcel, frames=tuple(frames))


class Port:
    """The network as one process's transport."""

    features = Features(schemes=frozenset({SCHEME}))

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Carry a parcel; raises Unreachable and Refused as every transport may."""
        del url
        return self._network.push(self._process, parcel)

    def close(self) -> None:
        """Nothing is held."""


def _silence(why: str) -> Unreachable:
    return Unreachable(f"no answer: {why}")


def _flipped(carried: ParcelFrame, at: int) -> ParcelFrame:
    text = carried.text
    return carried._replace(text=f"{text[:at]}{chr(ord(text[at]) ^ 1)}{text[at + 1 :]}")
