"""Calls that a type checker must refuse, each marked with its error; read by mypy only."""

# ruff: noqa: ARG005, B018 - the calls are wrong on purpose

from typing import Any

from onceward import (
    Agent,
    AsyncContext,
    AsyncMessage,
    AsyncPostbox,
    AsyncRun,
    Channel,
    Context,
    Mailbox,
    Message,
    Msg,
    Postbox,
    Run,
    Session,
    Settings,
)
from onceward.events import Acked, DeadLettered, Event
from onceward.testing import Harness
from onceward.types import AsyncChannel


class Order(Msg, type="order"):
    """A message of a known type."""

    id: int


agent = Agent("a")
Postbox("a.db", retry_frist=1)  # type: ignore[call-arg]
Postbox("a.db", durability="save")  # type: ignore[arg-type]
AsyncPostbox("a.db", agent="a", retry_frist=1)  # type: ignore[call-arg]
Settings.five_minutes(max_pendign=1)  # type: ignore[call-arg]
agent.runs("talk", mode="stear")  # type: ignore[arg-type]


@agent.on(Order)
async def ship(order: Order) -> str:
    """Take an order."""
    return str(order.id)


def typed_calls(box: Postbox) -> None:
    """Give a handler what it does not take, and use its reply as what it is not."""
    ship.send(box, "one")  # type: ignore[arg-type]
    ship.send(box, Order(id=1), tll=3)  # type: ignore[call-arg]
    ship.ask(box, Order(id=1)).bit_count()  # type: ignore[attr-defined]
    ship.send(box, Order(id=1)).upper()


def calls_of_handlers(ctx: Context, run: Run) -> None:
    """Their contexts send and ask as a postbox does."""
    ship.ask(ctx, Order(id=1)).upper() + ship.ask(run, Order(id=1)).upper()
    ship.send(ctx, Order(id=1)).upper() + ship.send(run, Order(id=1)).upper()


async def awaited_calls(box: AsyncPostbox) -> None:
    """Await what an async postbox returns."""
    (await ship.send(box, Order(id=1))).upper()
    (await ship.ask(box, Order(id=1))).upper()
    ship.ask(box, Order(id=1)).upper()  # type: ignore[attr-defined]


def dead(event: DeadLettered) -> None:
    """Hear of a dead letter."""


def acked(event: Acked) -> None:
    """Hear of an acknowledgment."""


def any_event(event: Event) -> None:
    """Hear of everything."""


def sync_calls(box: Postbox, session: Session, channel: Channel, mailbox: Mailbox) -> None:
    """Misspell options, filters and events."""
    box.send("b", 1, tll=3)  # type: ignore[call-arg]
    box.send("b", 1, priority="hihg")  # type: ignore[arg-type]
    box.history(sendr="b")  # type: ignore[call-arg]
    box.history(state="sened")  # type: ignore[arg-type]
    session.history(session="other")  # type: ignore[call-arg]
    channel.history(channel="other")  # type: ignore[call-arg]
    channel.send("x", kind="shout")  # type: ignore[arg-type]
    channel.join("boss")  # type: ignore[arg-type]
    box.channels.create("c", stickey=True)  # type: ignore[call-arg]
    box.runs.set("talk", overflow="odl")  # type: ignore[arg-type]
    box.limits.set("outbx", messages=1)  # type: ignore[arg-type]
    box.dead_letters.list(peeer="b")  # type: ignore[call-arg]
    mailbox.query(topcs="x")  # type: ignore[call-arg]
    mailbox.read("r", strat="latest")  # type: ignore[call-arg]
    box.on("dead", dead)  # type: ignore[arg-type]
    box.on(DeadLettered, acked)  # type: ignore[arg-type]
    box.on(DeadLettered, lambda event: event.reson)  # type: ignore[attr-defined]
    box.on(DeadLettered, lambda event: event.reason)
    box.on(DeadLettered, dead)
    box.on(DeadLettered, any_event)
    box.on(Event, any_event)


async def async_calls(
    box: AsyncPostbox,
    channel: AsyncChannel,
    message: AsyncMessage[Any],
    run: AsyncRun,
    context: AsyncContext,
) -> None:
    """Misspell the same on the async face, and forget that it is awaited."""
    await box.send("b", 1, tll=3)  # type: ignore[call-arg]
    await box.history(sendr="b")  # type: ignore[call-arg]
    await box.sessions.poll(topic="x")  # type: ignore[call-arg]
    await channel.join("boss")  # type: ignore[arg-type]
    await channel.send("x", tlt=1)  # type: ignore[call-arg]
    await box.channels.create("c", stickey=True)  # type: ignore[call-arg]
    await message.retry(aftr=1)  # type: ignore[call-arg]
    await context.send("b", 1, tll=3)  # type: ignore[call-arg]
    await context.tx.execut("SELECT 1")  # type: ignore[attr-defined]
    await run.reply("x", two=message)  # type: ignore[call-arg]
    await run.write(lambda tx: 1)  # type: ignore[arg-type, return-value]
    message.no_such_field  # type: ignore[attr-defined]
    channel.no_such_field  # type: ignore[attr-defined]
    box.on(DeadLettered, acked)  # type: ignore[arg-type]


def typed_bodies(session: Session, mailbox: Mailbox, channel: Channel) -> list[Message[Order]]:
    """Messages that are asked for by their class have a body of that class."""
    found = [
        session.receive(Order),
        mailbox.receive("g", Order),
        channel.receive(Order),
        *session.receive_each(Order),
        *channel.receive_each(Order),
        *mailbox.lease("g", Order),
    ]
    wrong: list[Message[int]] = [*session.receive_each(Order)]  # type: ignore[list-item]
    return [each for each in found if each is not None and wrong is not None]


def typed_harness(harness: Harness) -> list[Order]:
    """Bodies that are read as a class have its type."""
    wrong: list[int] = harness.sent("b", Order)  # type: ignore[arg-type]
    return harness.sent("b", Order) if wrong else harness.sent("b")
