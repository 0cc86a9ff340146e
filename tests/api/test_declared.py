"""A declared handler sends to itself, with the types of its own signature."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, AsyncPostbox, Context, Msg, Postbox
from onceward.errors import InvalidArgument
from onceward.testing import Harness


class Order(Msg, type="order"):
    """A body."""

    n: int


shop = Agent("shop")


@shop.on(Order)
def double(order: Order, ctx: Context) -> int:
    """Reply with twice the number."""
    assert ctx.message.type == "order"
    return 2 * order.n


@shop.on("note")
async def note(body: dict[str, Any]) -> str:
    """Reply with the text of a body without a class."""
    return str(body["text"])


@shop.on("silent.*")
def silent(body: object) -> None:
    """Reply with nothing."""


def test_it_stays_the_function_that_it_was() -> None:
    """It is called as before, and has its name."""
    assert ("double", "some") == (double.__name__, asyncio.run(note({"text": "some"})))


def test_a_message_goes_to_its_agent(tmp_path: Path) -> None:
    """The type is that of the pattern, options are those of send, and *to* is another agent."""
    with Postbox(tmp_path / "desk.db", agent="desk", start=False, hold_unknown=True) as box:
        with box.begin() as tx:
            ids = [double.send(tx, Order(n=1), key="k"), note.send(tx, {"text": "x"})]
        ids.append(note.send(box.session("s"), {}, to="other", type="memo"))
        sent = [box.history(type=kind).messages[0] for kind in ("order", "note", "memo")]

        assert ids == [each.id for each in sent]
        assert ["shop", "shop", "other"] == [each.recipient for each in sent]
        assert ids[0] == double.send(box, Order(n=1), key="k")


def test_a_handler_sends_to_another_one() -> None:
    """Its context commits the message with its own writes."""
    desk = Agent("desk")

    @desk.on("start")
    def start(body: int, ctx: Context) -> None:
        double.send(ctx, Order(n=body))

    with Harness(desk) as harness:
        harness.send(21, type="start")
        harness.deliver()

        assert [Order(n=21)] == harness.sent("shop", Order)


def test_a_reply_is_read_as_it_is_annotated(tmp_path: Path) -> None:
    """Also that of a coroutine function, and through an async postbox."""

    async def main() -> tuple[int, str]:
        async with AsyncPostbox(tmp_path / "desk.db", agent="desk") as box:
            return await double.ask(box, Order(n=4)), await note.ask(box, {"text": "hello"})

    with Postbox(tmp_path / "shop.db", agent=shop):
        with Postbox(tmp_path / "till.db", agent="till") as till:
            assert 6 == double.ask(till, Order(n=3), timeout=30)
        assert (8, "hello") == asyncio.run(main())


def test_a_handler_without_a_reply_is_not_asked(tmp_path: Path) -> None:
    """The request would only fail; nothing is sent."""
    with Postbox(tmp_path / "till.db", agent="till", start=False, hold_unknown=True) as till:
        with pytest.raises(InvalidArgument, match="'silent' is not annotated"):
            silent.ask(till, {})

        assert 0 == till.file.stats()["pending"]


def test_a_pattern_names_no_type(tmp_path: Path) -> None:
    """A body without a class then needs a type, as for any send."""
    with Postbox(tmp_path / "till.db", agent="till", start=False, hold_unknown=True) as till:
        sent = silent.send(till, {}, type="silent.night")

        assert ["silent.night"] == [
            each.type for each in till.history().messages if each.id == sent
        ]
