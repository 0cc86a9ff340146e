"""The context of an agent's run comes back, when its steps are found again, as they left it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr

from onceward import Agent, AsyncContext, Reject, Retry
from onceward.integrations.kept_context import KeptContext, kept_context, kept_step
from onceward.testing import Harness


class Client:
    """Something that no JSON holds."""


class Seat(BaseModel):
    """A part of a context."""

    row: int
    letter: str = "A"


class Aisle(Seat):
    """A part with more than its base."""

    legroom: int = 0


@dataclass
class Note:
    """A part that is a dataclass."""

    text: str
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Basket:
    """A context that is a dataclass."""

    items: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    price: Decimal = Decimal(0)
    tags: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seat: Seat | None = None
    client: Client | None = field(default_factory=Client)
    anything: Any = None
    _cache: Client | None = None

    @cached_property
    def worth(self) -> Client:
        """Something that is computed when it is first read."""
        return Client()


class Model(BaseModel):
    """A context that is a model."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True, frozen=True)
    seat: Seat | None = None
    secret: SecretStr = SecretStr("")
    client: Client | None = None
    _turns: list[str] = PrivateAttr(default_factory=list)


class Slotted:
    """A context without a dict."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Bare:
    """A context of no declared fields."""

    def __init__(self) -> None:
        self.notes = ["begun"]
        self.count = 0


def shop(basket: Basket) -> None:
    """Change a dataclass, in place and by other objects."""
    basket.items.append("apple")
    basket.notes.append(Note("ripe"))
    basket.price, basket.seat = Decimal("1.50"), Seat(row=4)
    basket.tags.add("fruit")
    basket.counts["apple"] += 1
    basket._cache = Client()
    assert basket.worth is basket.worth


def book(model: Model) -> None:
    """Change a frozen model in each place where it has values."""
    model.__dict__["seat"] = Seat(row=4)
    model._turns.append("booked")
    assert model.__pydantic_extra__ is not None
    model.__pydantic_extra__["late"] = [1]


def count(of: Any) -> None:
    """Change a plain object."""
    of.count += 1
    if hasattr(of, "notes"):
        of.notes.append("counted")


def put(of: dict[str, Any]) -> None:
    """Change a dict."""
    of["seat"] = "4A"
    del of["empty"]


def both(make: Callable[[], Any], change: Callable[[Any], object]) -> tuple[Any, Any]:
    """Return a changed context, and another that the changes were given back to."""
    first, second = make(), make()
    kept, found = KeptContext(first), KeptContext(second)
    change(first)
    changes = kept.changes()
    assert changes is not None
    assert kept.changes() is None
    found.give_back(changes)
    assert found.changes() is None
    return first, second


@pytest.mark.parametrize(
    ("make", "change", "shown"),
    [
        (Basket, shop, lambda it: (it.items, it.notes, it.price, it.tags, it.counts, it.seat)),
        (Model, book, lambda it: (it.seat, it._turns, it.__pydantic_extra__)),
        (Slotted, count, lambda it: it.count),
        (Bare, count, lambda it: (it.count, it.notes)),
        (lambda: {"empty": 1}, put, lambda it: it),
        (lambda: ["a"], lambda it: it.append("b"), lambda it: it),
        (set, lambda it: it.add(1), lambda it: it),
    ],
    ids=["dataclass", "model", "slots", "plain", "dict", "list", "set"],
)  # fmt: skip
def test_what_was_changed_is_given_back(
    make: Callable[[], Any], change: Callable[[Any], object], shown: Callable[[Any], object]
) -> None:
    """Values of each kind, and those that are gone."""
    first, second = both(make, change)

    assert shown(make()) != shown(first)
    assert shown(first) == shown(second)


def test_an_object_that_was_changed_in_place_stays_the_same() -> None:
    """Names of the handler for it see the change; a replaced one is another object."""
    basket = Basket(seat=Seat(row=1))
    items, counts, seat = basket.items, basket.counts, basket.seat
    kept = KeptContext(first := Basket(seat=Seat(row=1)))
    first.items.append("apple")
    first.counts["apple"] += 1
    first.seat = Seat(row=2)

    KeptContext(basket).give_back(kept.changes() or {})

    assert (["apple"], {"apple": 1}) == (items, counts)
    assert items is basket.items
    assert basket.counts["pear"] == 0
    assert (Seat(row=1), Seat(row=2)) == (seat, basket.seat)


@pytest.mark.parametrize(
    ("make", "change", "said"),
    [
        (Basket, lambda it: setattr(it, "client", Client()), "field 'client'"),
        (Basket, lambda it: setattr(it, "seat", Aisle(row=4, legroom=9)), "field 'seat'"),
        (Basket, lambda it: setattr(it, "anything", Note("x")), "field 'anything'"),
        (Model, lambda it: it.__dict__.update(secret=SecretStr("x")), "field 'secret'"),
        (dict, lambda it: it.update(at=datetime(2026, 1, 1, tzinfo=UTC)), "field 'at'"),
        (dict, lambda it: it.update({1: "a"}), "its key is not text"),
        (lambda: [1], lambda it: it.append(Note("x")), "what is"),
    ],
    ids=["client", "subclass", "no type", "secret", "dict", "key", "list"],
)
def test_what_cannot_be_given_back_is_refused(
    make: Callable[[], Any], change: Callable[[Any], object], said: str
) -> None:
    """By the step that changed it, with the field and the cure."""
    kept = KeptContext(of := make())
    change(of)

    with pytest.raises(Reject, match="annotate it with a type") as refused:
        kept.changes()

    assert said in str(refused.value)


def test_a_client_that_stays_is_no_change() -> None:
    """Only what takes its place would be lost."""
    kept = KeptContext(of := Basket())
    of._cache = Client()

    assert kept.changes() is None


def test_the_newest_value_stands_in_any_order() -> None:
    """Steps that ran at once are found in the order of their calls, not of their ends."""
    kept, found = KeptContext(first := Bare()), KeptContext(second := Bare())
    first.count = 1
    early = kept.changes()
    first.count = 2
    late = kept.changes()
    assert early is not None
    assert late is not None

    found.give_back(late)
    found.give_back(early)

    assert 2 == second.count
    second.count = 3
    assert 3 == (found.changes() or {})["number"]


def test_a_handler_that_is_called_again_finds_its_context() -> None:
    """A step that is stored is not called; what came before it is as it was then."""
    agent, seen, calls = Agent("bob"), list[Any](), list[int]()

    @agent.on("json")
    async def work(body: object, ctx: AsyncContext) -> None:
        basket = Basket(price=Decimal(ctx.message.attempt))  # as a hook would: another at each call
        kept = kept_context(ctx, basket)
        basket.items.append(f"of call {ctx.message.attempt}")

        async def effect() -> str:
            calls.append(ctx.message.attempt)
            basket.items.append("apple")
            return "stored"

        result, called = await kept_step(ctx, kept, effect, name="effect")
        seen.append((result, called, basket.items))
        if ctx.message.attempt == 1:
            raise Retry(after=0)

    with Harness(agent) as harness:
        harness.send({})
        harness.deliver()

    assert [1] == calls
    assert [
        ("stored", True, ["of call 1", "apple"]),
        ("stored", False, ["of call 1", "apple"]),
    ] == seen


def test_contexts_of_one_call_are_told_apart() -> None:
    """Two runs on one object share what is known of it."""

    class Call:
        """A handler's context."""

    call: Any = Call()
    one, other = Basket(), Basket()

    assert kept_context(call, one) is kept_context(call, one)
    assert kept_context(call, one) is not kept_context(call, other)
