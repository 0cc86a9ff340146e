"""Signatures of webhooks: the providers' own examples, and everything that must not pass."""

from __future__ import annotations

import hmac
import json
import time
from base64 import b64decode, b64encode
from collections.abc import Callable

import pytest

from onceward.errors import InvalidArgument
from onceward.webhooks import GitHub, NotJson, NotVerified, StandardWebhooks, Stripe, Webhook

EXAMPLE = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The key in the examples of Standard Webhooks' libraries."""
OLD = "100000d"
BODY = b'{"id": "evt_1", "type": "invoice.paid", "cents": 5}'
HEADERS = dict[str, str]


def standard(body: bytes = BODY, *, at: int | None = None, prefix: str = "webhook-") -> HEADERS:
    """Return the headers of Standard Webhooks, signed by ``EXAMPLE``."""
    at = int(time.time()) if at is None else at
    key = b64decode(EXAMPLE.removeprefix("whsec_"))
    mac = hmac.digest(key, f"msg_1.{at}.".encode() + body, "sha256")
    signature = f"v1,{b64encode(b'0' * 32).decode()} v1,{b64encode(mac).decode()}"
    return {f"{prefix}id": "msg_1", f"{prefix}timestamp": str(at), f"{prefix}signature": signature}


def github(body: bytes = BODY) -> HEADERS:
    """Return GitHub's headers, signed by the secret "s"."""
    mac = hmac.digest(b"s", body, "sha256").hex()
    return {
        "x-hub-signature-256": f"sha256={mac}",
        "x-github-delivery": "d1",
        "x-github-event": "push",
    }


def stripe(body: bytes = BODY, *, at: int | None = None) -> HEADERS:
    """Return Stripe's header, signed by the secret "s", with one of an unknown version."""
    at = int(time.time()) if at is None else at
    mac = hmac.digest(b"s", f"{at}.".encode() + body, "sha256").hex()
    return {"stripe-signature": f"t={at},v0={'0' * 64},v1={'0' * 64},v1={mac}"}


def test_the_example_of_standard_webhooks_is_verified() -> None:
    """The example that its libraries are tested with; its time is of 2021."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    verify = StandardWebhooks(EXAMPLE, tolerance=OLD)

    expected = Webhook("msg_p5jXN8AQM9LWM0D4loKWxJek", "", {"test": 2432232314})
    assert expected == verify(headers, b'{"test": 2432232314}')


def test_the_example_of_github_is_verified() -> None:
    """GitHub's page on signatures has a body that is not JSON: it passes the first check only."""
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": f"sha256={digest}", "x-github-delivery": "d"}

    with pytest.raises(NotJson):
        GitHub("It's a Secret to Everybody")(headers, b"Hello, World!")


def test_each_provider_tells_its_id_and_event() -> None:
    """From where the provider puts them; one of two secrets is enough."""
    found = [
        StandardWebhooks(["whsec_AAAA", EXAMPLE])(standard(), BODY),
        StandardWebhooks(EXAMPLE)(standard(prefix="svix-"), BODY),
        GitHub(["other", "s"])(github(), BODY),
        Stripe(["other", "s"])(stripe(), BODY),
    ]

    assert [
        ("msg_1", "invoice.paid"),
        ("msg_1", "invoice.paid"),
        ("d1", "push"),
        ("evt_1", "invoice.paid"),
    ] == [(each.id, each.event) for each in found]


@pytest.mark.parametrize(
    ("verify", "signed"),
    [(StandardWebhooks(EXAMPLE), standard), (GitHub("s"), github), (Stripe("s"), stripe)],
)
def test_nothing_else_is_verified(
    verify: Callable[[HEADERS, bytes], Webhook], signed: Callable[[], HEADERS]
) -> None:
    """Another body, a header that is missing, empty, cut, or of another kind."""
    headers = signed()
    assert verify(headers, BODY).body == json.loads(BODY)
    wrong = [(headers, BODY.replace(b"5", b"6")), ({}, BODY)]
    for name in headers:
        if name.startswith("x-github-"):  # GitHub sends them beside, unsigned
            continue
        wrong += [({**headers, name: value}, BODY) for value in ("", "=", "\xe9", "v1,", "sha256=")]
        wrong.append(({key: value for key, value in headers.items() if key != name}, BODY))
        if "signature" in name:
            wrong.append(({**headers, name: headers[name][:-1]}, BODY))

    for given, body in wrong:
        with pytest.raises(NotVerified):
            verify(given, body)


def test_github_sends_an_id() -> None:
    """Without one a repetition would be another message."""
    without = {name: value for name, value in github().items() if name != "x-github-delivery"}
    for headers in (without, without | {"x-github-delivery": ""}):
        with pytest.raises(NotVerified, match="x-github-delivery is missing"):
            GitHub("s")(headers, BODY)


@pytest.mark.parametrize("off", [-301, 301])
def test_an_old_signature_is_refused(off: int) -> None:
    """Five minutes before or after our clock; a recorded request is worth nothing later."""
    at = int(time.time()) + off

    with pytest.raises(NotVerified, match="off by more than 300 s"):
        StandardWebhooks(EXAMPLE)(standard(at=at), BODY)
    with pytest.raises(NotVerified, match="off by more than 300 s"):
        Stripe("s")(stripe(at=at), BODY)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_signed_body_that_is_not_json_is_told(body: bytes) -> None:
    """As its sender's mistake, not as a forgery."""
    with pytest.raises(NotJson):
        GitHub("s")(github(body), body)


@pytest.mark.parametrize("secrets", ["", [], ["s", ""]])
def test_an_empty_secret_is_refused(secrets: str | list[str]) -> None:
    """Each caller could sign with it, as with a variable that is not set."""
    for verifier in (StandardWebhooks, GitHub, Stripe):
        with pytest.raises(InvalidArgument, match="needs a secret"):
            verifier(secrets)
    with pytest.raises(InvalidArgument, match="whsec_ and base64"):
        StandardWebhooks("whsec_?")
