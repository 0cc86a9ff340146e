"""The suite finds transports that break the contract, by the test that names the promise."""

import textwrap

import pytest

from onceward.testing import listener_conformance, wire_conformance

pytest_plugins = ["pytester"]

QUIETLY = ("-x", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "no:terminal")
HEADER = """
import json
from dataclasses import replace
from threading import Event
from onceward.errors import ParcelTooLarge, Refused, Unreachable
from onceward.message.parcel import Answer, Receipt
from onceward.message.wire import encoded_size
from onceward.testing.conformance import TransportConformance
from onceward.core.deliver.transport import Features
DONE = {"dead": "processed"}
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


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let broken transports hang for a short time only."""
    monkeypatch.setattr(wire_conformance, "END_WITHIN", 2.0)
    monkeypatch.setattr(wire_conformance, "DEADLINE", 0.1)
    monkeypatch.setattr(listener_conformance, "END_WITHIN", 2.0)


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
    "text written again": (
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
        "test_a_missing_receiver_is_unreachable",
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
            from onceward.message.frame import Frame
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
            from onceward.message.frame import Frame
            receipts = self.far.take([Frame.parse(c.text) for c in parcel.frames])
            return Answer(verdict="accepted", receipts=tuple(receipts.values()))
            """,
            streams=False,
        ),
        "test_a_refused_frame_holds_the_frames_behind_it",
    ),
}


PARCEL, POSITION = "test_a_parcel_arrives_as_it_was_pushed", "test_receipts_arrive_without_frames"
ANSWER, RECEIPTS = "test_an_answer_returns_as_it_was_given", "test_receipts_return_as_they_were"
TROUBLE = "test_trouble_of_the_far_end_is_no_refusal"
UNREAD = {
    "the base position": ("base_position=None", PARCEL),
    "the unsettled parcels": ("unsettled=()", PARCEL),
    "the position of receipts": ("stream_position=None", PARCEL),
    "the position of receipts alone": (
        "stream_position=parcel.stream_position if parcel.frames else None",
        POSITION,
    ),
    "the greeting": ("greeting=None", PARCEL),
    "the takeover of the sender": ("takeover=None", PARCEL),
    "the takeover of the recipient": ("known_takeover=None", PARCEL),
    "the sender's durability": ('durability="safe"', PARCEL),
    "the reasons of receipts": (
        "receipts=tuple(r._replace(reason=None) for r in parcel.receipts)",
        PARCEL,
    ),
    "that a frame comes again": (
        "frames=tuple(f._replace(redelivered=False) for f in parcel.frames)",
        PARCEL,
    ),
    "that a frame does not come again": (
        "frames=tuple(f._replace(redelivered=True) for f in parcel.frames)",
        PARCEL,
    ),
}
"""By what a codec loses of a parcel: how, and the test that finds it."""
UNWRITTEN = {
    "the reasons of receipts": (
        "receipts=tuple(r._replace(reason=None) for r in answer.receipts)",
        RECEIPTS,
    ),
    "empty reasons": (
        "receipts=tuple(r._replace(reason=r.reason or None) for r in answer.receipts)",
        RECEIPTS,
    ),
    "that a message is dead": (
        "receipts=tuple(r._replace(state=DONE.get(r.state, r.state)) for r in answer.receipts)",
        RECEIPTS,
    ),
    "that a receipt is missing": (
        'receipts=(*answer.receipts, *(Receipt(f.id, "stored") for f in parcel.frames[:1]))',
        RECEIPTS,
    ),
    "when to come again": ("retry_after=0", ANSWER),
    "milliseconds": ("retry_after=answer.retry_after // 1000 * 1000", ANSWER),
    "the recipient's durability": ('durability="safe"', ANSWER),
    "where the recipient is": ('epoch="", number=0', ANSWER),
    "that it was a duplicate": (
        'verdict="accepted" if answer.verdict == "duplicate" else answer.verdict',
        ANSWER,
    ),
}
"""By what a codec loses of an answer: how, and the test that finds it."""
WAIT = """
        import threading
        done = []
        def run():
            done.append(self.far.accept(parcel))
            done[0:0] = [True]
        threading.Thread(target=run, daemon=True).start()
        deadline = {deadline}
        while not (len(done) == 2 or self.ended.wait(0.01)):
            deadline -= 0.01
            if deadline < 0:
                break
        if len(done) < 2:
            raise Unreachable("it took too long")
        return done[1]
"""
HANGING = """
class Broken:
    features = Features(schemes=frozenset({"memory"}), network=True)

    def __init__(self, far):
        self.far, self.ended = far, Event()
        self.limit = far.context.settings.deliver_timeout

    def deliver(self, url, parcel):
        if parcel.epoch == "probe":
            return self.far.accept(parcel)
DELIVER
    def close(self):
        CLOSE
"""
HONEST_NETWORK = HANGING.replace("DELIVER", WAIT.format(deadline="self.limit")).replace(
    "CLOSE", "self.ended.set()"
)
BROKEN |= (
    {
        f"reads nothing of a parcel's field: {what}": (
            honest_but(f"parcel = replace(parcel, {how})"),
            test,
        )
        for what, (how, test) in UNREAD.items()
    }
    | {
        f"writes nothing of an answer's field: {what}": (
            honest_but(f"answer = self.far.accept(parcel)\nreturn replace(answer, {how})"),
            test,
        )
        for what, (how, test) in UNWRITTEN.items()
    }
    | {
        "hides a refusal": (
            honest_but(
                """
            try:
                return self.far.accept(parcel)
            except Refused as error:
                raise Unreachable(str(error)) from error
            """
            ),
            "test_a_refusal_is_told_as_one",
        ),
        "makes a refusal of every error": (
            honest_but(
                """
            try:
                return self.far.accept(parcel)
            except Exception as error:
                raise Refused(str(error)) from error
            """
            ),
            TROUBLE,
        ),
        "refuses what is too large": (
            honest_but('if encoded_size(parcel) > 1 << 20: raise Refused("413")'),
            "test_the_largest_parcel_passes",
        ),
        "takes less than it says": (
            honest_but(
                'if encoded_size(parcel) > 1 << 20: raise ParcelTooLarge("413", limit=1 << 20)'
            ),
            "test_the_largest_parcel_passes",
        ),
        "names a limit that the parcel respects": (
            honest_but(
                'if encoded_size(parcel) > 16 << 20: raise ParcelTooLarge("413", limit=1 << 30)'
            ),
            "test_a_larger_parcel_names_the_limit",
        ),
        "hangs over its deadline": (
            HANGING.replace("DELIVER", WAIT.format(deadline=3600)).replace("CLOSE", "pass"),
            "test_a_push_ends_at_its_deadline",
        ),
        "closes around a push": (
            HANGING.replace("DELIVER", WAIT.format(deadline=3600)).replace("CLOSE", "pass"),
            "test_close_ends_a_push",
        ),
    }
)


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


def test_an_honest_network_passes(pytester: pytest.Pytester) -> None:
    """A transport that ends pushes at its deadline and at its close passes."""
    path = pytester.makepyfile(HEADER + HONEST_NETWORK + FOOTER)

    ran = pytester.inline_run(path, *QUIETLY, "-k", "deadline or ends_a_push or arrives or return")

    assert [] == ran.getfailures()
    passed, _skipped, _failed = ran.listoutcomes()
    assert len(passed) > 20


LISTENER = """
from onceward.errors import Refused, Unreachable
from onceward.testing import listener_conformance
from onceward.testing.listener_conformance import ListenerConformance
from onceward.core.deliver.transport import Features

class Listener:
    def __init__(self):
        self.agents, self.shut, self.lock = {}, False, __import__("threading").RLock()
        self.calls, self.ended = [], __import__("threading").Condition()

    def listen(self, name, accept):
        self.agents[name] = accept

    def call(self, url, parcel):
        accept = self.agents.get(AGENT)
        if CLOSED or accept is None:
            raise Unreachable("closed")
        with self.ended:
            self.calls.append(parcel)
        try:
            LOCKED:
                return ACCEPT
        finally:
            with self.ended:
                self.calls.remove(parcel)
                self.ended.notify_all()

    def close(self):
        self.shut = True
        WAIT

class Way:
    features = Features(schemes=frozenset({"way"}))

    def __init__(self, listener):
        self.listener = listener

    def deliver(self, url, parcel):
        return self.listener.call(url, parcel)

    def close(self):
        pass

class TestBroken(ListenerConformance):
    def make(self, context):
        return Listener()

    def way(self, listener, context, name):
        return Way(listener), f"way:{name}"
"""
PARTS = {
    "AGENT": 'url.removeprefix("way:")',
    "CLOSED": "self.shut",
    "LOCKED": "if True",
    "ACCEPT": "accept(parcel)",
    "WAIT": "with self.ended: self.ended.wait_for(lambda: not self.calls, 2)",
}
LISTENERS = {
    "takes after its close": ({"CLOSED": "False"}, "test_nothing_is_taken_after_close"),
    "closes around a call": ({"WAIT": "pass"}, "test_close_waits_for_what_was_begun"),
    "takes one parcel at a time": ({"LOCKED": "with self.lock"}, "test_senders_do_not_wait"),
    "gives all to one agent": (
        {"AGENT": "sorted(self.agents)[0]"},
        "test_a_parcel_reaches_the_agent",
    ),
    "answers by itself": (
        {"ACCEPT": "listener_conformance._stored(parcel)"},
        "test_the_answer_is_the_agents_own",
    ),
}


def listener(parts: dict[str, str]) -> str:
    """Return the source of a suite whose listener has these parts instead of the right ones."""
    source = LISTENER
    for name, right in PARTS.items():
        source = source.replace(name, parts.get(name, right))
    return source


@pytest.mark.parametrize(("parts", "test"), LISTENERS.values(), ids=LISTENERS)
def test_a_broken_listener_is_found(
    pytester: pytest.Pytester, parts: dict[str, str], test: str
) -> None:
    """The test that names the broken promise fails."""
    ran = pytester.inline_run(pytester.makepyfile(listener(parts)), *QUIETLY, "-k", test)

    assert ran.getfailures()


def test_an_honest_listener_passes(pytester: pytest.Pytester) -> None:
    """The frame of these experiments breaks nothing by itself."""
    ran = pytester.inline_run(pytester.makepyfile(listener({})), *QUIETLY)

    assert [] == ran.getfailures()


def test_the_invariants_are_checked_after_every_test(pytester: pytest.Pytester) -> None:
    """A transport whose test passes is still found if a file is left in a state that may not be."""
    path = pytester.makepyfile(HEADER + HONEST + FOOTER + MISCOUNT)

    ran = pytester.inline_run(path, *QUIETLY, "-k", "test_nothing")

    assert ["teardown"] == [report.when for report in ran.getfailures()]
