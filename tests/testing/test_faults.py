"""A transport that fails by script, delivery by delivery."""

from dataclasses import dataclass, field

import pytest

from onceward.core.deliver.transport import Features, Transport
from onceward.errors import Refused, Unreachable
from onceward.message.parcel import Answer, Parcel, Receipt
from onceward.testing import Fault, FaultyTransport
from onceward.testing.builders import build_frame, parcel

URL = "record:far"


@dataclass
class Recorder:
    """Keeps what is delivered, and says that it was stored."""

    features: Features = field(
        default=Features(schemes=frozenset({"record"}), streams=False, max_bytes=7)
    )
    parcels: list[Parcel] = field(default_factory=list)
    closed: int = 0

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Keep it."""
        del url
        self.parcels.append(parcel)
        return Answer(
            verdict="accepted", receipts=tuple(Receipt(one.id, "stored") for one in parcel.frames)
        )

    def close(self) -> None:
        """Count."""
        self.closed += 1


@pytest.fixture
def inner() -> Recorder:
    """Return the transport that is wrapped."""
    return Recorder()


@pytest.fixture
def one() -> Parcel:
    """Return a parcel of two frames."""
    return parcel(1, [build_frame(n, sender="near", recipient="far") for n in range(2)])


@pytest.fixture
def two(one: Parcel) -> Parcel:
    """Return the parcel that follows."""
    return parcel(2, [build_frame("next", sender="near", recipient="far")], previous=one.last_id)


def test_it_is_a_transport_with_the_features_of_the_inner_one(inner: Recorder) -> None:
    """A postbox cannot tell it from what it wraps."""
    faulty = FaultyTransport(inner)

    assert isinstance(faulty, Transport)
    assert inner.features == faulty.features


def test_without_a_script_nothing_fails(inner: Recorder, one: Parcel) -> None:
    """An empty script delivers everything as the inner transport does."""
    faulty = FaultyTransport(inner)

    assert inner.deliver(URL, one) == faulty.deliver(URL, one)
    assert [Fault.NONE] == faulty.seen


def test_after_the_script_nothing_fails(inner: Recorder, one: Parcel) -> None:
    """A script is for its own length; then the way is good."""
    faulty = FaultyTransport(inner, ["drop"])
    with pytest.raises(Unreachable):
        faulty.deliver(URL, one)

    faulty.deliver(URL, one)

    assert ([one], [Fault.DROP, Fault.NONE]) == (inner.parcels, faulty.seen)


@pytest.mark.parametrize(
    ("fault", "error", "arrived"),
    [
        (Fault.DROP, Unreachable, 0),
        (Fault.LOSE_RECEIPT, Unreachable, 1),
        (Fault.REFUSE, Refused, 0),
    ],
)
def test_what_the_sender_hears_and_what_arrives(
    inner: Recorder, one: Parcel, fault: Fault, error: type[Exception], arrived: int
) -> None:
    """A lost parcel and a lost answer look the same to the sender; only the far end knows."""
    with pytest.raises(error, match="script"):
        FaultyTransport(inner, [fault]).deliver(URL, one)

    assert [one] * arrived == inner.parcels


def test_duplicate_arrives_twice(inner: Recorder, one: Parcel) -> None:
    """The sender sees one answer, the far end two parcels."""
    answer = FaultyTransport(inner, [Fault.DUPLICATE]).deliver(URL, one)

    assert ("accepted", [one, one]) == (answer.verdict, inner.parcels)


def test_delay_arrives_out_of_order(inner: Recorder, one: Parcel, two: Parcel) -> None:
    """A delayed parcel comes after the next one, when its sender has long given it up."""
    faulty = FaultyTransport(inner, [Fault.DELAY])
    with pytest.raises(Unreachable):
        faulty.deliver(URL, one)
    assert [] == inner.parcels

    answer = faulty.deliver(URL, two)

    assert [two, one] == inner.parcels
    assert [two.last_id] == [receipt.id for receipt in answer.receipts]


def test_busy_arrives_nowhere(inner: Recorder, one: Parcel) -> None:
    """A full peer answers, and keeps nothing."""
    assert ("busy", []) == (
        FaultyTransport(inner, [Fault.BUSY]).deliver(URL, one).verdict,
        inner.parcels,
    )


def test_partial_says_nothing_of_the_last_frame(inner: Recorder, one: Parcel) -> None:
    """All frames arrive, and one of them without a word."""
    answer = FaultyTransport(inner, [Fault.PARTIAL]).deliver(URL, one)

    assert ([one], [one.frames[0].id]) == (
        inner.parcels,
        [receipt.id for receipt in answer.receipts],
    )


def test_corrupt_damages_the_last_frame(inner: Recorder, one: Parcel) -> None:
    """
    The last frame arrives under its id with a text that is none any more.

    Its neighbour is whole.
    """
    FaultyTransport(inner, [Fault.CORRUPT]).deliver(URL, one)

    [arrived] = inner.parcels
    assert one.frames[0] == arrived.frames[0]
    assert one.frames[1].id == arrived.frames[1].id
    assert one.frames[1].text != arrived.frames[1].text
    assert one.frames[1].text.startswith(arrived.frames[1].text)


def test_an_unknown_fault_is_named(inner: Recorder, one: Parcel) -> None:
    """A word that is not a fault is a mistake of the test, told at once."""
    with pytest.raises(ValueError, match="gremlin"):
        FaultyTransport(inner, ["gremlin"]).deliver(URL, one)


def test_close_forgets_what_is_late(inner: Recorder, one: Parcel) -> None:
    """Closing closes the inner transport, and what was delayed never arrives."""
    faulty = FaultyTransport(inner, [Fault.DELAY])
    with pytest.raises(Unreachable):
        faulty.deliver(URL, one)

    faulty.close()

    assert ([], 1) == (inner.parcels, inner.closed)
