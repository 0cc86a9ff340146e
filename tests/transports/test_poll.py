"""Parcels to an agent that cannot be called: it asks, and its next question has the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from tests.children import PYTHON, Child
from tests.transports.over_http import (
    LOOPBACK,
    Asked,
    a_parcel,
    context,
    scripted,
    served,
    share_keys,
)
from tests.waiting import until

from onceward import Agent, Postbox, Tuning
from onceward.api import peers
from onceward.core.deliver.transport import TransportContext
from onceward.errors import InvalidArgument, Unreachable
from onceward.http import HttpListener, PollListener
from onceward.keys import Keys
from onceward.message import wire
from onceward.message.clock import SystemClock
from onceward.message.parcel import Answer, Parcel
from onceward.message.wire import Notice, encode_notice
from onceward.testing import Controls, TransportConformance
from onceward.testing.clock import ManualClock
from onceward.testing.transport_fixture import FAR, NEAR, FarEnd
from onceward.transports import Transport
from onceward.transports.network import poll
from onceward.transports.network.http import HttpTransport
from onceward.transports.network.http_signing import signed_headers
from onceward.transports.network.keys import decode_secret
from onceward.transports.network.peer_busy import PeerBusy
from onceward.transports.network.poll import Place, PollTransport

SOON = 0.5
"""Seconds after which a peer that does not ask counts as gone."""


@dataclass
class Homes:
    """The homes of a laptop that cannot be called, and of Bob."""

    near: Path
    far: Path

    @contextmanager
    def bob(self, **options: Any) -> Iterator[tuple[Postbox, str]]:
        """Open Bob, who listens; yield his postbox and his url."""
        listener = HttpListener(LOOPBACK)
        with Postbox(self.far / "bob.db", agent="bob", listeners=[listener], **options) as box:
            yield box, listener.url

    @contextmanager
    def laptop(self, url: str, **options: Any) -> Iterator[Postbox]:
        """Open the laptop, which asks Bob."""
        asking = PollListener(url, "bob")
        path = self.near / "laptop.db"
        with Postbox(path, agent="laptop", listeners=[asking], **options) as box:
            yield box


@pytest.fixture
def homes(tmp_path: Path) -> Homes:
    """Return two homes that share a key."""
    made = Homes(tmp_path / "near", tmp_path / "far")
    made.near.mkdir()
    made.far.mkdir()
    Keys(made.far).add("laptop", Keys(made.near).create("bob"))
    return made


SENDERS = [NEAR, *(f"sender{n}" for n in range(8))]


class Met(PollTransport):
    """Has the far end ask a sender before the sender's first parcel waits."""

    def __init__(self, context: TransportContext, meet: Callable[[str], None]) -> None:
        super().__init__(context)
        self._meet, self._met = meet, set[str]()
        self.meet(context.agent)

    def meet(self, sender: str) -> None:
        """Have the far end ask a sender, once."""
        if sender not in self._met:
            self._met.add(sender)
            self._meet(sender)

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Push as a sender whom the far end asks."""
        self.meet(parcel.sender)
        return super().deliver(url, parcel)


@pytest.mark.broken("a test of receipts names a message that the near end never pushed")
class TestPoll(TransportConformance):
    """The far end asks an endpoint of the near end's home."""

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Serve the near end and its like, and let the far end ask each of them."""
        home = far.path.parent
        share_keys(home, [FAR, *SENDERS])
        server = HttpListener(LOOPBACK)

        def meet(name: str) -> None:
            listener = server(context(home, name))
            listener.listen(name, lambda _: Answer(verdict="busy"))
            far.at_the_end.callback(listener.close)
            asking = PollListener(server.url, name)(context(home, FAR))
            asking.listen(FAR, far.accept)
            far.at_the_end.callback(asking.close)

        limit = far.context.settings.deliver_timeout
        transport = Met(context(home, NEAR, deliver_timeout=limit), meet)
        far.at_the_end.callback(transport.close)
        return transport, "poll:"

    def nowhere(self, far: FarEnd) -> str | None:
        """Return the url: the peer of that test does not ask, and counts as gone soon."""
        far.at_the_end.enter_context(patch.object(poll, "GONE", SOON))
        return "poll:"


def test_requests_travel_both_ways(tmp_path: Path) -> None:
    """A laptop that cannot be called asks Bob and gets his reply, and Bob asks the laptop."""
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir()
    far.mkdir()
    Keys(far).add("laptop", Keys(near).create("bob"))
    laptop, bob = Agent("laptop"), Agent("bob")

    @laptop.on("text")
    def here(question: str) -> str:
        return f"{question} from the laptop"

    @bob.on("text")
    def there(question: str) -> str:
        return f"{question} from Bob"

    with Postbox(far / "bob.db", agent=bob, listeners=[server := HttpListener(LOOPBACK)]) as box:
        asking = PollListener(server.url, "bob")
        with Postbox(near / "laptop.db", agent=laptop, listeners=[asking]) as mine:
            box.peers.add("laptop", "poll:")
            mine.peers.add("bob", server.url)

            assert "hello from Bob" == mine.ask("bob", "hello", reply=str, timeout=60)
            assert "hello from the laptop" == box.ask("laptop", "hello", reply=str, timeout=60)


def test_an_answer_to_another_parcel_settles_nothing() -> None:
    """A late answer, or one that is none, is dropped; the parcel waits on."""
    place, waits = Place(), a_parcel()
    place.parcel = waits

    for answer in (b"", b"{}", wire.encode_answer(Answer(verdict="busy"), a_parcel(sender="x"))):
        place.ask(answer)
    still = (place.parcel, place.answer)
    place.ask(wire.encode_answer(Answer(verdict="accepted"), waits))

    assert (waits, None) == still
    assert [None, Answer(verdict="accepted")] == [place.parcel, place.answer]


def test_an_older_question_does_not_end_a_newer_one() -> None:
    """A laptop that came back asks on: the end of its lost question takes nothing from that."""
    place, woken, waits = Place(), list[str](), a_parcel()
    lost, newer = (partial(woken.append, each) for each in ("lost", "newer"))
    assert [None, None] == [place.hold(lost), place.hold(newer)]

    ended = place.let_go(lost)
    with ThreadPoolExecutor(1) as pool:
        push = pool.submit(place.push, waits, 60.0)
        until(lambda: woken)
        handed = place.let_go(newer)
        place.ask(wire.encode_answer(Answer(verdict="accepted"), waits))
        answer = push.result(60)

    assert (None, waits) == (ended, handed)
    assert (["newer"], "accepted") == (woken, answer.verdict)


@pytest.mark.parametrize(
    ("status", "headers", "after"),
    [
        (429, {}, 0.05),
        (503, {"retry-after": "7"}, 7.0),
        (503, {"retry-after": "3600"}, 60.0),
        (503, {}, 1.0),
    ],
)
def test_a_peer_without_a_place_is_asked_again(
    tmp_path: Path, status: int, headers: dict[str, str], after: float
) -> None:
    """It says when, which nothing proves: it is asked after the longest delay at the latest."""
    Keys(tmp_path).create("bob")
    laptop = HttpTransport(
        context(tmp_path, "laptop", delivery_retry="1s..60s ±0%", handler_retry="1s..60s ±0%")
    )
    with scripted(lambda _: (status, headers, b"")) as url, pytest.raises(PeerBusy) as caught:
        laptop.collect(url, "laptop", "bob", b"")
    laptop.close()

    assert after <= caught.value.after <= (after if status == 429 else min(2 * after, 60))


def test_an_answer_outlasts_a_peer_without_a_place(tmp_path: Path) -> None:
    """The answer that a refused question carried comes with the next one."""
    secret, told = share_keys(tmp_path, ["bob", "laptop"]), list[bytes]()
    waits = a_parcel(sender="bob", recipient="laptop")

    def reply(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        told.append(asked.body.partition(b"\n")[2])
        if len(told) > 1:
            return 503, {"retry-after": "1"}, b""
        body, now = wire.encode_parcel(waits), SystemClock().now() // 1000
        nonce = asked.headers["webhook-id"]
        return 200, signed_headers([decode_secret(secret)], "bob", nonce, now, body), body

    with scripted(reply) as url:
        asking = PollListener(url, "bob")(context(tmp_path, "laptop"))
        asking.listen("laptop", lambda _: Answer(verdict="accepted"))
        until(lambda: len(told) > 2)
        asking.close()

    assert [b"", told[1], told[1]] == told[:3]
    assert "accepted" == wire.decode_answer(told[1], waits).verdict


def test_a_peer_that_does_not_ask_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parcel for a peer without a question waits in the file, not on a carrier."""
    monkeypatch.setattr(poll, "GONE", SOON)
    transport = PollTransport(context(tmp_path, "alice"))

    with pytest.raises(Unreachable, match="is not polling"):
        transport.deliver("poll:", a_parcel())
    with pytest.raises(InvalidArgument):
        transport.check("poll:bob")
    transport.close()


