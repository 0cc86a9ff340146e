"""Homes recognise each other by one key, and their agents reach each other by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.transports.homes import Home, carried, home, two_homes
from tests.transports.over_http import a_parcel
from tests.waiting import until

from onceward import Postbox
from onceward.errors import (
    AmbiguousRecipient,
    InvalidArgument,
    UnknownKey,
    UnknownRecipient,
    Unreachable,
    WrongHome,
)
from onceward.homes import Homes
from onceward.keys import Keys
from onceward.message import wire
from onceward.message.clock import SystemClock
from onceward.transports.network import homes as homes_module
from onceward.transports.network import identity
from onceward.transports.network.homes import HomeKeys
from onceward.transports.network.http import SignedRequest
from onceward.transports.network.keys import Secret

BODY = wire.encode_parcel(a_parcel(sender="a0", recipient="b0"))
NOT_TAKEN = (401, b"not taken\n")


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Home, Home]]:
    """Yield two homes that know each other, with agents a0, a1 and b0, b1."""
    with two_homes(tmp_path, ("a0", "a1"), ("b0", "b1")) as found:
        yield found


def secrets_of(asking: Home, asked: Home) -> tuple[Secret, ...]:
    """Return what signs a request of one home for another, known or not."""
    own = HomeKeys(asking.folder).identity.create()
    return (HomeKeys.asking_home(own, asked.fingerprint),)


def post(
    to: Home, secrets: tuple[Secret, ...], *, sender: str = "a0", recipient: str = "b0"
) -> tuple[int, bytes]:
    """Push a parcel by hand; return status and body of the answer."""
    body = wire.encode_parcel(a_parcel(sender=sender, recipient=recipient))
    asked = SignedRequest(sender, recipient, "parcels", wire.CONTENT_TYPE, body)
    asked.sign(secrets, SystemClock().now() // 1000)
    return send(to, asked)


def send(to: Home, asked: SignedRequest) -> tuple[int, bytes]:
    """Make a signed request by hand."""
    with httpx2.Client(trust_env=False) as client:
        url = f"{to.url}/v1/{asked.path}"
        answer = client.post(url, content=asked.body, headers=asked.headers)
        return answer.status_code, answer.content


def test_agents_reach_each_other_by_name(both: tuple[Home, Home]) -> None:
    """Neither a peer nor a key is registered for any of them, in either direction."""
    near, far = both

    assert "there" == carried(near.boxes["a1"], far.boxes["b0"], "b0", "there")
    assert "back" == carried(far.boxes["b1"], near.boxes["a0"], "a0", "back")
    assert [None] == [peer.url for peer in near.boxes["a1"].peers.list()]
    assert not (near.folder / "keys").exists()


def test_a_home_tells_names_descriptions_and_types(tmp_path: Path) -> None:
    """Known homes see them; a renewed description is seen with the next exchange."""
    with two_homes(tmp_path, ("a0",), ("b0",)) as (near, far):
        far.boxes["b0"].agents.register(description="counts", capabilities=["count"])
        near.homes.ping("far")
        [found] = near.homes.agents()

    assert ("b0", "far", "counts", ()) == (
        found.name, found.home, found.description, found.accepts,
    )  # fmt: skip


def test_the_agents_of_a_known_home_may_send_and_no_other_name(both: tuple[Home, Home]) -> None:
    """A name that the home has not told, or that this home has itself, is not its to use."""
    near, far = both
    pair = secrets_of(near, far)

    taken, *refused = [post(far, pair, sender=name) for name in ("a0", "mallory", "b1")]

    assert 200 == taken[0]
    assert [NOT_TAKEN] * 2 == refused


def test_an_unknown_home_gets_what_an_unknown_key_gets(tmp_path: Path) -> None:
    """Whether it names an agent of another home, a served one or none: the answer is the same."""
    with (
        two_homes(tmp_path, ("a0",), ("b0",)) as (_, far),
        home(tmp_path / "stranger", ("a0",)) as stranger,
    ):
        pair = secrets_of(stranger, far)
        names = [("a0", "b0"), ("a0", "nobody"), ("b0", "b0"), ("mallory", "nobody")]
        found = [post(far, pair, sender=a, recipient=b) for a, b in names]
        told = SignedRequest("home", "home", "agents", "application/json", b'{"agents":[]}')
        told.sign(pair, SystemClock().now() // 1000)
        found.append(send(far, told))

    assert [NOT_TAKEN] * 5 == found


def test_names_that_are_known_cost_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's signature is verified once, whichever names and homes it uses."""
    with (
        two_homes(tmp_path, ("a0",), ("b0",)) as (near, far),
        home(tmp_path / "stranger", ("a0",)) as stranger,
    ):
        Keys(far.folder).create("carl")
        pair, steps, real = secrets_of(stranger, far), list[str](), identity.verified

        def noted(*args: bytes) -> bool:
            steps.append("verified")
            return real(*args)

        monkeypatch.setattr(homes_module, "verified", noted)
        found = list[int]()
        for sender in ("a0", "carl", "mallory"):
            for recipient in ("b0", "nobody"):
                steps.clear()
                post(far, pair, sender=sender, recipient=recipient)
                found.append(len(steps))
        del near

    assert [1] * 6 == found


