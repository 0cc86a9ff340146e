"""``/metrics``: what a scraper gets, and what a stranger does not."""

import http.client
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from onceward import Postbox
from onceward.errors import InvalidArgument
from onceward.metrics import FileMetrics, MetricsServer, are_ready, asgi_app, new_registry

GIVEN = "seven-words"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def server(shop: Postbox) -> Iterator[MetricsServer]:
    """Return a server of a file's metrics at a loopback address."""
    found = serve(shop, "127.0.0.1:0")
    yield found
    found.close()


def serve(shop: Postbox, address: str, token: str = "") -> MetricsServer:
    """Serve a file's metrics."""
    registry = new_registry()
    registry.register(FileMetrics([shop.file.path]))
    return MetricsServer(registry, address, token=token)


def ask(server: MetricsServer, path: str = "/metrics", verb: str = "GET", **headers: str) -> Any:
    """Return status, headers and text of an answer."""
    port = urlsplit(server.url).port
    con = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        con.request(verb, path, headers=headers)
        answer = con.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        con.close()


def test_a_scraper_gets_the_metrics(server: MetricsServer) -> None:
    """In the format that it asks for; with HEAD without the text."""
    status, headers, text = ask(server)
    _, others, other = ask(server, Accept=OPEN_METRICS)

    assert (200, "no-store") == (status, headers["cache-control"])
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'onceward_outbox_pending{agent="shop"} 0.0\n' in text
    assert (True, True) == (
        others["content-type"].startswith("application/openmetrics-text"),
        other.endswith("# EOF\n"),
    )
    assert (200, "") == ask(server, verb="HEAD")[::2]


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/", {}, 404),
        ("/metrics/x", {}, 404),
        ("/metrics?x=1", {}, 200),
        ("/metrics", {"Host": "evil.example"}, 421),
        ("/metrics", {"Host": "["}, 421),
        ("/metrics", {"Host": "localhost:1"}, 200),
        ("/metrics", {"Host": "[::1]:9464"}, 200),
    ],
)
def test_only_its_own_names_are_answered(
    server: MetricsServer, path: str, headers: dict[str, str], expected: int
) -> None:
    """A web page whose name was made to mean this machine gets nothing."""
    assert expected == ask(server, path, **headers)[0]


def test_other_methods_are_refused(server: MetricsServer) -> None:
    """Nothing can be written there."""
    assert 405 == ask(server, verb="POST")[0]


@pytest.mark.parametrize("given", ["", "Bearer other", "Basic secret", "Bearer s\u00e4cret"])
def test_a_token_is_demanded_where_there_is_one(shop: Postbox, given: str) -> None:
    """Only the whole token opens; the answer to all others is the same."""
    server = serve(shop, "127.0.0.1:0", token=GIVEN)
    try:
        found = ask(server, **{"Authorization": given} if given else {})
        right = ask(server, Authorization=f"Bearer {GIVEN}")
    finally:
        server.close()

    assert (401, "Bearer", "give the token: Authorization: Bearer TOKEN") == (
        found[0],
        found[1]["www-authenticate"],
        found[2],
    )
    assert 200 == right[0]


def test_other_machines_need_a_token(shop: Postbox) -> None:
    """An address that others reach is refused without one; with it any Host is answered."""
    with pytest.raises(InvalidArgument, match="ONCEWARD_METRICS_TOKEN"):
        serve(shop, "0.0.0.0:0")
    server = serve(shop, "0.0.0.0:0", token=GIVEN)
    try:
        assert 200 == ask(server, Host="node.example", Authorization=f"Bearer {GIVEN}")[0]
    finally:
        server.close()


@pytest.mark.parametrize("address", ["", "99999", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:1/x", "["])
def test_an_address_is_host_and_port(shop: Postbox, address: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(InvalidArgument, match=r"write HOST:PORT|cannot serve"):
        serve(shop, address)


def test_a_port_that_is_taken_is_told(shop: Postbox, server: MetricsServer) -> None:
    """The error names the address."""
    address = urlsplit(server.url).netloc
    with pytest.raises(InvalidArgument, match=f"cannot serve metrics at {address}"):
        serve(shop, address)


def test_probes_tell_the_state_and_nothing_else(shop: Postbox) -> None:
    """Alive while it answers; ready while no agent is paused and its file can be read."""
    server = MetricsServer(
        new_registry(), "127.0.0.1:0", token=GIVEN, ready=lambda: are_ready([shop])
    )
    found = []
    steps: list[Callable[[], object]] = [
        shop.file.stats,
        shop.file.pause,
        shop.file.resume,
        shop.close,
    ]
    try:
        for step in steps:
            step()
            found.append((ask(server, "/live")[::2], ask(server, "/ready")[::2]))
    finally:
        server.close()

    ok, away = (200, ""), (503, "")
    assert [(ok, ok), (ok, away), (ok, ok), (ok, away)] == found


@pytest.mark.parametrize(
    ("verb", "status", "has_text"), [("GET", 200, 1), ("HEAD", 200, 0), ("PUT", 405, 0)]
)
def test_the_app_can_be_mounted(shop: Postbox, verb: str, status: int, has_text: int) -> None:
    """An ASGI app answers reads with the same text."""
    registry = new_registry()
    registry.register(FileMetrics([shop.file.path]))

    answer = TestClient(asgi_app(registry)).request(verb, "/metrics")

    assert (status, bool(has_text)) == (answer.status_code, "onceward_paused" in answer.text)
