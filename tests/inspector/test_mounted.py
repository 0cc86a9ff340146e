"""Inside another application: under its path, behind its proxy, for the readers that it allows."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urljoin

import pytest
from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Mount
from starlette.testclient import TestClient
from tests.waiting import until

from onceward import AsyncPostbox, Postbox
from onceward.errors import InvalidArgument
from onceward.ops.inspector import Reader, inspector
from onceward.ops.inspector.pages.live import Streams

if TYPE_CHECKING:
    from tests.inspector.conftest import Home

BASE = "http://localhost"
ADDRESS = re.compile(r'\b(?:href|src|action|formaction|hx-get|data-src|data-events)="([^"]+)"')
FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
SHARED = "of all workers"


def ann(_: Request) -> Reader:
    """Allow one reader to read and write."""
    return Reader("ann", write=True)


@contextmanager
def mounted(
    pages: Any, app: Any = None, seen: str = "/mail", **options: Any
) -> Iterator[TestClient]:
    """Mount the pages in an application, and yield a client once all files have been read."""
    app = app or FastAPI()
    app.mount(unquote(seen), pages)
    with TestClient(app, base_url=BASE, **options) as client:
        until(lambda: client.get(f"{seen}/ready").status_code != 503)
        yield client
        pages._made.state.site.refresher.stop()


def stripped() -> FastAPI:
    """Return an application that knows which prefix its proxy strips."""
    app = FastAPI()
    app.root_path = "/shop"
    return app


def addresses(web: TestClient, page: str) -> list[str]:
    """Return the addresses of this host on a page."""
    found = (urljoin(page, unescape(each)) for each in ADDRESS.findall(web.get(page).text))
    return [each.partition("#")[0] for each in found if each.startswith("/")]


@pytest.mark.parametrize(
    ("kind", "seen", "root", "most"),
    [
        (FastAPI, "/mail", "", 120),
        (FastAPI, "/ops/mail%20box", "", 30),
        (Starlette, "/mail", "", 30),
        (stripped, "/mail", "/shop", 30),
    ],
    ids=["fastapi", "deep", "starlette", "behind a proxy that strips"],
)
def test_every_address_is_under_the_prefix(
    home: Home, kind: Any, seen: str, root: str, most: int
) -> None:
    """Links, assets, forms and data of all pages lead to pages, as a reader's browser asks."""
    with mounted(inspector(home.path, allow=ann), kind(), seen) as web:
        known, ahead = set[str](), [f"{root}{seen}/"]
        while ahead and len(known) < most:
            page = ahead.pop(0)
            inside = page.removeprefix(root)
            if page in known or inside.startswith(f"{seen}/events"):
                continue
            known.add(page)
            answer = web.get(inside)
            assert answer.status_code < 500, page
            assert 404 != answer.status_code, page
            if "text/html" in answer.headers["content-type"]:
                found = (
                    addresses(web, inside)
                    if not root
                    else [
                        unescape(each).partition("#")[0]
                        for each in ADDRESS.findall(answer.text)
                        if each.startswith("/")
                    ]
                )
                assert [] == [each for each in found if not each.startswith(f"{root}{seen}/")]
                ahead += [each for each in found if "/act/" not in each]

    assert (most, True) == (len(known), f"{root}{seen}/static/inspector.js" in known)


def test_a_proxy_that_keeps_the_prefix_is_followed(home: Home) -> None:
    """A server that is told its root path, as uvicorn --root-path, adds it to every path."""
    app = Starlette(routes=[Mount("/mail", pages := inspector(home.path, allow=ann))])
    with TestClient(app, base_url=BASE, root_path="/shop") as web:
        until(lambda: web.get("/shop/mail/ready").status_code != 503)
        found = addresses(web, "/shop/mail/problems")
        pages._made.state.site.refresher.stop()  # type: ignore[attr-defined]

    assert "/shop/mail/static/style.css" in found
    assert {True} == {each.startswith("/shop/mail/") for each in found}


def test_no_reader_is_allowed_by_default(home: Home) -> None:
    """Without a callable every address is refused, and no file is read."""
    with TestClient(Starlette(routes=[Mount("/mail", inspector(home.path))])) as web:
        told = [web.get(f"/mail{each}") for each in ("/", "/live", "/static/style.css", "/dead")]

    assert {403} == {each.status_code for each in told}
    assert "onceward" not in told[0].text


def test_the_application_says_who_reads(home: Home) -> None:
    """By a value, a response or an error of its own; by a function or a coroutine function."""

    async def later(request: Request) -> Any:
        match request.query_params.get("as"):
            case "reader":
                return Reader("ann")
            case "guest":
                return RedirectResponse("/login")
            case "stranger":
                return None
        raise HTTPException(418, "short and stout")

    def at_once(request: Request) -> Any:
        return later(request)

    for allow in (later, at_once):
        app = Starlette(routes=[Mount("/mail", pages := inspector(home.path, allow=allow))])
        with TestClient(app, base_url=BASE, follow_redirects=False) as web:
            names = ("reader", "guest", "stranger", "teapot")
            told = [web.get(f"/mail/dead?as={name}") for name in names]
            pages._made.state.site.refresher.stop()  # type: ignore[attr-defined]

        assert [200, 307, 403, 418] == [each.status_code for each in told]
        assert "/login" == told[1].headers["location"]
        assert "DENY" not in told[0].headers.get("x-frame-options", "")
        assert "no-store" == told[2].headers["cache-control"]