def test_strangers_learn_the_key_and_no_name(both: tuple[Home, Home]) -> None:
    """What a home tells everyone is its public key; lists need the signature of a known home."""
    _, far = both
    with httpx2.Client(trust_env=False) as client:
        key = client.get(f"{far.url}/v1/home")
        agents = client.post(f"{far.url}/v1/home/agents", content=b'{"agents":[]}')

    assert (200, ["homes"]) == (key.status_code, list(key.json()))
    assert "b0" not in key.text
    assert NOT_TAKEN == (agents.status_code, agents.content)


def test_a_request_cannot_be_passed_on(tmp_path: Path) -> None:
    """A home that got a request cannot use it at a third one, which knows the first, too."""
    with (
        two_homes(tmp_path, ("a0",), ("b0",)) as (near, far),
        home(tmp_path / "third", ("c0",)) as third,
    ):
        third.knows(near, "near")
        near.knows(third, "third")
        near.homes.ping("third")
        told = SignedRequest("home", "home", "agents", "application/json", b'{"agents":[]}')
        told.sign(secrets_of(near, far), SystemClock().now() // 1000)
        there = send(far, told)
        told.headers["onceward-for-home"] = third.fingerprint
        elsewhere = send(third, told)

    assert (200, NOT_TAKEN) == (there[0], elsewhere)


def test_a_request_is_taken_once(both: tuple[Home, Home]) -> None:
    """A recorded parcel or list that comes again is refused."""
    near, far = both
    parcel = SignedRequest("a0", "b0", "parcels", wire.CONTENT_TYPE, BODY)
    agents = SignedRequest("home", "home", "agents", "application/json", b'{"agents":[]}')
    found = []
    for asked in (parcel, agents):
        asked.sign(secrets_of(near, far), SystemClock().now() // 1000)
        found += [send(far, asked)[0], send(far, asked)[0]]

    assert [200, 401, 200, 401] == found


@pytest.mark.parametrize("off", [-400, 400])
def test_a_time_outside_the_window_is_refused(both: tuple[Home, Home], off: int) -> None:
    """A home's clock may differ by five minutes, as a peer's."""
    near, far = both
    asked = SignedRequest("a0", "b0", "parcels", wire.CONTENT_TYPE, BODY)
    asked.sign(secrets_of(near, far), SystemClock().now() // 1000 + off)

    assert NOT_TAKEN == send(far, asked)


@pytest.mark.parametrize("header", ["webhook-signature", "onceward-head"])
def test_a_changed_signature_is_refused(both: tuple[Home, Home], header: str) -> None:
    """Both signatures are verified, of the head and of the body."""
    near, far = both
    asked = SignedRequest("a0", "b0", "parcels", wire.CONTENT_TYPE, BODY)
    other = SignedRequest("a0", "b0", "parcels", wire.CONTENT_TYPE, BODY + b" ")
    for each in (asked, other):
        each.sign(secrets_of(near, far), SystemClock().now() // 1000)
    asked.headers[header] = other.headers[header]

    assert NOT_TAKEN == send(far, asked)


def test_an_agent_with_a_key_of_its_own_must_use_it(both: tuple[Home, Home]) -> None:
    """A key between two agents wins over the keys of their homes, on both sides."""
    near, far = both
    pair = secrets_of(near, far)
    Keys(far.folder).add("a0", Keys(near.folder).create("b0"))

    assert NOT_TAKEN == post(far, pair)
    assert "by its own key" == carried(near.boxes["a0"], far.boxes["b0"], "b0", "by its own key")
    assert "by the home's" == carried(near.boxes["a1"], far.boxes["b1"], "b1", "by the home's")


def test_a_removed_home_is_refused_at_once(both: tuple[Home, Home]) -> None:
    """Its next request is, its agents are forgotten, and messages for them wait."""
    near, far = both
    before = carried(near.boxes["a0"], far.boxes["b0"], "b0", 1)
    far.homes.remove("near")
    near.boxes["a0"].send("b0", 2)
    near.boxes["a0"].run_until_idle()

    assert (1, None) == (before, far.boxes["b0"].receive())
    [peer] = near.boxes["a0"].peers.list()
    assert "401 without a signature" in str(peer.last_error)
    assert [] == far.homes.agents()
    with pytest.raises(UnknownRecipient):
        far.boxes["b0"].send("a0", 3)
    with pytest.raises(UnknownKey, match="homes ls"):
        far.homes.remove("near")


def test_a_rotation_leaves_no_gap(both: tuple[Home, Home]) -> None:
    """Messages flow in both directions before and after it, and each side lists the new key."""
    near, far = both
    old, new = near.fingerprint, near.homes.rotate().fingerprint
    first = carried(far.boxes["b0"], near.boxes["a0"], "a0", "to the new key")
    second = carried(near.boxes["a0"], far.boxes["b0"], "b0", "by the new key")
    [known] = far.homes.list()

    assert ("to the new key", "by the new key") == (first, second)
    assert (new, old) == (known.fingerprint, known.previous)


def test_rotations_that_a_home_missed_are_followed(both: tuple[Home, Home]) -> None:
    """After three rotations at once the first request of the home proves the newest key."""
    near, far = both
    for _ in range(3):
        near.homes.rotate()

    assert "by the third" == carried(near.boxes["a0"], far.boxes["b0"], "b0", "by the third")
    assert [near.fingerprint] == [each.fingerprint for each in far.homes.list()]


def test_the_former_key_is_valid_for_a_while(both: tuple[Home, Home]) -> None:
    """A request that was signed before the rotation and arrives after it is taken."""
    near, far = both
    pair = secrets_of(near, far)
    near.homes.rotate()
    near.homes.ping("far")

    assert 200 == post(far, pair)[0]


def test_another_key_at_the_url_is_not_added(tmp_path: Path) -> None:
    """The error shows both fingerprints; nothing is stored."""
    with home(tmp_path / "near", ("a0",)) as near, home(tmp_path / "far", ("b0",)) as far:
        wrong = f"SHA256:{'A' * 43}"
        with pytest.raises(WrongHome) as raised:
            near.homes.add(far.url, wrong)
        with pytest.raises(InvalidArgument, match="fingerprint of this home"):
            near.homes.add(far.url, near.fingerprint)

        assert all(mark in str(raised.value) for mark in (wrong, far.fingerprint))
        assert [] == near.homes.list()


def test_a_home_that_is_not_there_is_not_added(tmp_path: Path) -> None:
    """No server, or one without a key, says what to do there."""
    with home(tmp_path / "near", ("a0",)) as near, home(tmp_path / "far", ("b0",)) as far:
        mark = far.fingerprint
        (far.folder / "identity" / "home.key").unlink()
        with pytest.raises(Unreachable, match="onceward homes show there"):
            near.homes.add(far.url, mark)
        with pytest.raises(Unreachable, match="no server was reached"):
            near.homes.add("http://127.0.0.1:9", mark)


def test_adding_twice_changes_nothing(both: tuple[Home, Home]) -> None:
    """Another key or url for the name, or another name for the key, is refused."""
    near, far = both
    near.knows(far, "far")
    with pytest.raises(InvalidArgument, match="under another name"):
        near.knows(far, "other")
    with pytest.raises(InvalidArgument, match="homes remove far"):
        near.homes.add("poll:", f"SHA256:{'A' * 43}", "far")

    assert ["far"] == [each.name for each in near.homes.list()]


def test_an_answer_of_another_home_settles_nothing(tmp_path: Path) -> None:
    """The home at the url must answer with its own key, not with that of another known one."""
    with (
        two_homes(tmp_path, ("a0",), ("b0",)) as (near, far),
        home(tmp_path / "third", ("c0",)) as third,
    ):
        third.knows(near, "near")
        near.knows(third, "third")
        keys = HomeKeys(near.folder)
        asked = keys.asking(far.url)
        assert asked is not None
        claim = homes_module.KeyClaim(HomeKeys(third.folder).identity.create().public, "", "")

        assert None is keys.answered(asked, claim)
        keys.close()


def test_a_new_agent_is_known_soon(both: tuple[Home, Home]) -> None:
    """Once it is served, the known homes are told; an unknown name asks them again."""
    near, far = both
    with pytest.raises(UnknownRecipient):
        near.boxes["a0"].send("b2", 1)
    box = far.open("b2")
    until(lambda: "b2" in {each.name for each in near.homes.agents()})

    assert "new" == carried(near.boxes["a0"], box, "b2", "new")


def test_a_new_agent_sends_at_once(both: tuple[Home, Home]) -> None:
    """A home that does not know the sender yet refuses it, is told, and takes the same parcel."""
    near, far = both
    with Postbox(near.folder / "a2.db", agent="a2", start=False) as box:  # not served, not told
        assert "hello" == carried(box, far.boxes["b0"], "b0", "hello")


def test_an_agent_that_moved_is_followed(tmp_path: Path) -> None:
    """Its file moves to another known home; what is sent to it afterwards arrives there, once."""
    with (
        two_homes(tmp_path, ("a0",), ("b0", "b1")) as (near, far),
        home(tmp_path / "third", ("c0",)) as third,
    ):
        third.knows(near, "near")
        near.knows(third, "third")
        first = carried(near.boxes["a0"], far.boxes["b1"], "b1", "before")
        far.close("b1")
        (far.folder / "b1.db").rename(third.folder / "b1.db")
        moved = third.open("b1")
        for name in ("far", "third"):
            near.homes.ping(name)
        second = carried(near.boxes["a0"], moved, "b1", "after")

        assert ("before", "after", None) == (first, second, moved.receive())
        assert [("b1", "third")] == [
            (each.name, each.home) for each in near.homes.agents() if each.name == "b1"
        ]


@pytest.mark.broken("two agents of one name are its point")
def test_a_name_in_two_homes_is_refused(tmp_path: Path) -> None:
    """The error names both homes, also for a name that was reached before; peers add chooses."""
    with (
        two_homes(tmp_path, ("a0",), ("b0",)) as (near, far),
        home(tmp_path / "third", ("b0",)) as third,
    ):
        assert "one" == carried(near.boxes["a0"], far.boxes["b0"], "b0", "one")
        third.knows(near, "near")
        near.knows(third, "third")
        near.homes.ping("third")
        with pytest.raises(AmbiguousRecipient, match="the homes far and third") as raised:
            near.boxes["a0"].send("b0", "two")
        near.boxes["a0"].peers.add("b0", far.url)

        assert ("far", "third") == raised.value.homes
        assert "chosen" == carried(near.boxes["a0"], far.boxes["b0"], "b0", "chosen")
        assert None is third.boxes["b0"].receive()


@pytest.mark.broken("two agents of one name are its point")
def test_the_home_that_told_a_name_first_may_use_it(tmp_path: Path) -> None:
    """Another home that tells the same name neither speaks for that agent nor silences it."""
    with (
        two_homes(tmp_path, ("a0",), ("b0",)) as (near, far),
        home(tmp_path / "third", ("a0", "c0")) as third,
    ):
        third.knows(far, "far")
        far.knows(third, "third")
        third.homes.ping("far")

        assert NOT_TAKEN == post(far, secrets_of(third, far), sender="a0")
        assert 200 == post(far, secrets_of(near, far), sender="a0")[0]


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b'{"agents":[{"name":"../x","description":"","accepts":[]}]}',
        b'{"agents":[{"name":"x","description":1,"accepts":[]}]}',
        json.dumps({"agents": [{"name": "x", "description": "", "accepts": []}] * 10_001}).encode(),
    ],
)
def test_a_list_of_another_form_is_refused(both: tuple[Home, Home], told: bytes) -> None:
    """What was known stays."""
    near, far = both
    asked = SignedRequest("home", "home", "agents", "application/json", told)
    asked.sign(secrets_of(near, far), SystemClock().now() // 1000)

    assert 422 == send(far, asked)[0]
    assert ["a0", "a1"] == [each.name for each in far.homes.agents()]


def test_the_key_of_a_home_survives_the_takeover_of_an_agent(both: tuple[Home, Home]) -> None:
    """The key is in the folder, not in a file: a file that leaves takes none along."""
    near, far = both
    mark = far.fingerprint
    far.close("b1")
    (far.folder / "b1.db").rename(near.folder / "b9.db")

    assert mark == far.fingerprint
    assert Homes(near.folder).show().fingerprint != mark
