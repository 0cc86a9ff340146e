"""Webhooks become messages: each once, after its commit, or its provider sends it again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from tests.children import PYTHON, run
from tests.integrations.webhooks.test_verify import BODY, github, stripe

from onceward import Agent, AsyncPostbox, Context, Postbox
from onceward.errors import DiskFull, InvalidArgument
from onceward.webhooks import GitHub, Stripe, WebhookEndpoint


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """A postbox without engines."""
    with Postbox(tmp_path / "ci.db", agent="ci", start=False) as made:
        yield made


@pytest.fixture
def endpoint(box: Postbox) -> WebhookEndpoint:
    """Takes GitHub's webhooks for the postbox's own agent, up to 100 bytes."""
    made = WebhookEndpoint(box, max_body=100)
    made.add("github", GitHub("s"))
    return made


def client(endpoint: WebhookEndpoint) -> TestClient:
    """Return a client of an app in which the endpoint is mounted."""
    return TestClient(Starlette(routes=[Mount("/hooks", app=endpoint.app)]))


def rows(box: Postbox) -> list[Any]:
    """Return what was sent."""
    return box.query("SELECT type, recipient FROM onceward_outbox")


def test_a_webhook_is_one_message(endpoint: WebhookEndpoint, box: Postbox) -> None:
    """Its repetition gets the same answer; the message has the event as its type."""
    answers = [client(endpoint).post("/hooks/github", content=BODY, headers=github())] * 2
    answers.append(client(endpoint).post("/hooks/github", content=BODY, headers=github()))

    assert [("github.push", "ci")] == rows(box)
    assert [(200, {"id": box.query("SELECT id FROM onceward_outbox")[0][0]})] * 3 == [
        (each.status_code, each.json()) for each in answers
    ]
    box.run_until_idle()
    message = box.receive()
    assert message is not None
    with message:
        assert json.loads(BODY) == message.body


def test_a_repetition_may_differ(endpoint: WebhookEndpoint, box: Postbox) -> None:
    """Stripe counts the pending webhooks in the body: the first delivery of an id counts."""
    endpoint.add("stripe", Stripe("s"))
    other = BODY.replace(b"5", b"6")
    answers = [
        client(endpoint).post("/hooks/stripe", content=body, headers=stripe(body))
        for body in (BODY, other)
    ]

    assert [200, 200] == [each.status_code for each in answers]
    assert answers[0].json() == answers[1].json()
    assert [("stripe.invoice.paid", "ci")] == rows(box)


@pytest.mark.parametrize(
    ("status", "name", "body", "signed"),
    [
        (404, "gitlab", BODY, True),
        (401, "github", BODY, False),
        (400, "github", b"{", True),
        (400, "github", b"[NaN]", True),
        (400, "github", b"1e999", True),
        (413, "github", b" " * 101, False),
    ],
)
def test_what_is_not_one_is_refused(
    endpoint: WebhookEndpoint, box: Postbox, *, status: int, name: str, body: bytes, signed: bool
) -> None:
    """With the status that says whose mistake it is; nothing is stored."""
    headers = github(body) if signed else {}
    answer = client(endpoint).post(f"/hooks/{name}", content=body, headers=headers)

    assert status == answer.status_code
    assert not rows(box)


def test_a_file_that_cannot_store_it_asks_for_it_again(
    endpoint: WebhookEndpoint, box: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider repeats what got 503; the text tells it nothing about the machine."""

    def full(*_: object, **__: object) -> str:
        raise DiskFull("/srv/secret is full")

    monkeypatch.setattr(box, "send", full)
    answer = client(endpoint).post("/hooks/github", content=BODY, headers=github())

    assert (503, "10") == (answer.status_code, answer.headers["retry-after"])
    assert "secret" not in answer.text