def test_another_value_is_an_error(home: Home) -> None:
    """A mistake in the callable allows no reader."""
    pages = inspector(home.path, allow=lambda _: True)  # type: ignore[arg-type,return-value]
    with (
        TestClient(Starlette(routes=[Mount("/mail", pages)])) as web,
        pytest.raises(InvalidArgument, match="must return a Reader, a response or None, not True"),
    ):
        web.get("/mail/")


def fields(web: TestClient, page: str) -> dict[str, str]:
    """Return the fields of the form of an action."""
    return dict(FIELD.findall(web.get(page).text))


def test_only_a_reader_that_may_write_does(home: Home, tmp_path: Path) -> None:
    """Pages are read-only by default; an action is logged with the name of its reader."""

    def allow(request: Request) -> Reader:
        return Reader(request.headers["x-user"], write=request.headers["x-user"] == "ann")

    audit, page = tmp_path / "audit.jsonl", "/mail/agents/shop/act/pause"
    with mounted(inspector(home.path, allow=allow, audit=audit), headers={"x-user": "ann"}) as web:
        form = fields(web, page)
        refused = web.post(page, data=form, headers={"x-user": "bob"})
        plain = web.get("/mail/agents/shop", headers={"x-user": "bob"}).text
        foreign = web.post(page, data=form, headers={"sec-fetch-site": "cross-site"})
        done = web.post(page, data=form, headers={"sec-fetch-site": "same-origin"})

    assert [403, 403, 200] == [each.status_code for each in (refused, foreign, done)]
    assert ("/act/" in plain, "/mail/agents/shop/act/resume" in done.text) == (False, True)
    lines = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    assert [("inspect.pause", "ann")] * 2 == [(each["op"], each["by"]) for each in lines]
    with Postbox(home.path / "shop.db", start=False) as box:
        assert box.file.health().paused


def test_without_an_audit_file_nothing_is_changed(home: Home) -> None:
    """Also for a reader that may write."""
    with mounted(inspector(home.path, allow=ann)) as web:
        assert 403 == web.get("/mail/agents/shop/act/pause").status_code


def test_processes_of_one_secret_take_each_other_s_forms(home: Home, tmp_path: Path) -> None:
    """A form of one worker of a server may be sent to another one; of a stranger it is refused."""
    page, told = "/mail/agents/shop/act/pause", list[int]()
    with mounted(inspector(home.path, allow=ann, audit=tmp_path / "a", secret=SHARED)) as first:
        form, cookies = fields(first, page), dict(first.cookies)
    for secret in (SHARED, None):
        pages = inspector(home.path, allow=ann, audit=tmp_path / "a", secret=secret)
        with mounted(pages, cookies=cookies) as web:
            told.append(web.post(page, data=form).status_code)

    assert [200, 403] == told


def test_open_postboxes_are_shown_and_changed(tmp_path: Path) -> None:
    """The process has the file open, with its engines, while pages read it and an action writes."""

    async def run() -> tuple[int, bool]:
        async with AsyncPostbox(tmp_path / "b.db", agent="b") as later:
            with Postbox(tmp_path / "a.db", agent="a") as box:
                pages = inspector(box, later, allow=ann, audit=tmp_path / "audit.jsonl")
                return await asyncio.to_thread(changed, pages, box)

    def changed(pages: Any, box: Postbox) -> tuple[int, bool]:
        with mounted(pages) as web:
            sent = box.send("b", "hello")
            until(lambda: box.state(sent) == "sent")
            page = "/mail/agents/a/act/pause"
            web.post(page, data=fields(web, page))
            shown = ("a/messages?box=outbox", "b/messages?box=inbox")
            answers = (web.get(f"/mail/agents/{each}") for each in shown)
            return sum("hello" in each.text for each in answers), box.file.health().paused

    assert (2, True) == asyncio.run(run())


def test_a_stream_ends_so_that_a_server_can_stop(home: Home) -> None:
    """Its page asks again, from the last change that it knows: none is missed between two."""
    pages = inspector(home.path, allow=ann)
    site: Any = pages._made.state.site  # type: ignore[attr-defined]
    site.refresher.refresh()

    async def told(since: int | None) -> list[str]:
        return [each async for each in Streams(2).events(site, [], since)]

    version = site.refresher.version
    assert [f"retry: 2000\nid: {version}\n\n"] == asyncio.run(told(None))
    late = asyncio.run(told(version - 1))
    assert f"event: changed\nid: {version}\n" in late[1]
    with mounted(pages) as web:
        assert (
            "retry: 2000\nid: 7\n\n" in web.get("/mail/events", headers={"last-event-id": "7"}).text
        )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: inspector(cast("Any", 5)), "5 is not a postbox, a home or a file"),
        (lambda: inspector("a.db", allow=cast("Any", "x")), "allow='x' must be a function"),
        (lambda: inspector("a.db", audit=cast("Any", 5)), "audit=5 must be the path"),
        (lambda: Reader(cast("Any", 7)), "name=7 must be text"),
        (lambda: Reader("ann", write=cast("Any", "yes")), "write='yes' must be True or False"),
    ],
)
def test_a_wrong_argument_is_named(wrong: Callable[[], object], told: str) -> None:
    """Before the first request, which would be answered with an error."""
    with pytest.raises(InvalidArgument, match=told):
        wrong()
