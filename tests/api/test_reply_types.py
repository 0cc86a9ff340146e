"""Every place that takes a type takes all that pydantic reads, and refuses all else at once."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from typing_extensions import TypedDict

from onceward import Agent, AsyncPostbox, Context, Msg, Postbox
from onceward.errors import InvalidArgument
from onceward.testing import Harness


class Numbers(Msg, type="numbers"):
    """A question for some numbers."""

    most: int


class Job(Msg, type="job"):
    """A message whose handler asks."""


class Sized(TypedDict):
    """A dict with known keys."""

    size: int


FORMS: list[Any] = [
    list[int],
    list,
    Sequence[int],
    tuple[int, ...],
    list[int] | None,
    list[int] | dict[str, int],
    Annotated[list[int], Field(min_length=1)],
    Any,
]
VALUES: list[Any] = [5, "int", [int], {"a": int}, object(), print, lambda: 1]


def _named(value: object) -> str:
    return str(value).partition(" at 0x")[0]


def oracle() -> Agent:
    """Return an agent that answers with a list."""
    agent = Agent("oracle")

    @agent.on(Numbers)
    def count(numbers: Numbers) -> list[int]:
        return list(range(numbers.most))

    return agent


ASKS: dict[str, Callable[[Postbox, Any], Any]] = {
    "ask": lambda box, form: box.ask("oracle", Numbers(most=2), reply=form),
    "session": lambda box, form: box.session("s").ask("oracle", Numbers(most=2), reply=form),
    "result": lambda box, form: box.result(asked(box, form), reply=form, timeout=30),
    "many": lambda box, form: box.gather([asked(box, form)], reply=form, timeout=30)[0],
}


def asked(box: Postbox, form: Any) -> Any:
    """Return the ticket of a request."""
    return box.request("oracle", Numbers(most=2), reply=form)


@pytest.mark.parametrize("form", FORMS, ids=_named)
def test_a_reply_is_read_as_any_type(tmp_path_factory: pytest.TempPathFactory, form: Any) -> None:
    """Generics, unions and annotated types are read like classes, wherever a reply is read."""
    path = tmp_path_factory.mktemp("home") / "oracle.db"
    with Postbox(path, agent=oracle()) as box:
        read = {name: list(ask(box, form)) for name, ask in ASKS.items()}

    assert [[0, 1]] * len(ASKS) == list(read.values())


def test_an_async_reply_is_read_as_any_type(tmp_path: Path) -> None:
    """The async twins read the same types."""
    read: list[Any] = []

    async def ask_all() -> None:
        async with AsyncPostbox(tmp_path / "oracle.db", agent=oracle()) as box:
            for form in FORMS:
                read.append([*await box.ask("oracle", Numbers(most=2), reply=form)])
                ticket = await box.request("oracle", Numbers(most=2), reply=form)
                read.append([*await box.result(ticket, reply=form, timeout=30)])
                read.extend([*each] for each in await box.gather([ticket], reply=form))

    asyncio.run(ask_all())

    assert [[0, 1]] * len(FORMS) * 3 == read


@pytest.mark.parametrize("form", FORMS, ids=_named)
def test_a_handler_reads_replies_as_any_type(form: Any) -> None:
    """``ctx.ask``, ``ctx.result`` and ``ctx.gather`` read the same types."""
    read: list[Any] = []
    agent = oracle()

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        first = ctx.request("oracle", Numbers(most=2), reply=form)
        second = ctx.ask("oracle", Numbers(most=2), reply=form)
        read.append([ctx.result(first, reply=form), second, *ctx.gather([first], reply=form)])

    with Harness(agent) as harness:
        harness.postbox.send("oracle", Job())
        harness.deliver()

    assert [[[0, 1]] * 3] == [[list(each) for each in replies] for replies in read]


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (list[int], [1]),
        (dict[str, int], {"a": 1}),
        (Sized, {"size": 1}),
        (int | str, 1),
        (int | str, "a"),
        (Literal["a", 1], "a"),
        (Annotated[int, Field(gt=0)], 1),
        (Annotated[Numbers, Field(description="n")], Numbers(most=1)),
        (Numbers | Job, Job()),
        (str | None, None),
        (bytes, b"a"),
    ],
    ids=_named,
)
def test_a_message_is_received_as_any_type(
    tmp_path_factory: pytest.TempPathFactory, form: Any, body: object
) -> None:
    """``receive`` leases messages whose bodies are written for such a type, and no others."""
    path = tmp_path_factory.mktemp("home") / "a.db"
    with Postbox(path, agent="a", start=False) as box:
        box.send("a", {"other": 1}, type="other", ordering_key="other")
        box.send("a", body)
        box.run_until_idle()
        message = box.receive(form)

        assert message is not None
        assert body == message.body


@pytest.mark.parametrize("value", [*VALUES, None], ids=_named)
@pytest.mark.parametrize("name", ASKS)
def test_a_value_in_place_of_a_type_is_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: Any
) -> None:
    """The error names the argument; nothing was sent for it."""
    path = tmp_path_factory.mktemp("home") / "oracle.db"
    with Postbox(path, agent=oracle(), start=False) as box:
        ticket = box.request("oracle", Numbers(most=2))
        calls: dict[str, Callable[[], object]] = {
            "ask": lambda: box.ask("oracle", Numbers(most=2), reply=value),
            "session": lambda: box.session("s").ask("oracle", Numbers(most=2), reply=value),
            "result": lambda: box.result(ticket, reply=value),
            "many": lambda: box.gather([ticket], reply=value),
        }
        with pytest.raises(InvalidArgument, match=r"^reply=.* must be a type"):
            calls[name]()

        assert 1 == box.file.stats()["enqueued"]


@pytest.mark.parametrize("value", [5, [int], object(), print], ids=_named)
def test_no_value_is_received_as_a_type(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    """``receive`` names its argument, and leases nothing."""
    path = tmp_path_factory.mktemp("home") / "a.db"
    with (
        Postbox(path, agent="a", start=False) as box,
        pytest.raises(InvalidArgument, match=r"^type=.* must be a type"),
    ):
        box.receive(value)
