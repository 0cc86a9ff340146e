"""Messages to a third party's url: one POST each, signed, retried, refused, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.transports.over_http import Asked, Reply, context, scripted

from onceward import Postbox
from onceward.errors import InvalidArgument, Refused, Unreachable
from onceward.message.frame import Frame
from onceward.testing import Controls, ManualClock
from onceward.testing.builders import build_frame, parcel
from onceward.transports import Answer
from onceward.transports.network.keys import Keys, verify
from onceward.transports.network.webhook import WebhookTransport, is_public
from onceward.webhooks import StandardWebhooks

HERE = "127.0.0.1"
OPEN: dict[str, Any] = {"http_plain_hosts": (HERE,), "webhook_private_hosts": (HERE,)}
"""Settings under which the scripted server may be called."""


@pytest.fixture
def asked() -> list[Asked]:
    """What came to the third party."""
    return []


@pytest.fixture
def way(tmp_path: Path) -> Iterator[WebhookTransport]:
    """A transport that has a key for the third party."""
    Keys(tmp_path).create("crm")
    made = WebhookTransport(context(tmp_path, "shop", **OPEN))
    yield made
    made.close()


def answering(asked: list[Asked], *statuses: int, **headers: str) -> Reply:
    """Return a script that answers with each status in turn, then with 200."""
    left = list(statuses)

    def reply(one: Asked) -> tuple[int, dict[str, str], bytes]:
        asked.append(one)
        return (left.pop(0) if left else 200), headers, b"a text"

    return reply


def push(way: WebhookTransport, url: str, *bodies: object, sessions: str = "ssss") -> Answer:
    """Deliver messages, each in the session of that letter."""
    frames = [
        build_frame(body, sender="shop", recipient="crm", session=session)
        for body, session in zip(bodies, sessions, strict=False)
    ]
    return way.deliver(f"webhook:{url}", parcel(1, frames, sender="shop", recipient="crm"))


def states(answer: Answer) -> list[tuple[str, str | None]]:
    """Return the outcomes of an answer."""
    return [(each.state, each.reason) for each in answer.receipts]


def test_a_message_is_one_signed_post(
    way: WebhookTransport, asked: list[Asked], tmp_path: Path
) -> None:
    """Its body is the message's; any library of Standard Webhooks verifies it."""
    with scripted(answering(asked)) as url:
        answer = push(way, f"{url}/in?team=7", {"cents": 5, "ä": "é"})

    [one] = asked
    assert [("processed", None)] == states(answer)
    assert "/in?team=7" == one.path
    assert {"cents": 5, "ä": "é"} == json.loads(one.body)
    assert answer.receipts[0].id == one.headers["webhook-id"] == one.headers["ce-id"]
    assert "application/json" == one.headers["content-type"]
    secret = (tmp_path / "keys" / "crm").read_text()
    assert answer.receipts[0].id == StandardWebhooks(secret)(one.headers, one.body).id


def test_attributes_are_headers_of_cloudevents(way: WebhookTransport, asked: list[Asked]) -> None:
    """Percent-encoded where a header cannot have them."""
    plain = build_frame(1, sender="shop", recipient="crm").model_dump(exclude_none=True)
    frame = Frame.model_validate(plain | {"type": 'ä "b"', "tenant": "a%b", "paid": True})
    with scripted(answering(asked)) as url:
        way.deliver(f"webhook:{url}", parcel(1, [frame], sender="shop", recipient="crm"))

    found = {name: value for name, value in asked[0].headers.items() if name.startswith("ce-")}
    assert {
        "ce-specversion": "1.0",
        "ce-source": "urn:onceward:shop",
        "ce-type": "%C3%A4%20%22b%22",
        "ce-tenant": "a%25b",
        "ce-paid": "true",
    }.items() <= found.items()


@pytest.mark.parametrize("status", [301, 400, 401, 404, 500, 503])
def test_a_failure_holds_its_lane(way: WebhookTransport, asked: list[Asked], status: int) -> None:
    """And is told with the beginning of the answer; other lanes continue; nothing is followed."""
    with scripted(answering(asked, status, location="http://127.0.0.1:1/")) as url:
        answer = push(way, url, 1, 2, 3, sessions="aab")

    assert ["1", "3"] == [one.body.decode() for one in asked]
    failed, passed = states(answer)
    assert ("busy", ("processed", None)) == (failed[0], passed)
    assert str(failed[1]).startswith(f"status {status}: ")
    assert ("a text" in str(failed[1])) == (status != 301)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_party_names_the_pause(
    way: WebhookTransport, asked: list[Asked], status: int
) -> None:
    """Which counts no attempt; what was posted before it keeps its outcome."""
    with scripted(answering(asked, status, 200, status, **{"retry-after": "7"})) as url:
        first, second = push(way, url, 1), push(way, url, 2, 3, sessions="ab")

    assert ("busy", 7000, ()) == (first.verdict, first.retry_after, first.receipts)
    assert [("processed", None)] == states(second)


