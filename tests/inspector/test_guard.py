"""Requests that do not come from a reader of these pages are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from onceward.errors import InvalidArgument
from onceward.message.hosts import is_loopback
from onceward.ops.inspector import app
from onceward.ops.inspector.guard import cookie_name

if TYPE_CHECKING:
    from tests.inspector.conftest import Home

TOKEN = "a token of twenty-two"  # noqa: S105 - of this test


@pytest.fixture
def locked(home: Home) -> Iterator[TestClient]:
    """Return a client of an inspector that demands a token."""
    made = app([home.path], clock=home.clock, token=TOKEN, hosts=["agents.example.org"])
    made.state.site.refresher.refresh()
    client = TestClient(made, base_url="https://agents.example.org", follow_redirects=False)
    yield client
    client.close()
    made.state.site.refresher.stop()


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", 200), ("127.0.0.1:8424", 200), ("[::1]:8424", 200), ("evil.example", 421),
     ("localhost.evil.example", 421), ("", 421), ("[", 421), ("LOCALHOST", 200),
     ("evil.example@localhost", 421), ("localhost/evil.example", 421)],
)  # fmt: skip
def test_other_host_names_are_refused(web: TestClient, host: str, expected: int) -> None:
    """A page of another site whose name leads here reads nothing."""
    assert expected == web.get("/", headers={"host": host}).status_code


@pytest.mark.parametrize(
    "page", ["/", "/agents/shop", "/events", "/static/style.css", "/rates.json"]
)
def test_nothing_is_shown_without_the_token(locked: TestClient, page: str) -> None:
    """Not even a style sheet."""
    assert 401 == locked.get(page).status_code


@pytest.mark.parametrize("given", ["", "wrong", TOKEN[:-1], TOKEN + "x", "é"])
def test_another_token_is_refused(locked: TestClient, given: str) -> None:
    """Whole and equal, or none."""
    assert 401 == locked.get("/", params={"token": given}).status_code
    assert 401 == locked.get("/", headers={"cookie": f"{cookie_name(TOKEN)}={TOKEN}"}).status_code


def test_the_first_use_leaves_a_cookie_and_takes_the_token_out_of_the_address(
    locked: TestClient,
) -> None:
    """The cookie is for this site alone and not for scripts, and does not hold the token."""
    answer = locked.get("/dead", params={"token": TOKEN, "type": "x"})
    cookie = answer.headers["set-cookie"]

    assert (303, "/dead?type=x") == (answer.status_code, answer.headers["location"])
    assert "httponly" in cookie.lower()
    assert "samesite=lax" in cookie.lower()
    assert TOKEN not in cookie
    assert 200 == locked.get("/dead").status_code


def test_the_address_of_the_first_use_is_of_this_site(locked: TestClient) -> None:
    """Two slashes at its beginning would name another one."""
    answer = locked.get("https://agents.example.org//evil.example/", params={"token": TOKEN})

    assert answer.headers["location"].startswith("/evil.example")


def test_a_program_gives_the_token_as_a_bearer(locked: TestClient) -> None:
    """Each time; it needs no cookie."""
    given = {"authorization": f"Bearer {TOKEN}"}

    assert 200 == locked.get("/rates.json", headers=given).status_code
    assert 401 == locked.get("/rates.json", headers={"authorization": "Bearer x"}).status_code


def test_probes_need_no_token(locked: TestClient) -> None:
    """They tell nothing but that the program runs and has read the files."""
    assert (200, "alive") == ((answer := locked.get("/live")).status_code, answer.text)
    assert (200, "ready") == ((answer := locked.get("/ready")).status_code, answer.text)


def test_pages_are_not_kept_and_files_are_asked_for_anew(web: TestClient) -> None:
    """A browser keeps no page; a style sheet that is the same is not sent twice."""
    sheet = web.get("/static/style.css")
    again = web.get("/static/style.css", headers={"if-none-match": sheet.headers["etag"]})

    assert "no-store" == web.get("/").headers["cache-control"]
    assert ("no-cache", 304) == (sheet.headers["cache-control"], again.status_code)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("agents.example.org", False)],  # noqa: S104 - not bound
)  # fmt: skip
def test_loopback_is_told_from_other_addresses(host: str, *, expected: bool) -> None:
    """Every address that other machines may reach demands a token."""
    assert expected == is_loopback(host)


def test_a_pattern_that_is_none_is_refused(home: Home) -> None:
    """At the start, not at the first page."""
    with pytest.raises(InvalidArgument, match="not a regular expression"):
        app([home.path], redact=["("])


def test_an_inspector_of_nothing_is_refused() -> None:
    """It needs a home or a file."""
    with pytest.raises(InvalidArgument, match="which files"):
        app([])
