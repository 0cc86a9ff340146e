"""Calls of tasks: a line that a type checker must refuse has a mark; read by mypy and pyright."""

from datetime import datetime
from typing import Any, assert_type

from onceward import (
    Agent,
    AsyncContext,
    AsyncPostbox,
    Context,
    Depends,
    Msg,
    Postbox,
    Run,
    Session,
    Ticket,
    Transaction,
)


class Order(Msg, type="order"):
    """A message of a known type."""

    id: int


jobs = Agent("jobs")


@jobs.on(Order)
def ship(order: Order) -> str:
    """Handle a message."""
    return str(order.id)


@jobs.task
def resize(path: str, width: int = 200) -> str:
    """Take plain arguments."""
    return f"{path} {width}"


@jobs.task(attempts=2)
async def fetch(ctx: AsyncContext, url: str, *, deep: bool = False) -> list[int]:
    """Take the context first, and an argument by its name."""
    await ctx.send("jobs", url)
    return [int(deep)]


@jobs.task(type="charge")
def charge(ctx: Context, cents: int, rate: float = Depends(float)) -> float:
    """Take the context, and the value of a function."""
    return cents * rate * ctx.message.attempt


@jobs.cron("0 3 * * *")
@jobs.task
def clean() -> None:
    """Take nothing; a schedule and programs call it."""


@jobs.task
def store(data: Any, copies: int = 1) -> None:
    """Take anything."""


def right_calls(box: Postbox, session: Session, tx: Transaction, ctx: Context, run: Run) -> None:
    """Send to tasks from everything that sends."""
    assert_type(resize.send(box, "a.png"), str)
    resize.send(session, "a.png", width=3)
    resize.send(tx, "a.png", 3)
    resize.send(ctx, path="a.png")
    resize.send(run, "a.png")
    assert_type(resize.ask(box, "a.png"), str)
    assert_type(resize.ask(run, "a.png"), str)
    assert_type(fetch.ask(ctx, "x", deep=True), list[int])
    assert_type(charge.ask(box, 3), float)
    assert_type(resize.at(tx, datetime.now().astimezone(), "a.png"), str)
    assert_type(resize.options(delay=60, key="a").send(box, "a.png"), str)
    assert_type(resize.options(timeout="2s").ask(box, "a.png"), str)
    assert_type(resize.request(box, "a.png"), Ticket)
    assert_type(resize.request(tx, "a.png", width=3), Ticket)
    assert_type(fetch.options(ordering_key="x").request(ctx, "x"), Ticket)
    assert_type(ship.request(run, Order(id=1)), Ticket)
    assert_type(resize("a.png"), str)
    assert_type(charge(ctx, 3), float)
    assert_type(ship.at(box, 10**12, Order(id=1)), str)
    assert_type(ship.options(delay=3).ask(box, Order(id=1)), str)
    clean.send(box)
    clean()
    store.send(box, data=[1], copies=2)


async def awaited_calls(box: AsyncPostbox, ctx: AsyncContext) -> None:
    """Await what an async postbox or context returns."""
    assert_type(await resize.send(box, "a.png"), str)
    assert_type(await resize.ask(ctx, "a.png"), str)
    assert_type(await resize.request(ctx, "a.png"), Ticket)
    assert_type(await resize.request(box, "a.png"), Ticket)
    assert_type(await fetch.options(priority="low").ask(box, "x"), list[int])
    assert_type(await fetch(ctx, "x"), list[int])


def wrong_calls(box: Postbox, tx: Transaction) -> None:
    """Give tasks what they do not take, and use their results as what they are not."""
    resize.send(box)  # type: ignore[call-arg]
    resize.send(box, 3)  # type: ignore[arg-type]
    resize.send(box, "a.png", widht=3)  # type: ignore[call-arg]
    resize.send(box, "a.png", "3")  # type: ignore[arg-type]
    resize.send("a.png")  # type: ignore[call-arg, arg-type]
    resize.ask(box, "a.png").bit_count()  # type: ignore[attr-defined]
    resize.ask(tx, "a.png")  # type: ignore[call-overload]
    resize.options(dely=3)  # type: ignore[call-arg]
    resize.options(priority="hihg")  # type: ignore[arg-type]
    resize.at(box, "a.png", 3)  # type: ignore[arg-type]
    resize(3)  # type: ignore[arg-type]
    charge.send(box, "3")  # type: ignore[arg-type]
    fetch.send(box, "x", True)  # type: ignore[call-arg]
    clean.send(box, 3)  # type: ignore[call-arg]
    jobs.task(atempts=3)  # type: ignore[call-overload]
    ship.at(box, 10**12, "one")  # type: ignore[arg-type]
    ship.options(key="a").send(box, 3)  # type: ignore[arg-type]
