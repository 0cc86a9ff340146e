"""A process of its own that writes rows and messages by SQLAlchemy until it is killed: ``FILE``."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Annotated

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceward import Agent, AsyncContext, AsyncPostbox, Context, Depends, Postbox
from onceward.integrations.sqlalchemy import engine, session_for, transaction
from onceward.integrations.sqlalchemy.aio import (
    async_engine,
    async_session_for,
    async_transaction,
)

DONE = "SELECT 1 FROM orders WHERE n = ?"


class Base(DeclarativeBase):
    """The tables of the process."""


class Order(Base):
    """A row that has a message."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


def say(word: str) -> None:
    """Tell the parent how far it has come."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def sell(box: Postbox) -> None:
    """Commit an order and its message, one after the other."""
    db = engine(box)
    Base.metadata.create_all(db)
    while True:
        with Session(db) as session, session.begin():
            n = session.scalar(sa.select(sa.func.count()).select_from(Order))
            session.add(Order(n=n))
            session.flush()
            say("added")
            transaction(session).send("billing", n, type="order")
            say("sent")
        say("committed")


async def sell_on_loop(path: str) -> None:
    """Commit orders and their messages, by tasks that queue for the turn to write."""
    async with AsyncPostbox(path, agent="shop", hold_unknown=True, start=False) as box:
        db = async_engine(box)
        async with db.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

        async def sell_each() -> None:
            while True:
                async with AsyncSession(db) as session, session.begin():
                    n = await session.scalar(sa.select(sa.func.count()).select_from(Order))
                    session.add(Order(n=n))
                    await session.flush()
                    say("added")
                    await async_transaction(session).send("billing", n, type="order")
                    say("sent")
                say("committed")

        await asyncio.gather(*(sell_each() for _ in range(3)))


def handle(path: str) -> None:
    """Commit an order and a reply for each message that it sends to itself."""
    agent = Agent("shop")

    @agent.on("order")
    def book(n: int, ctx: Context) -> None:
        for session in session_for(ctx):
            session.add(Order(n=n))
            session.flush()
            say("added")
            ctx.send("billing", n, type="booked")
            say("sent")

    run(agent, path)


def handle_on_loop(path: str) -> None:
    """Do what ``handle`` does, by a coroutine."""
    agent = Agent("shop")

    @agent.on("order")
    async def book(
        n: int, ctx: AsyncContext, session: Annotated[AsyncSession, Depends(async_session_for)]
    ) -> None:
        session.add(Order(n=n))
        await session.flush()
        say("added")
        await ctx.send("billing", n, type="booked")
        say("sent")

    run(agent, path)


def run(agent: Agent, path: str) -> None:
    """Let *agent* handle one order after the other."""
    with Postbox(path, agent=agent, hold_unknown=True, start=False, lease=0.2) as box:
        Base.metadata.create_all(engine(box))
        while True:
            n = time.time_ns()
            box.send("shop", n, type="order")
            while not box.query(DONE, (n,)):  # one of before a kill is leased for a moment
                box.run_until_idle()
            say("committed")


if __name__ == "__main__":
    match sys.argv[1]:
        case "sell":
            with Postbox(sys.argv[2], agent="shop", hold_unknown=True, start=False) as opened:
                sell(opened)
        case "sell_on_loop":
            asyncio.run(sell_on_loop(sys.argv[2]))
        case "handle":
            handle(sys.argv[2])
        case "handle_on_loop":
            handle_on_loop(sys.argv[2])
