"""
Test that a transport keeps parcels and answers intact, and ends when it must.

The far end answers by script here, so a transport that writes into files itself is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from onceward.core.deliver.transport import Transport
from onceward.errors import Busy, DiskFull, ParcelTooLarge, Refused, Unreachable
from onceward.message.parcel import Answer, Parcel, ParcelFrame, Receipt, ReceiptState, encoded_size
from onceward.testing.builders import parcel
from onceward.testing.transport_fixture import FarEnd, Line, from_near, open_line, stored

EPOCH: Final = "00000002" + "5" * 24
OTHER: Final = "00000001" + "a" * 24
ODD: Final = 'words: ä 👩 "\\ \n \x01 \u2028'
STATES: Final[tuple[ReceiptState, ...]] = (
    "stored", "duplicate", "processed", "dropped", "cancelled", "dead", "rejected", "busy",
)  # fmt: skip
END_WITHIN: Final = 60.0
"""Seconds after which a call that should have ended is taken for hanging."""
DEADLINE: Final = 2.0
"""The ``deliver_timeout`` of a transport whose far end never answers."""
BODY: Final = 60_000
TRIES: Final = 3
FRAMES: Final[tuple[ParcelFrame, ...]] = parcel(
    1, [from_near(n) for n in range(len(STATES))], epoch=EPOCH
).frames
RECEIPTS: Final = tuple(
    Receipt(f"message-{state}", state, reason)
    for state, reason in zip(
        STATES, (None, "", ODD, "a", "b", "c: d", "e" * 500, None), strict=True
    )
)
TAKEOVER: Final = f"00000001 1790000000000 there http://there:8400/{'a' * 400}"
PARCELS: Final = {
    "the first of an epoch": parcel(1, epoch=EPOCH),
    "with a base position": replace(parcel(1, epoch=EPOCH), base_position=(OTHER, 2**32 - 1)),
    "after parcels that were given up": replace(
        parcel(1, epoch=EPOCH), base_position=(OTHER, 0), unsettled=("one", "two", ODD[:9])
    ),
    "a later one": parcel(2**32 - 1, epoch=EPOCH, previous="the one before"),
    "with receipts": replace(parcel(3, epoch=EPOCH, previous="x"), receipts=RECEIPTS),
    "with the position of receipts": replace(
        parcel(3, epoch=EPOCH, previous="x"), receipts=RECEIPTS, stream_position=(OTHER, 9)
    ),
    "with a greeting": replace(parcel(4, epoch=EPOCH, previous="x"), greeting=f"answer:{'a' * 24}"),
    "of a file that has taken over": replace(parcel(4, epoch=EPOCH), takeover=TAKEOVER),
    "for a file that has taken over": replace(parcel(4, epoch=EPOCH), known_takeover=TAKEOVER),
    "of a less durable sender": replace(parcel(1, epoch=EPOCH), durability="fast"),
}
"""Parcels that differ in every field; each is pushed with frames, some of them redelivered."""
VERDICTS: Final = {
    "accepted": Answer(verdict="accepted"),
    "duplicate": Answer(verdict="duplicate", durability="fast"),
    "fork": Answer(verdict="fork", epoch=OTHER, number=2**32 - 1),
    "fork of a stranger": Answer(verdict="fork"),
    "superseded": Answer(verdict="superseded", takeover=TAKEOVER),
    "room": Answer(verdict="accepted", room=7),
    "busy": Answer(verdict="busy"),
    "busy for a while": Answer(verdict="busy", retry_after=61_001, durability="fast"),
}


class WireConformance:
    """The part of ``TransportConformance`` in which the far end answers by script."""

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Return a transport and the url at which it calls ``far.accept``."""
        raise NotImplementedError

    @pytest.fixture
    def scripted(self, stream: Line) -> Line:
        """The line of a transport that calls ``far.accept``, which then follows the script."""
        stream.far.answers.append(stored)
        stream.push(parcel(1, FRAMES_OF_PROBE, epoch="probe"))
        if not stream.far.arrivals:
            pytest.skip("it writes into the far end's file itself")
        stream.far.arrivals.clear()
        return stream

    @pytest.mark.parametrize("pushed", PARCELS.values(), ids=PARCELS)
    @pytest.mark.parametrize(
        "redelivered", [(), (0, 2), range(len(STATES))], ids=["none", "some", "all"]
    )
    def test_a_parcel_arrives_as_it_was_pushed(
        self, scripted: Line, pushed: Parcel, redelivered: tuple[int, ...]
    ) -> None:
        """Every field arrives: positions, unsettled parcels, reasons, durability, redelivery."""
        frames = tuple(
            frame._replace(redelivered=n in redelivered) for n, frame in enumerate(FRAMES)
        )
        whole = replace(pushed, frames=frames)
        scripted.far.answers.append(stored)

        scripted.push(whole)

        assert [whole] == scripted.far.arrivals

    @pytest.mark.parametrize("position", [None, (OTHER, 4)], ids=["unknown", "known"])
    def test_receipts_arrive_without_frames(
        self, scripted: Line, position: tuple[str, int] | None
    ) -> None:
        """A parcel of receipts alone arrives whole, with the position on which they rest."""
        whole = replace(parcel(1, receipts=RECEIPTS, epoch=EPOCH), stream_position=position)
        scripted.far.answers.append(Answer(verdict="accepted"))

        answer = scripted.push(whole)

        assert (Answer(verdict="accepted"), [whole]) == (answer, scripted.far.arrivals)

    @pytest.mark.parametrize("given", VERDICTS.values(), ids=VERDICTS)
    def test_an_answer_returns_as_it_was_given(self, scripted: Line, given: Answer) -> None:
        """Verdict, position, durability and the time after which to come again return."""
        scripted.far.answers.append(given)

        answer = scripted.push(parcel_of(FRAMES))

        assert given == answer

    @pytest.mark.parametrize("reason", [None, "", "a", ODD, "d" * 500], ids=ascii)
    def test_receipts_return_as_they_were_given(self, scripted: Line, reason: str | None) -> None:
        """Each state keeps its meaning and its reason; a receipt may be missing."""
        receipts = tuple(
            Receipt(frame.id, state, reason) for frame, state in zip(FRAMES, STATES, strict=True)
        )
        given = Answer(verdict="accepted", receipts=receipts[1:])
        scripted.far.answers.append(given)

        answer = scripted.push(parcel_of(FRAMES))

        assert given == answer

    def test_a_refusal_is_told_as_one(self, scripted: Line) -> None:
        """A parcel that the far end will never take raises Refused, with its reason."""
        scripted.far.answers.append(Refused("this is not an inbox of yours"))

        with pytest.raises(Refused, match="not an inbox of yours"):
            scripted.push(parcel_of(FRAMES))

    @pytest.mark.parametrize(
        "error",
        [Unreachable("damaged"), Busy("others write"), DiskFull("full"), ValueError("a bug")],
        ids=lambda error: type(error).__name__,
    )
    def test_trouble_of_the_far_end_is_no_refusal(self, scripted: Line, error: Exception) -> None:
        """An error of the far end ends no message; a later push is answered."""
        scripted.far.answers.append(error)

        assert trouble(lambda: scripted.push(parcel_of(FRAMES)))
        scripted.far.answers += [stored] * TRIES
        assert answered(lambda: scripted.push(parcel_of(FRAMES)))

    def test_the_largest_parcel_passes(self, scripted: Line) -> None:
        """A parcel of ``max_bytes``, its receipts and envelope counted, arrives."""
        scripted.far.answers.append(Answer(verdict="accepted"))
        largest = grown(scripted.transport.features.max_bytes)

        scripted.push(largest)

        assert [largest] == scripted.far.arrivals

    def test_a_larger_parcel_names_the_limit(self, scripted: Line) -> None:
        """A parcel beyond ``max_bytes`` arrives, or raises ParcelTooLarge with a smaller limit."""
        scripted.far.answers.append(Answer(verdict="accepted"))
        larger = grown(scripted.transport.features.max_bytes + 2 * BODY)
        limit = scripted.transport.features.max_bytes
        try:
            scripted.push(larger)
        except ParcelTooLarge as error:
            limit = error.limit

        assert 0 < limit < encoded_size(larger)

    # -- time -------------------------------------------------------------------------------

    def test_close_ends_a_push(self, scripted: Line) -> None:
        """``close`` during a push returns, and so does the push, with Unreachable."""
        if not scripted.transport.features.network:
            pytest.skip("its pushes are calls in this process, which nothing can end")
        with _never(scripted) as begun, _push(scripted) as push:
            assert begun.wait(END_WITHIN)
            _within(scripted.transport.close)

            assert isinstance(push.exception(END_WITHIN), Unreachable)

    def test_a_push_ends_at_its_deadline(self, tmp_path: Path) -> None:
        """Where no answer comes a push ends after ``deliver_timeout``, with Unreachable."""
        with open_line(tmp_path, self.make, deliver_timeout=DEADLINE) as line:
            if not line.transport.features.network:
                pytest.skip("its pushes are calls in this process, which nothing can end")
            with _never(line) as begun, _push(line) as push:
                ended = push.exception(END_WITHIN)

                assert begun.is_set()
                assert isinstance(ended, Unreachable)


