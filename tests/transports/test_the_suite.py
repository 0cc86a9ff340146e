"""The suite finds transports that break the contract, by the test that names the promise."""

import textwrap

import pytest

pytest_plugins = ["pytester"]

QUIETLY = ("-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "no:terminal")
HEADER = """
import json
from dataclasses import replace
from onceward.model.parcel import Answer, Receipt
from onceward.testing.conformance import TransportConformance
from onceward.transports.base import Features
"""
FOOTER = """
class TestBroken(TransportConformance):
    def make(self, far):
        return Broken(far), "memory:far"

    def nowhere(self, far):
        return "memory:nobody"
"""
MISCOUNT = """
    def test_nothing(self, line):
        with line.far.postbox.begin() as tx:
            tx.execute("UPDATE _onceward_counters SET value = value + 1 WHERE name = 'ended'")
"""

LIAR = """
class Broken:
    features = Features(schemes=frozenset({"memory"}))

    def __init__(self, far):
        self.far = far

    def deliver(self, url, parcel):
        receipts = tuple(Receipt(carried.id, "stored") for carried in parcel.frames)
        return Answer(verdict="accepted", receipts=receipts)

    def close(self):
        pass
"""


def honest_but(body: str, *, streams: bool = True) -> str:
    """Return the source of a transport that delivers *parcel* but for what *body* does first."""
    return f"""
class Broken:
    features = Features(schemes=frozenset({{"memory"}}), streams={streams})

    def __init__(self, far):
        self.far, self.closed = far, False

    def deliver(self, url, parcel):
{textwrap.indent(textwrap.dedent(body).strip(), " " * 8)}
        return self.far.accept(parcel)

    def close(self):
        assert not self.closed
        self.closed = True
"""


HONEST = honest_but("pass").replace("assert not self.closed", "pass")
BROKEN = {
    "stored without storing": (LIAR, "test_each_frame_gets_its_receipt"),
    "stored without storing, seen by its ack": (LIAR, "test_mail_ends_acknowledged"),
    "frames in reverse": (
        honest_but("parcel = replace(parcel, frames=parcel.frames[::-1])"),
        "test_each_frame_gets_its_receipt",
    ),
    "text written anew": (
        honest_but(
            """
            frames = tuple(replace(c, text=json.dumps(json.loads(c.text))) for c in parcel.frames)
            parcel = replace(parcel, frames=frames)
            """
        ),
        "test_frames_travel_as_they_were_written",
    ),
    "every push is a new stream": (
        honest_but('parcel = replace(parcel, number=1, previous="", epoch=str(id(parcel)))'),
        "test_a_gap_in_the_numbers_is_refused",
    ),
    "receipts stay behind": (
        honest_but("parcel = replace(parcel, receipts=())"),
        "test_an_early_receipt_counts",
    ),
    "takes mail for nobody": (
        honest_but('url == "memory:nobody" and None'),
        "test_nobody_there_is_unreachable",
    ),
    "drops what is not plain ASCII": (
        honest_but(
            """
            frames = tuple(replace(c, text=c.text.encode("ascii", "ignore").decode())
                for c in parcel.frames)
            parcel = replace(parcel, frames=frames)
            """
        ),
        "test_bodies_arrive_identical",
    ),
    "promises more durability than there is": (
        honest_but('return replace(self.far.accept(parcel), durability="fast")'),
        "test_the_answer_names_the_durability",
    ),
    "closes once only": (honest_but("pass"), "test_close_twice"),
    "a function that keeps no ids": (
        honest_but(
            """
            from onceward.model.frame import Frame
            self.far._known.clear()
            receipts = self.far.take([Frame.parse(c.text) for c in parcel.frames])
            return Answer(verdict="accepted", receipts=tuple(receipts.values()))
            """,
            streams=False,
        ),
        "test_a_lost_receipt_has_no_second_effect",
    ),
    "a function that hands over what is behind a refused frame": (
        honest_but(
            """
            from onceward.model.frame import Frame
            receipts = self.far.take([Frame.parse(c.text) for c in parcel.frames])
            return Answer(verdict="accepted", receipts=tuple(receipts.values()))
            """,
            streams=False,
        ),
        "test_a_refused_frame_holds_the_frames_behind_it",
    ),
}


@pytest.mark.parametrize(("source", "test"), BROKEN.values(), ids=BROKEN)
def test_a_broken_transport_is_found(pytester: pytest.Pytester, source: str, test: str) -> None:
    """The test that names the broken promise fails, in its call or in the file check after it."""
    path = pytester.makepyfile(HEADER + source + FOOTER)

    ran = pytester.inline_run(path, *QUIETLY, "-k", test)

    assert ran.getfailures()


def test_an_honest_transport_passes(pytester: pytest.Pytester) -> None:
    """The frame of these experiments breaks nothing by itself."""
    path = pytester.makepyfile(HEADER + HONEST + FOOTER)

    ran = pytester.inline_run(
        path, *QUIETLY, "-k", "receipt or duplicate or close or fork or large"
    )

    assert [] == ran.getfailures()
    passed, _skipped, _failed = ran.listoutcomes()
    assert len(passed) > 5


def test_the_invariants_are_checked_after_every_test(pytester: pytest.Pytester) -> None:
    """A transport whose test passes is still found if a file is left in a state that may not be."""
    path = pytester.makepyfile(HEADER + HONEST + FOOTER + MISCOUNT)

    ran = pytester.inline_run(path, *QUIETLY, "-k", "test_nothing")

    assert ["teardown"] == [report.when for report in ran.getfailures()]
