"""An endpoint that is mounted into an app of FastAPI takes parcels beside the app's own routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread

import httpx2
import uvicorn
from fastapi import FastAPI, Request, Response
from tests.ports import free_port
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.http import HttpEndpoint
from onceward.keys import Keys

bob = Agent("bob")


@bob.on("text")
def answer(question: str) -> str:
    """Answer a question."""
    return f"{question} indeed"


def made(far: Path) -> FastAPI:
    """Return an app with a route and a middleware of its own, and with Bob."""
    endpoint = HttpEndpoint()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with Postbox(far / "bob.db", agent=bob, listeners=[endpoint]):
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/onceward", endpoint.app)

    @app.get("/orders")
    def orders() -> dict[str, int]:
        return {"open": 0}

    @app.middleware("http")
    async def named(request: Request, call_next: object) -> Response:
        response: Response = await call_next(request)  # type: ignore[operator]
        response.headers["x-app"] = "shop"
        return response

    return app


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Serve an app, as its operator does; yield its url."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    thread = Thread(target=asyncio.run, args=(server.serve(),))
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def test_a_mounted_endpoint_takes_parcels(tmp_path: Path) -> None:
    """Messages, their outcomes and pings pass the mounted app; the app's routes go on."""
    near, far = tmp_path / "near", tmp_path / "far"
    for home in (near, far):
        home.mkdir()
    Keys(far).add("alice", Keys(near).create("bob"))
    with running(made(far)) as url, Postbox(near / "alice.db", agent="alice") as alice:
        alice.peers.add("bob", f"{url}/onceward")
        sent = alice.send("bob", "so")
        left = alice.flush(timeout=60)
        pinged = alice.peers.ping("bob")
        with httpx2.Client(trust_env=False) as client:
            own = client.get(f"{url}/orders")
            slash = client.post(f"{url}/onceward/v1/agents/bob/parcels/")
    with Postbox(far / "bob.db", start=False) as box:
        found = box.history()

    assert (0, ["so"]) == (left, [each.body for each in found.messages if each.id == sent])
    assert abs(pinged.clock_ahead) < 60_000
    assert ({"open": 0}, "shop", 404) == (own.json(), own.headers["x-app"], slash.status_code)
