"""
Test the contract of transports; the author of a transport inherits the suite.

    class TestMine(TransportConformance):
        def make(self, far):
            server = far.at_the_end.enter_context(MyServer(far.accept))
            return MyTransport(far.context), f"mine:{server.port}"

``transport.features`` selects the tests: a network transport must end its pushes at
``deliver_timeout`` of ``far.context.settings``, and at ``close``. After each test the invariants of
both files are checked, and that the far end has all acknowledged messages. ``ListenerConformance``
is the suite of the other half.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onceward.core.deliver.transport import Transport
from onceward.errors import Unreachable
from onceward.message.parcel import Receipt
from onceward.testing.builders import build_frame, parcel, spell
from onceward.testing.faults import HARMLESS, Fault
from onceward.testing.transport_fixture import (
    FAR,
    MAX_BODY,
    MAX_INBOX,
    NEAR,
    FarEnd,
    Line,
    from_near,
    open_line,
)
from onceward.testing.wire_conformance import WireConformance

MANY = 20
ODD_TEXTS = (
    "",
    " ",
    "ä€𝄞",
    "👩‍👩‍👧",
    "\u2028\u2029",
    "\x00\x1f\x7f",
    '"\\/\n\r\t',
    "\ufeffbom",
    "a" * 5000,
)
ODD_BYTES = (b"", bytes(range(256)), b"\xff\xfe", b"\x00" * 1000)


class TransportConformance(WireConformance):
    """Subclass it under a name that pytest collects, and define how to create your transport."""

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Return your transport and the url at which it calls *far*: ``accept`` or ``take``."""
        raise NotImplementedError

    def nowhere(self, far: FarEnd) -> str | None:
        """Return a url of yours without a receiver; None if a transport cannot know."""
        del far
        return None

    @pytest.fixture
    def line(self, tmp_path: Path) -> Iterator[Line]:
        """Both ends, open, with the transport between them; invariants are checked at the end."""
        with open_line(tmp_path, self.make) as line:
            yield line
            assert [] == line.wrong()

    @pytest.fixture
    def stream(self, line: Line) -> Line:
        """The line of a transport whose far end checks parcel numbers."""
        if not line.transport.features.streams:
            pytest.skip("its far end is a plain function: parcels have no numbers there")
        return line

    @pytest.fixture
    def function(self, line: Line) -> Line:
        """The line of a transport whose far end is a plain function."""
        if line.transport.features.streams:
            pytest.skip("its far end is an inbox, which takes a parcel whole or not at all")
        return line

    # -- the contract, parcel by parcel -------------------------------------------------------

    def test_each_frame_gets_its_receipt(self, line: Line) -> None:
        """A parcel is answered frame by frame, in any order, and what was receipted is there."""
        frames = [from_near(n) for n in range(3)]

        answer = line.push(parcel(1, frames))

        assert "accepted" == answer.verdict
        assert {frame.id for frame in frames} == {receipt.id for receipt in answer.receipts}
        assert set() == {receipt.state for receipt in answer.receipts} - {"stored", "processed"}
        assert [0, 1, 2] == line.arrived()

    def test_frames_travel_as_they_were_written(self, stream: Line) -> None:
        """Not one character of a frame changes on the way: digests are computed over its text."""
        frame = from_near({"b": 1, "a": [1.5, None]})

        stream.push(parcel(1, [frame]))

        assert [spell(frame)] == [past.text for past in stream.far.postbox.history().messages]

    def test_the_same_parcel_again_is_a_duplicate(self, stream: Line) -> None:
        """A parcel that is pushed twice is answered twice, and kept once."""
        pushed = parcel(1, [from_near("once")])
        stream.push(pushed)

        answer = stream.push(pushed)

        assert ("duplicate", ["duplicate"]) == (
            answer.verdict,
            [receipt.state for receipt in answer.receipts],
        )
        assert ["once"] == stream.arrived()

    def test_a_duplicate_tells_that_it_was_processed(self, stream: Line) -> None:
        """Pushing again is the question how a message ended, and the answer says so."""
        pushed = parcel(1, [from_near("once")])
        stream.push(pushed)
        stream.far.handle()

        answer = stream.push(pushed)

        assert ("duplicate", ["processed"]) == (
            answer.verdict,
            [receipt.state for receipt in answer.receipts],
        )

    def test_a_gap_in_the_numbers_is_refused(self, stream: Line) -> None:
        """A parcel that does not continue its stream is a fork: it is refused and not kept."""
        first, third = (from_near(n) for n in (1, 3))
        stream.push(parcel(1, [first]))

        answer = stream.push(parcel(3, [third], previous="a parcel that never came"))

        assert ("fork", (), "first", 1) == (
            answer.verdict,
            answer.receipts,
            answer.epoch,
            answer.number,
        )
        assert [1] == stream.arrived()

    def test_a_wrong_predecessor_is_refused(self, stream: Line) -> None:
        """The right number after the wrong parcel is a fork: one of the files was changed."""
        first, other = (from_near(n) for n in (1, 2))
        stream.push(parcel(1, [first]))

        answer = stream.push(parcel(2, [other], previous=other.id))

        assert "fork" == answer.verdict
        assert [1] == stream.arrived()

    def test_a_late_parcel_changes_nothing(self, stream: Line) -> None:
        """A delayed parcel that arrives after its successor has no second effect."""
        first, second = (from_near(n) for n in (1, 2))
        stream.push(parcel(1, [first]))
        stream.push(parcel(2, [second], previous=first.id))

        answer = stream.push(parcel(1, [first]))

        assert "fork" == answer.verdict
        assert [1, 2] == stream.arrived()

    def test_a_parcel_of_receipts_alone(self, stream: Line) -> None:
        """Receipts travel without frames, need no number, and are answered without receipts."""
        mail = stream.far.postbox.send(NEAR, "how are you?")
        stream.far.postbox.run_until_idle()
        assert "sent" == stream.far.postbox.state(mail)

        answer = stream.push(parcel(1, receipts=[Receipt(mail, "processed")]))

        assert ("accepted", ()) == (answer.verdict, answer.receipts)
        assert "acked" == stream.far.postbox.state(mail)

    def test_an_early_receipt_counts(self, stream: Line) -> None:
        """The word that a message was processed may overtake the answer to its parcel."""
        mail = stream.far.postbox.send(NEAR, "quick")
        assert "pending" == stream.far.postbox.state(mail)

        stream.push(parcel(1, receipts=[Receipt(mail, "processed")]))

        assert "acked" == stream.far.postbox.state(mail)

    def test_a_frame_too_large_is_refused_alone(self, stream: Line) -> None:
        """A body over the far end's limit is rejected; its neighbours in the parcel are kept."""
        frames = [from_near(body) for body in ("before", "x" * (MAX_BODY + 1), "after")]

        answer = stream.push(parcel(1, frames))

        assert ["stored", "rejected", "stored"] == [receipt.state for receipt in answer.receipts]
        assert ["before", "after"] == stream.arrived()

    def test_a_full_inbox_takes_nothing(self, stream: Line) -> None:
        """A parcel beyond the far end's room is refused whole, never half, and may come again."""
        first, *frames = [from_near(n) for n in range(MAX_INBOX + 1)]
        stream.push(parcel(1, [first]))

        assert "busy" == stream.push(parcel(2, frames, previous=first.id)).verdict
        assert 1 == len(stream.far.kept)
        assert "accepted" == stream.push(parcel(2, frames[:-1], previous=first.id)).verdict

    def test_the_answer_names_the_durability(self, stream: Line) -> None:
        """The answer says how durable the far end's commit is: a weaker one ends nothing."""
        answer = stream.push(parcel(1, [from_near(1)]))

        assert "safe" == answer.durability

    def test_a_missing_receiver_is_unreachable(self, line: Line) -> None:
        """A url without a receiver raises Unreachable, so that messages wait."""
        nowhere = self.nowhere(line.far)
        if nowhere is None:
            pytest.skip("the transport cannot know that no receiver is there")

        absent = build_frame(1, sender=NEAR, recipient="absent")
        with pytest.raises(Unreachable):
            line.transport.deliver(nowhere, parcel(1, [absent], recipient="absent"))

    def test_many_senders_at_once(self, line: Line) -> None:
        """Several threads may deliver at once; each parcel gets its own answer."""
        senders = [f"sender{n}" for n in range(8)]
        pushed = [
            parcel(1, [build_frame(name, sender=name, recipient=FAR)], sender=name)
            for name in senders
        ]

        with ThreadPoolExecutor(len(pushed)) as pool:
            answers = list(pool.map(line.push, pushed))

        assert [[one.last_id] for one in pushed] == [
            [receipt.id for receipt in answer.receipts] for answer in answers
        ]
        assert senders == sorted(line.arrived())

    def test_close_twice(self, line: Line) -> None:
        """Closing again does nothing."""
        line.push(parcel(1, [from_near("hello")]))

        line.transport.close()
        line.transport.close()

        assert ["hello"] == line.arrived()

    # -- the journey, from postbox to postbox -------------------------------------------------

    @pytest.mark.parametrize(
        "body",
        [*ODD_TEXTS, *ODD_BYTES, {"ключ": ["ä", None, 1e300, -0.5, True]}],
        ids=lambda body: ascii(body)[:20],
    )
    def test_bodies_arrive_identical(self, line: Line, body: object) -> None:
        """Text of any script, control characters and arbitrary bytes come out as they went in."""
        line.near.send(FAR, body)
        line.run()

        assert [body] == line.arrived()

    def test_mail_ends_acknowledged(self, line: Line) -> None:
        """A message goes all the way: pushed, handled, acknowledged."""
        mail = line.near.send(FAR, "hello")
        line.run()

        assert (["hello"], "acked") == (line.arrived(), line.near.state(mail))

    def test_a_lost_receipt_has_no_second_effect(self, line: Line) -> None:
        """A push whose answer is lost is pushed again; the far end knows it and handles it once."""
        line.script[:] = [Fault.LOSE_RECEIPT]
        mail = line.near.send(FAR, "once")
        line.run()
        line.turn(2)

        assert (["once"], "acked") == (line.arrived(), line.near.state(mail))

    @pytest.mark.parametrize("fault", HARMLESS)
    def test_one_fault_harms_nothing(self, line: Line, fault: Fault) -> None:
        """After any one failure of the way all messages arrive, once and in order."""
        line.script[:] = [fault]
        mails = line.near.send_many([(FAR, n) for n in range(3)])
        line.run()
        mails += line.near.send_many([(FAR, n) for n in range(3, 6)])
        line.turn(4)

        assert list(range(6)) == line.arrived()
        assert {"acked"} == {line.near.state(mail) for mail in mails}

    @pytest.mark.parametrize("seed", range(5))
    def test_a_bad_way_harms_nothing(self, line: Line, seed: int) -> None:
        """Many failures in a row delay messages; they neither lose, nor repeat, nor reorder any."""
        rng = random.Random(seed)  # noqa: S311 - the same failures in every run
        for n in range(MANY):
            line.near.send(FAR, n)
            line.script[:] = [rng.choice(HARMLESS)]
            line.turn()
        line.script.clear()
        line.turn(10)

        assert list(range(MANY)) == line.arrived()
        assert MANY == line.near.file.stats()["acked"]

    def test_a_partial_answer_holds_one_lane(self, function: Line) -> None:
        """The frame without a receipt is tried again alone; its lane waits, other lanes go on."""
        held, free = function.near.session("held"), function.near.session("free")
        function.far.silent = ["held 1"]
        held.send(FAR, "held 1")
        function.run()
        held.send(FAR, "held 2")
        free.send(FAR, "free 1")
        function.run()
        assert ["free 1"] == function.arrived()

        function.far.silent.clear()
        function.turn(2)

        assert ["free 1", "held 1", "held 2"] == function.arrived()

    def test_a_refused_frame_holds_the_frames_behind_it(self, function: Line) -> None:
        """Frames of one lane behind a refused one are not handed over before it, in no call."""
        function.far.silent = ["first"]
        lane, free = function.near.session("lane"), function.near.session("free")
        mails = [
            *lane.send_many([(FAR, body) for body in ("first", "second", "third")]),
            free.send(FAR, "free"),
        ]
        function.run()
        assert ["free"] == function.arrived()

        function.far.silent.clear()
        function.turn(2)

        assert ["free", "first", "second", "third"] == function.arrived()
        assert {"acked"} == {function.near.state(mail) for mail in mails}

    def test_refused_mail_is_a_dead_letter(self, line: Line) -> None:
        """A frame that is refused for good becomes a dead letter; later ones go on."""
        line.script[:] = [Fault.REFUSE]
        mail = line.near.send(FAR, "unwanted")
        line.run()
        line.near.send(FAR, "welcome")
        line.turn()

        assert (["welcome"], "dead") == (line.arrived(), line.near.state(mail))

    def test_damage_on_the_way_is_noticed(self, stream: Line) -> None:
        """A changed frame is refused; the same parcel is pushed again and nothing is lost."""
        stream.script[:] = [Fault.CORRUPT]
        whole, damaged = stream.near.send_many([(FAR, "whole"), (FAR, "damaged")])
        stream.run()
        stream.turn()

        assert ["whole", "damaged"] == stream.arrived()
        assert ("acked", "acked") == (stream.near.state(whole), stream.near.state(damaged))