def test_a_url_that_is_gone_refuses(way: WebhookTransport, asked: list[Asked]) -> None:
    """410 makes dead letters, after the outcomes of earlier posts are told."""
    with scripted(answering(asked, 200, 410, 410)) as url:
        assert [("processed", None)] == states(push(way, url, 1, 2))
        with pytest.raises(Refused, match="status 410: a text"):
            push(way, url, 2)


def test_no_answer_is_unreachable(way: WebhookTransport) -> None:
    """As with each transport: the messages wait, and no attempt is counted."""
    with pytest.raises(Unreachable, match="no server was reached there"):
        push(way, "http://127.0.0.1:1/", 1)


def test_without_a_key_nothing_is_posted(way: WebhookTransport, asked: list[Asked]) -> None:
    """The error names the command that creates it."""
    frame = build_frame(1, sender="shop", recipient="other")
    with (
        scripted(answering(asked)) as url,
        pytest.raises(Unreachable, match="onceward keys new other"),
    ):
        way.deliver(f"webhook:{url}", parcel(1, [frame], sender="shop", recipient="other"))

    assert [] == asked


@pytest.mark.parametrize("host", [HERE, "localhost"])
def test_a_private_address_is_refused(tmp_path: Path, asked: list[Asked], host: str) -> None:
    """Also if it is the address of a name: nothing is sent to it."""
    Keys(tmp_path).create("crm")
    made = WebhookTransport(context(tmp_path, "shop", http_plain_hosts=(HERE, "localhost")))
    with (
        scripted(answering(asked)) as url,
        pytest.raises(Unreachable, match="private address: the setting webhook_private_hosts"),
    ):
        push(made, url.replace(HERE, host), 1)
    made.close()

    assert [] == asked


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("64:ff9b::5db8:d70e", True),
        ("198.18.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - an address like others
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, *, public: bool) -> None:
    """Those of metadata services, of this machine and its neighbours are not, in any notation."""
    assert public == is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example", "webhook:", "webhook:ftp://a.example", "webhook:http://a.example",
        "webhook:https://user:pass@a.example", "webhook:https://a.example/#x", "webhook:https://",
        "webhook:https://a.example/\nx", "webhook:https://a.example:0/", "webhook:https://a b/",
    ],
)  # fmt: skip
def test_a_wrong_url_is_refused(way: WebhookTransport, url: str) -> None:
    """When it is added; the text does not repeat it, for many contain a secret."""
    with pytest.raises(InvalidArgument) as refused:
        way.check(url)

    assert "a.example" not in str(refused.value)
    way.check("webhook:https://hooks.example/services/T0/B0/x?y=z")


def test_a_postbox_reaches_it(tmp_path: Path, asked: list[Asked]) -> None:
    """By its registered url: retried by the postbox's rules, then a dead letter with the reason."""
    Keys(tmp_path).create("crm")
    clock = ManualClock()
    options: dict[str, Any] = {"delivery_attempts": 2, "delivery_retry": "1s", **OPEN}
    with (
        scripted(answering(asked, 200, 500, 500)) as url,
        Postbox(
            tmp_path / "shop.db",
            agent="shop",
            start=False,
            testing=Controls(clock=clock),
            **options,
        ) as box,
    ):
        box.peers.add("crm", f"webhook:{url}/in")
        first = box.send("crm", {"n": 1}, type="order.created")
        box.run_until_idle()
        second = box.send("crm", {"n": 2})
        for _ in range(3):
            box.run_until_idle()
            clock.advance(5)
        assert ("acked", "dead") == (box.state(first), box.state(second))
        [dead] = box.dead_letters.list()

    assert "status 500: a text" in str(dead.last_error)
    assert 3 == len(asked)
    assert asked[1].headers["webhook-id"] == asked[2].headers["webhook-id"]


def test_a_signature_is_of_the_moment(
    way: WebhookTransport, asked: list[Asked], tmp_path: Path
) -> None:
    """Both secrets sign during a rotation."""
    keys = Keys(tmp_path)
    old = keys.secrets("crm")
    keys.rotate("crm")
    with scripted(answering(asked)) as url:
        push(way, url, 1)

    headers, body = asked[0].headers, asked[0].body
    at, signature = int(headers["webhook-timestamp"]), headers["webhook-signature"]
    for secret in (*old, *keys.secrets("crm")):
        assert verify([secret], headers["webhook-id"], at, body, signature)
