"""A handler whose signature does not fit what it is given is refused when it is registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import pytest

from onceward import Agent, AsyncContext, AsyncRun, Context, Message, Msg, Run
from onceward.errors import InvalidArgument

if TYPE_CHECKING:
    from onceward import Transaction as Unseen


class Order(Msg, type="order"):
    """A registered message."""

    n: int


class Ended(Msg, type="ended"):
    """Another message."""

    n: int


class NewOrder(Msg, type="order"):
    """Another version of the registered message, of the same type."""

    n: int


class Sends(Protocol):
    """The part of a context that a handler may ask for."""

    def send(self, to: str, body: object) -> str:
        """Send a message."""
        ...


async def _sync_context(order: Order, ctx: Context) -> None: ...
def _async_context(order: Order, ctx: AsyncContext) -> None: ...
def _swapped(ctx: Context, order: Order) -> None: ...
def _swapped_names(ctx, body) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def _message_first(message: Message[Order]) -> None: ...
def _message_second(order: Order, message: Message[Order]) -> None: ...
def _run_second(order: Order, run: Run) -> None: ...
def _other_type(order: Ended) -> None: ...
def _plain_type(order: dict[str, int]) -> None: ...
def _third(order: Order, ctx: Context, limit: int) -> None: ...
def _third_by_name(order: Order, ctx: Context, *, limit: int) -> None: ...
def _yields(order: Order) -> Iterator[int]:
    yield order.n


async def _sync_run(run: Run) -> None: ...
def _async_run(run: AsyncRun) -> None: ...
def _context_for_run(run: Context) -> None: ...


async def _unseen_message(order: Order, message: "onceward.AsyncMessage[Order]") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037


class _Callable:
    async def __call__(self, order: Order, ctx: Context) -> None: ...


SYNC = r"write def \w+\(order: Order, ctx: Context\)"
ASYNC = r"write async def \w+\(order: Order, ctx: AsyncContext\)"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (_sync_context, ASYNC),
        (_Callable(), ASYNC),
        (partial(_sync_context), ASYNC),
        (_unseen_message, ASYNC),
        (_async_context, SYNC),
        (_swapped, SYNC),
        (_swapped_names, SYNC),
        (_message_first, SYNC),
        (_message_second, SYNC),
        (_run_second, SYNC),
        (_other_type, SYNC),
        (_plain_type, SYNC),
        (_third, SYNC),
        (_third_by_name, SYNC),
        (_yields, SYNC),
    ],
)
def test_a_signature_that_contradicts_the_call_is_refused(
    call: Callable[..., Any], said: str
) -> None:
    """The error shows the signature that the handler must have; nothing is registered."""
    agent = Agent("billing")
    with pytest.raises(InvalidArgument, match=said):
        agent.on(Order)(call)

    assert [] == agent.handlers


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (_sync_run, r"write async def _sync_run\(run: AsyncRun\)"),
        (_async_run, r"write def _async_run\(run: Run\)"),
        (_context_for_run, r"write def _context_for_run\(run: Run\)"),
    ],
)
def test_a_session_handler_takes_the_run_of_its_kind(call: Callable[..., Any], said: str) -> None:
    """A coroutine is given an AsyncRun, a function a Run; the error shows which."""
    agent = Agent("billing")
    with pytest.raises(InvalidArgument, match=said):
        agent.runs()(call)

    assert [] == agent.sessions


def test_an_unknown_type_of_a_pattern_is_refused() -> None:
    """A body whose annotation has no value would be handed over as plain values, unchecked."""
    agent = Agent("billing")
    with pytest.raises(InvalidArgument, match="'Unseen' cannot be resolved"):
        agent.on("order.*")(_first_unseen)

    assert [] == agent.handlers


def _first_unseen(order: Unseen) -> None: ...
def _star(*bodies: Order) -> None: ...
def _body_only(order: Order) -> None: ...
def _unannotated(order, ctx) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def _of_same_type(order: NewOrder, ctx: Context) -> None: ...
def _base(order: Msg, ctx: Context) -> None: ...
def _any(order: Any, ctx: Any) -> None: ...
def _annotated(order: Annotated[Order, "checked"], ctx: Context | None = None) -> None: ...
def _either(order: Order | Ended, ctx: Context | AsyncContext) -> None: ...
def _protocol(order: Order, ctx: Sends) -> None: ...
def _third_default(order: Order, ctx: Context, limit: int = 3) -> None: ...
def _bound_number(order: Order, n: int = 3) -> None: ...
def _bound_name(order, n=3) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def _unseen_second(order: Order, tx: Unseen) -> None: ...
def _unseen_first(order: Unseen, ctx: Context) -> None: ...
def _ctx_first(ctx: Order) -> None: ...
async def _async(order: Order, ctx: AsyncContext) -> None: ...


@pytest.mark.parametrize(
    ("call", "body", "takes_context"),
    [
        (_body_only, Order, False),
        (_star, Order, False),
        (_unannotated, Order, True),
        (_of_same_type, NewOrder, True),
        (_base, Order, True),
        (_any, Any, True),
        (_annotated, Annotated[Order, "checked"], True),
        (_either, Order | Ended, True),
        (_protocol, Order, True),
        (_third_default, Order, True),
        (_bound_number, Order, False),
        (_bound_name, Order, False),
        (_unseen_first, Order, True),
        (_unseen_second, Order, True),
        (_ctx_first, Order, False),
        (_async, Order, True),
    ],
)
def test_a_signature_that_fits_is_taken(
    call: Callable[..., Any], body: object, takes_context: bool
) -> None:
    """A parameter with a default beyond the context is left to it."""
    agent = Agent("billing")
    agent.on(Order)(call)
    [handler] = agent.handlers

    assert (body, takes_context) == (handler.body, handler.takes_context)


def test_a_callable_object_with_a_coroutine_is_awaited() -> None:
    """An object whose call is ``async def`` is an async handler, and so is a partial of one."""

    class Handles:
        async def __call__(self, order: Order, ctx: AsyncContext) -> None: ...

    agent = Agent("billing")
    agent.on(Order)(Handles())
    agent.on("order.new")(partial(Handles()))
    agent.runs("chat")(_serves)

    assert [True, True] == [handler.is_async for handler in agent.handlers]


def _serves(run: Run, limit: int = 3) -> None: ...


@pytest.mark.parametrize("pattern", ["*", "**"])
def test_runs_of_every_session_and_a_handler_exclude_each_other(pattern: str) -> None:
    """The runs would take the handler's messages: whichever is declared second is refused."""
    handling, running, part = Agent("billing"), Agent("billing"), Agent("part")
    handling.on(Order)(_ctx_first)
    part.runs(pattern)(_serves)
    running.runs(pattern)(_serves)

    with pytest.raises(InvalidArgument, match=r"its handler for 'order': name the sessions"):
        handling.runs(pattern)(_serves)
    with pytest.raises(InvalidArgument, match=r"its handler for 'schedule\.nightly'"):
        running.every("1d", name="nightly")(_ctx_first)
    with pytest.raises(InvalidArgument, match="its handler for 'order'"):
        handling.include(part)
    assert ([], []) == (handling.sessions, running.handlers)


def test_runs_of_named_sessions_stand_beside_handlers() -> None:
    """Messages of all other sessions are the handlers'."""
    agent = Agent("billing")
    agent.runs("chat-*")(_serves)
    agent.on(Order)(_ctx_first)

    assert (["chat-*"], ["order"]) == (
        [each.pattern for each in agent.sessions],
        [each.pattern for each in agent.handlers],
    )


def test_a_type_without_validator_is_refused() -> None:
    """A body type that cannot be validated fails where it is registered, not for each message."""

    class Unfit:
        """A class that pydantic cannot read."""

    def handle(body: Any) -> None: ...

    handle.__annotations__["body"] = Unfit
    agent = Agent("billing")
    with pytest.raises(InvalidArgument, match="Unfit"):
        agent.on("order.*")(handle)

    assert [] == agent.handlers
