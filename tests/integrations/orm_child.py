"""A process of its own that writes rows and messages by SQLAlchemy until it is killed: ``FILE``."""

from __future__ import annotations

import sys
import time

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceward import Agent, Context, Postbox
from onceward.integrations.sqlalchemy import engine, session_for, transaction

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

    with Postbox(path, agent=agent, hold_unknown=True, start=False, lease=0.2) as box:
        Base.metadata.create_all(engine(box))
        while True:
            n = time.time_ns()
            box.send("shop", n, type="order")
            while not box.query(DONE, (n,)):  # one of before a kill is leased for a moment
                box.run_until_idle()
            say("committed")


if __name__ == "__main__":
    if sys.argv[1] == "handle":
        handle(sys.argv[2])
    with Postbox(sys.argv[2], agent="shop", hold_unknown=True, start=False) as opened:
        sell(opened)