def test_a_question_is_proved_like_a_parcel(tmp_path: Path) -> None:
    """A question of a stranger, a replayed one and a ping at its path get no parcel."""
    path = "/v1/agents/bob/collect"
    question = encode_notice(Notice(kind="collect", sender="alice", recipient="bob")) + b"\n"
    ping = encode_notice(Notice(kind="ping", sender="alice", recipient="bob")) + b"\n"
    with served(tmp_path) as there:
        headers = there.signed(question, "collect")
        stranger = there.signed(question, "collect", **{"onceward-from": "mallory"})
        found = [
            there.post(question, headers, path),
            there.post(question, headers, path),
            there.post(question, stranger, path),
            there.post(ping, there.signed(ping, "collect"), path),
        ]

    assert [200, 401, 401, 422] == [each.status_code for each in found]
    assert b"onceward.nothing" in found[0].content


# -- several processes ---------------------------------------------------------------------------


ELSEWHERE = """
import sys
from onceward import Postbox
with Postbox(sys.argv[1], agent="bob") as box:
    box.send("laptop", "from another process")
    box.run_until_idle()
    [peer] = box.peers.list()
    print(peer.failures, peer.last_error, box.file.stats()["sent"])
    sys.stdin.read()
"""


def test_another_process_leaves_the_peer_to_the_one_that_listens(homes: Homes) -> None:
    """A message of a process that does not listen is delivered by the one that does, at once."""
    command = [*PYTHON, "-c", ELSEWHERE, homes.far / "bob.db"]
    with homes.bob(tuning=Tuning(poll_interval=3600)) as (box, url), homes.laptop(url) as laptop:
        box.peers.add("laptop", "poll:")
        with Child(command, "stdin", "stdout") as other:
            message = laptop.receive(timeout=60)
            told, _ = other.ended()
        [peer] = box.peers.list()
        assert message is not None, (told, peer, box.file.stats(), laptop.file.stats())
        message.ack()
        [peer] = box.peers.list()

    assert ("from another process", "0 None") == (message.body, told.rpartition(" ")[0])
    assert (0, None) == (peer.failures, peer.last_error)