DIES = """
import os, sys
from starlette.applications import Starlette
from starlette.testclient import TestClient
from onceward import Postbox
from onceward.webhooks import GitHub, WebhookEndpoint
from tests.children import PYTHON, run
from tests.integrations.webhooks.test_verify import BODY, github

with Postbox(sys.argv[1], agent="ci", start=False) as box:
    send = box.send
    box.send = lambda *args, **options: send(*args, **options) and os._exit(9)
    made = WebhookEndpoint(box)
    made.add("github", GitHub("s"))
    TestClient(made.app).post("/github", content=BODY, headers=github())
"""


def test_a_process_that_dies_before_its_answer_is_asked_again(
    endpoint: WebhookEndpoint, box: Postbox
) -> None:
    """Between the commit and the answer: the repetition finds the message, and sends none."""
    died = run([*PYTHON, "-c", DIES, str(box.file.path)], check=False)
    answer = client(endpoint).post("/hooks/github", content=BODY, headers=github())

    assert (9, 200) == (died.returncode, answer.status_code)
    assert [("github.push", "ci")] == rows(box)


def test_webhooks_of_one_key_keep_their_order(endpoint: WebhookEndpoint, box: Postbox) -> None:
    """By the function that is given; without one each has a lane of its own."""
    endpoint.add("repo", GitHub("s"), ordering_key=lambda body: str(body["cents"]))
    for n, name in enumerate(("github", "github", "repo", "repo")):
        headers = github() | {"x-github-delivery": f"d{n}"}
        assert client(endpoint).post(f"/hooks/{name}", content=BODY, headers=headers).is_success

    lanes = [lane for (lane,) in box.query("SELECT lane FROM onceward_outbox ORDER BY seq")]
    assert ["5", "5"] == lanes[2:]
    assert 3 == len(set(lanes))


@pytest.mark.parametrize("long", ["d" * 5000, "d\x85"])
def test_any_id_of_a_provider_is_a_key(endpoint: WebhookEndpoint, box: Postbox, long: str) -> None:
    """Also one that is longer than a key may be, or not printable."""
    for _ in range(2):
        headers = github() | {"x-github-delivery": long}
        encoded = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
        assert client(endpoint).post("/hooks/github", content=BODY, headers=encoded).is_success

    assert [("github.push", "ci")] == rows(box)


def test_an_event_that_cannot_be_a_type_is_refused(endpoint: WebhookEndpoint, box: Postbox) -> None:
    """GitHub's event is not signed: it may be anything."""
    headers = github() | {"x-github-event": "x" * 300}
    answer = client(endpoint).post("/hooks/github", content=BODY, headers=headers)

    assert 400 == answer.status_code
    assert not rows(box)


@pytest.mark.parametrize("name", ["github", "a/b", ""])
def test_a_name_is_taken_once(endpoint: WebhookEndpoint, name: str) -> None:
    """And is the last part of a path."""
    with pytest.raises(InvalidArgument):
        endpoint.add(name, GitHub("s"))


def test_an_asynchronous_postbox_takes_them(tmp_path: Path) -> None:
    """Its handler gets the body, and writes in its own transaction."""
    ci = Agent("ci")

    @ci.on("github.push")
    def push(body: dict[str, Any], ctx: Context) -> None:
        ctx.tx.execute("CREATE TABLE IF NOT EXISTS pushes (cents)")
        ctx.tx.execute("INSERT INTO pushes VALUES (?)", (body["cents"],))

    async def take() -> tuple[int, list[Any]]:
        async with AsyncPostbox(tmp_path / "ci.db", agent=ci, start=False) as box:
            made = WebhookEndpoint(box)
            made.add("github", GitHub("s"))
            status = await post(made.app, "/github", github(), BODY)
            await box.run_until_idle()
            return status, await box.query("SELECT cents FROM pushes")

    assert (200, [(5,)]) == asyncio.run(take())


async def post(app: Callable[..., Any], path: str, headers: dict[str, str], *parts: bytes) -> int:
    """Call an ASGI app on this loop, and return the status."""
    incoming = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    incoming.append({"type": "http.request", "body": b"", "more_body": False})
    told = list[Any]()

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(event: Any) -> None:
        told.append(event)

    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "root_path": "", "query_string": b"", "http_version": "1.1", "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    await app(scope, receive, send)
    status: int = told[0]["status"]
    return status
