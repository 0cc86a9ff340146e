"""
A web shop: an order's row and its message to billing are one commit.

Run it by ``uvicorn shop:app --workers 2``; every process has the same file open.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request

from onceward import AsyncPostbox, Msg
from onceward.errors import Conflict
from onceward.types import AsyncTransaction

TABLE = """
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL, message TEXT)
"""
INSERT = "INSERT INTO orders (id, cents) VALUES (?, ?) ON CONFLICT (id) DO NOTHING"


class Order(Msg, type="order.placed"):
    """An order, as the customer sends it."""

    id: str
    cents: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the file while the application runs; closing it ends what is under way."""
    async with AsyncPostbox("shop.db", agent="shop") as box:
        async with box.begin() as tx:
            await tx.execute(TABLE)
        app.state.box = box
        yield


async def postbox(request: Request) -> AsyncPostbox:
    """Return the open file."""
    box: AsyncPostbox = request.app.state.box
    return box


async def transaction(
    box: Annotated[AsyncPostbox, Depends(postbox)],
) -> AsyncIterator[AsyncTransaction]:
    """Open the request's transaction; it is committed when the function has returned."""
    async with box.begin() as tx:
        yield tx


Box = Annotated[AsyncPostbox, Depends(postbox)]
Tx = Annotated[AsyncTransaction, Depends(transaction, scope="function")]
"""Commits before the response is sent, so a confirmed order is always stored."""

app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def place(order: Order, tx: Tx) -> dict[str, str]:
    """Take an order; the same order again is the same message."""
    await tx.execute(INSERT, (order.id, order.cents))
    try:
        message = await tx.send("billing", order, key=f"order-{order.id}")
    except Conflict as error:
        raise HTTPException(409, "another order has this id") from error
    return {"order": order.id, "message": message}


@app.get("/orders/{order}")
async def show(order: str, box: Box) -> dict[str, Any]:
    """Show an order; reading waits for no writer."""
    found = await box.query("SELECT cents FROM orders WHERE id = ?", (order,))
    if not found:
        raise HTTPException(404, "there is no such order")
    return {"order": order, "cents": found[0][0]}


@app.get("/health")
async def health(box: Box) -> dict[str, Any]:
    """Say what waits; for a load balancer."""
    found = await box.file.stats()
    return {"pending": found["pending"]}