def test_a_transport_is_found_once_it_is_known_where_it_serves(homes: Homes) -> None:
    """While one thread makes the transport, no other packs for a peer of another process."""
    known = list[bool]()

    class Watched(dict[str, Any]):
        def setdefault(self, name: str, default: Any = None) -> Any:
            known.append(name in box._routes._placed)
            return super().setdefault(name, default)

        def __setitem__(self, name: str, value: Any) -> None:
            known.append(name in box._routes._placed)
            super().__setitem__(name, value)

    with Postbox(homes.far / "bob.db", agent="bob", start=False) as box:
        box._routes._transports = Watched(box._routes._transports)
        box._routes.make("poll")

    assert known
    assert all(known)


def test_messages_wait_where_no_process_listens(homes: Homes) -> None:
    """Without a listener nothing is pushed, nothing fails, and the process does not spin."""
    with Postbox(homes.far / "bob.db", agent="bob", start=False) as box:
        box.peers.add("laptop", "poll:")
        box.send("laptop", "hello")
        moved = box.run_until_idle()
        [peer] = box.peers.list()
        looks = [box._dispatcher._dispatch_due() for _ in range(3)]

    assert (0, 0, None) == (moved, peer.failures, peer.last_error)
    assert [None] * 3 == looks


def test_a_peer_that_comes_back_gets_its_messages_at_once(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first question of a peer that was away ends its backoff, however long that is."""
    monkeypatch.setattr(poll, "GONE", SOON)
    with homes.bob(
        delivery_retry="3000s..3000s ±0%",
        handler_retry="3000s..3000s ±0%",
    ) as (box, url):
        box.peers.add("laptop", "poll:")
        box.send("laptop", "hello")
        until(lambda: box.peers.list()[0].failures == 1)
        with homes.laptop(url) as laptop:
            message = laptop.receive(timeout=60)

    assert message is not None
    assert "hello" == message.body


def test_a_ping_tells_when_a_peer_asked(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Any process of the home sees how far a peer's clock is ahead, or since when it has not asked.

    How long the ping takes changes nothing: the clocks were compared when the peer asked.
    """
    monkeypatch.setattr(peers, "monotonic", count(step=2).__next__)
    clock = ManualClock()
    clock.advance(90_000)
    ahead = ManualClock()
    ahead.advance(90_007)
    with Postbox(
        homes.far / "bob.db", agent="bob", start=False, testing=Controls(clock=clock)
    ) as other:
        other.peers.add("laptop", "poll:")
        with pytest.raises(
            Unreachable, match="laptop has not polled for its parcels yet: bob must"
        ):
            other.peers.ping("laptop")
        with (
            homes.bob(testing=Controls(clock=clock)) as (_, url),
            homes.laptop(url, testing=Controls(clock=ahead)),
        ):
            until((homes.far / "asked" / "bob" / "laptop").exists)
        found = other.peers.ping("laptop")
        clock.advance(31)
        with pytest.raises(Unreachable, match="since 2026-01-02T01:00:00"):
            other.peers.ping("laptop")

    assert (2, 7000) == (found.took, found.clock_ahead)


def test_a_stranger_leaves_no_mark(tmp_path: Path) -> None:
    """Only a question that is proved is noted."""
    path = "/v1/agents/bob/collect"
    question = encode_notice(Notice(kind="collect", sender="alice", recipient="bob")) + b"\n"
    with served(tmp_path) as there:
        forged = there.signed(question, "collect", **{"webhook-signature": "v1,AAAA"})
        found = there.post(question, forged, path)

    assert 401 == found.status_code
    assert not (tmp_path / "far" / "asked").exists()


def test_a_listener_that_cannot_ask_says_why(
    homes: Homes, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong key is told once as a warning, not with every question."""
    Keys(homes.near).rotate("bob")
    Keys(homes.near).retire("bob")
    with homes.bob() as (_, url), homes.laptop(url):
        until(lambda: any("polling failed" in each.message for each in caplog.records))

    assert any(
        each.levelname == "WARNING" and "401" in each.message and "peers ping" in each.message
        for each in caplog.records
    )


def test_a_listener_survives_an_error_of_its_own_process(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error that no peer caused, such as a lack of threads, it asks again."""
    real, failed = HttpTransport.collect, Event()

    def collect(*args: Any) -> bytes:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        return real(*args)

    monkeypatch.setattr(HttpTransport, "collect", collect)
    with homes.bob() as (bob, url), homes.laptop(url) as laptop:
        bob.peers.add("laptop", "poll:")
        laptop.peers.add("bob", url)
        bob.send("laptop", "hello")
        message = laptop.receive(timeout=60)
        assert message is not None
        with message:
            pass

    assert (True, "hello") == (failed.is_set(), message.body)
