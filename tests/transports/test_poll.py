"""Parcels to an agent that cannot be called: it asks, and its next question has the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.transports.over_http import LOOPBACK, a_parcel, context, served, share_keys

from onceward import Agent, Postbox
from onceward.errors import InvalidArgument, Unreachable
from onceward.http import HttpListener, PollListener
from onceward.keys import Keys
from onceward.model import wire
from onceward.model.notices import Notice, encode_notice
from onceward.model.parcel import Answer
from onceward.testing import TransportConformance
from onceward.testing.transport_fixture import FAR, NEAR, FarEnd
from onceward.transports import Transport
from onceward.transports.poll import Place, PollTransport

SENDERS = [NEAR, *(f"sender{n}" for n in range(8))]


@pytest.mark.broken("a test of receipts names a message that the near end never pushed")
class TestPoll(TransportConformance):
    """The far end asks an endpoint of the near end's home."""

    def make(self, far: FarEnd) -> tuple[Transport, str]:
        """Serve the near end and its like, and let the far end ask each of them."""
        home = far.path.parent
        share_keys(home, [FAR, *SENDERS])
        server = HttpListener(LOOPBACK)
        for name in SENDERS:
            listener = server(context(home, name))
            listener.listen(name, lambda _: Answer(verdict="busy"))
            far.at_the_end.callback(listener.close)
        for name in SENDERS:
            asking = PollListener(server.url, name)(context(home, FAR))
            asking.listen(FAR, far.accept)
            far.at_the_end.callback(asking.close)
        transport = PollTransport(context(home, NEAR))
        far.at_the_end.callback(transport.close)
        return transport, "poll:"

    def nowhere(self, far: FarEnd) -> str | None:
        """Return the url: the peer of that test does not ask."""
        del far
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
            box.peers.register("laptop", "poll:")
            mine.peers.register("bob", server.url)

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


def test_a_peer_that_does_not_ask_is_away(tmp_path: Path) -> None:
    """A parcel for a peer without a question waits in the file, not on a carrier."""
    transport = PollTransport(context(tmp_path, "alice"))

    with pytest.raises(Unreachable, match="does not ask"):
        transport.deliver("poll:", a_parcel())
    with pytest.raises(InvalidArgument):
        transport.check("poll:bob")
    transport.close()


def test_a_question_is_proved_like_a_parcel(tmp_path: Path) -> None:
    """A question of a stranger, a replayed one and a ping at its path get no parcel."""
    path = "/v1/agents/bob/collect"
    media = {"content-type": wire.ANSWER_TYPE}
    question = encode_notice(Notice(kind="collect", sender="alice", recipient="bob")) + b"\n"
    ping = encode_notice(Notice(kind="ping", sender="alice", recipient="bob")) + b"\n"
    with served(tmp_path) as there:
        headers = there.signed(question, **media)
        stranger = there.signed(question, **media, **{"onceward-from": "mallory"})
        found = [
            there.post(question, headers, path),
            there.post(question, headers, path),
            there.post(question, stranger, path),
            there.post(ping, there.signed(ping, **media), path),
        ]

    assert [200, 401, 401, 422] == [each.status_code for each in found]
    assert b"onceward.nothing" in found[0].content