FRAMES_OF_PROBE: Final = [from_near("probe")]


def parcel_of(frames: tuple[ParcelFrame, ...]) -> Parcel:
    """Return the first parcel of an epoch with these frames."""
    return replace(parcel(1, epoch=EPOCH), frames=frames)


def trouble(push: Callable[[], Answer]) -> bool:
    """Return whether a push ended no message: it raised no verdict, or was answered busy."""
    try:
        answer = push()
    except (Refused, ParcelTooLarge):
        return False
    except Exception:  # noqa: BLE001 - the dispatcher tries again after any other one
        return True
    return (answer.verdict, answer.receipts) == ("busy", ())


def answered(push: Callable[[], Answer]) -> bool:
    """Return whether one of a few pushes is accepted: the first may find a broken connection."""
    for _ in range(TRIES):
        with suppress(Unreachable):
            if push().verdict == "accepted":
                return True
    return False


def grown(size: int) -> Parcel:
    """Return a parcel with receipts that has at most *size* bytes, and nearly as many."""
    whole = replace(parcel(1, receipts=RECEIPTS, epoch=EPOCH))
    left = size - encoded_size(whole)
    [full] = parcel(1, [from_near("x" * BODY)]).frames
    each = encoded_size(parcel_of((full,))) - encoded_size(parcel_of(()))
    count = left // each
    frames = parcel(1, [from_near("x" * BODY) for _ in range(count)]).frames
    return replace(whole, frames=frames)


@contextmanager
def _never(line: Line) -> Iterator[Event]:
    """Let the far end answer nothing inside the block; yield what tells that it was called."""
    begun, over = Event(), Event()

    def hang(pushed: Parcel) -> Answer:
        begun.set()
        over.wait(END_WITHIN)
        return stored(pushed)

    line.far.answers += [hang] * 9
    try:
        yield begun
    finally:
        over.set()
        line.far.answers.clear()


@contextmanager
def _push(line: Line) -> Iterator[Future[Answer]]:
    """Push on another thread; its end is not waited for."""
    pool = ThreadPoolExecutor(1)
    try:
        yield pool.submit(line.push, parcel_of(FRAMES))
    finally:
        pool.shutdown(wait=False)


def _within(work: Callable[[], object]) -> None:
    """Run *work* on another thread; fail where it does not end in time."""
    pool = ThreadPoolExecutor(1)
    try:
        pool.submit(work).result(END_WITHIN)
    finally:
        pool.shutdown(wait=False)
