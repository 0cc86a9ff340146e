"""
Test the contract of listeners; the author of a listener inherits the suite.

    class TestMine(ListenerConformance):
        def make(self, context):
            return MyListener(port=0)

        def way(self, listener, context, name):
            return MyTransport(context), f"mine:{listener.port}/{name}"
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from typing import Final

import pytest

from onceward.core.deliver.transport import Listener, Transport, TransportContext
from onceward.errors import Busy, Refused, StoreClosed, Unreachable
from onceward.message.clock import SystemClock
from onceward.message.parcel import Answer, Parcel, Receipt
from onceward.message.settings import Settings
from onceward.testing.builders import build_frame, parcel
from onceward.testing.transport_fixture import Inbox, stored
from onceward.testing.wire_conformance import END_WITHIN, answered, trouble

SENDERS: Final = ("ann", "ben", "cat")
AGENTS: Final = ("far", "other")


class Ends:
    """A listener with its agents, and the ways of several senders to them."""

    def __init__(self, suite: ListenerConformance, folder: Path) -> None:
        self._suite, self._folder = suite, folder
        self.inboxes = {name: Inbox() for name in AGENTS}
        self.stack = ExitStack()
        self.listener = suite.make(self.context(AGENTS[0]))
        self.stack.callback(self.listener.close)
        for name, inbox in self.inboxes.items():
            self.listener.listen(name, inbox.accept)
        self._ways: dict[tuple[str, str], tuple[Transport, str]] = {}

    def context(self, agent: str, deliver_timeout: float = 30.0) -> TransportContext:
        """Return what factories are given; all agents live in folders of their own."""
        folder = self._folder / ("here" if agent in AGENTS else agent)
        folder.mkdir(exist_ok=True)
        return TransportContext(
            agent=agent,
            folder=folder,
            settings=Settings(deliver_timeout=deliver_timeout),
            clock=SystemClock(),
        )

    def push(self, name: str = AGENTS[0], sender: str = SENDERS[0], number: int = 1) -> Answer:
        """Push a parcel with one frame from a sender to an agent."""
        transport, url = self.way(name, sender)
        frame = build_frame(sender, sender=sender, recipient=name)
        return transport.deliver(url, parcel(number, [frame], sender=sender, recipient=name))

    def way(self, name: str, sender: str, deliver_timeout: float = 30.0) -> tuple[Transport, str]:
        """Return transport and url by which a sender reaches an agent."""
        if (name, sender) not in self._ways:
            context = self.context(sender, deliver_timeout)
            self._ways[name, sender] = made = self._suite.way(self.listener, context, name)
            self.stack.callback(made[0].close)
        return self._ways[name, sender]


class ListenerConformance:
    """Subclass it under a name that pytest collects, and define how to create your listener."""

    def make(self, context: TransportContext) -> Listener:
        """Return your listener for agents in the context's folder."""
        raise NotImplementedError

    def way(
        self, listener: Listener, context: TransportContext, name: str
    ) -> tuple[Transport, str]:
        """
        Return the transport of a sender and the url at which the listener takes parcels for *name*.

        The context is the sender's, whose home is another folder; make keys that both need.
        """
        raise NotImplementedError

    @pytest.fixture
    def ends(self, tmp_path: Path) -> Iterator[Ends]:
        """The listener, open for two agents; it is closed at the end."""
        ends = Ends(self, tmp_path)
        with ends.stack:
            yield ends

    def test_a_parcel_reaches_the_agent_that_it_is_for(self, ends: Ends) -> None:
        """Agents of one listener each get their own parcels, and nothing of others."""
        for name in AGENTS:
            ends.push(name)

        arrived = {name: inbox.arrivals for name, inbox in ends.inboxes.items()}
        assert {name: [name] for name in AGENTS} == {
            name: [pushed.recipient for pushed in parcels] for name, parcels in arrived.items()
        }

    def test_the_answer_is_the_agents_own(self, ends: Ends) -> None:
        """The sender gets the answer that ``accept`` returns, of any verdict."""
        frame = build_frame(1, sender=SENDERS[0], recipient=AGENTS[0])
        pushed = parcel(1, [frame], sender=SENDERS[0], recipient=AGENTS[0])
        receipts = (Receipt(frame.id, "dead", "rejected: no"),)
        given = [
            Answer(verdict="duplicate", receipts=receipts, durability="fast"),
            Answer(verdict="fork", epoch="e", number=7),
            Answer(verdict="busy", retry_after=1500),
        ]
        ends.inboxes[AGENTS[0]].answers += given
        transport, url = ends.way(AGENTS[0], SENDERS[0])

        assert given == [
            transport.deliver(url, replace(pushed, number=number)) for number in (1, 2, 3)
        ]

    def test_senders_do_not_wait_for_each_other(self, ends: Ends) -> None:
        """While ``accept`` works for one sender it is called for others; each gets its answer."""
        together = Barrier(len(SENDERS), timeout=END_WITHIN)

        def meet(pushed: Parcel) -> Answer:
            together.wait()
            return stored(pushed)

        ends.inboxes[AGENTS[0]].answers += [meet] * len(SENDERS)
        for sender in SENDERS:
            ends.way(AGENTS[0], sender)

        with ThreadPoolExecutor(len(SENDERS)) as pool:
            answers = list(pool.map(lambda sender: ends.push(AGENTS[0], sender), SENDERS))

        arrived = {p.sender: p.last_id for p in ends.inboxes[AGENTS[0]].arrivals}
        assert [[arrived[sender]] for sender in SENDERS] == [
            [receipt.id for receipt in answer.receipts] for answer in answers
        ]

    def test_a_refusal_reaches_the_sender(self, ends: Ends) -> None:
        """Refused of ``accept`` is Refused for the sender; the next parcel is answered."""
        ends.inboxes[AGENTS[0]].answers.append(Refused("not for this inbox"))

        with pytest.raises(Refused, match="not for this inbox"):
            ends.push()
        assert "accepted" == ends.push().verdict

    @pytest.mark.parametrize(
        "error",
        [Unreachable("damaged"), Busy("others write"), StoreClosed("closed"), ValueError("a bug")],
        ids=lambda error: type(error).__name__,
    )
    def test_trouble_of_the_agent_refuses_nothing(self, ends: Ends, error: Exception) -> None:
        """Any other error of ``accept`` ends no message, and the listener goes on."""
        ends.inboxes[AGENTS[0]].answers.append(error)

        assert trouble(ends.push)
        assert answered(ends.push)

    def test_nothing_is_taken_after_close(self, ends: Ends) -> None:
        """A parcel that comes after ``close`` is not passed on; its sender keeps it."""
        ends.way(AGENTS[0], SENDERS[0], deliver_timeout=2.0)
        ends.push()
        ends.listener.close()

        with pytest.raises(Unreachable):
            ends.push(number=2)
        assert [1] == [pushed.number for pushed in ends.inboxes[AGENTS[0]].arrivals]

    def test_close_waits_for_what_was_begun(self, ends: Ends) -> None:
        """``close`` returns after the calls of ``accept`` that were under way have returned."""
        begun, go, order = Event(), Event(), list[str]()

        def slow(pushed: Parcel) -> Answer:
            begun.set()
            go.wait(END_WITHIN)
            order.append("accepted")
            return stored(pushed)

        def close() -> None:
            ends.listener.close()
            order.append("closed")

        ends.inboxes[AGENTS[0]].answers.append(slow)
        pool = ThreadPoolExecutor(2)
        try:
            push = pool.submit(ends.push)
            assert begun.wait(END_WITHIN)
            closing = pool.submit(close)
            assert not closing.done()
            go.set()
            closing.result(END_WITHIN)
            push.exception(END_WITHIN)
        finally:
            go.set()
            pool.shutdown(wait=False)

        assert ["accepted", "closed"] == order

    def test_close_twice(self, ends: Ends) -> None:
        """Closing again does nothing; a listener that never listened closes, too."""
        ends.push()
        ends.listener.close()
        ends.listener.close()

        self.make(ends.context(AGENTS[0])).close()
