"""The tree of the messages that a message has caused, across the files of a home."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, Context, Postbox, Run
from onceward.features.history.journey import Journey
from onceward.file import caused
from onceward.message.caused import CausedMessage

if TYPE_CHECKING:
    from tests.journey.conftest import World


def office() -> Agent:
    """Return an agent whose handler sends in all ways, and asks."""
    agent = Agent("office")

    @agent.on("order")
    def order(_: Any, ctx: Context) -> str:
        ctx.send("store", "note", type="note")
        with ctx.group(then="office") as group:
            group.send("store", 1, type="pack")
            group.send("store", 2, type="pack")
        return str(ctx.ask("bank", None, type="charge", reply=str))

    agent.on("onceward.group_done")(lambda _: None)
    return agent


def bank() -> Agent:
    """Return an agent whose handler sends another message, and answers."""
    agent = Agent("bank")

    @agent.on("charge")
    def charge(_: Any, ctx: Context) -> str:
        ctx.send("store", "slip", type="slip")
        return "paid"

    return agent


def store() -> Agent:
    """Return an agent that packs, but refuses slips."""
    agent = Agent("store")
    agent.on("note")(lambda _: None)
    agent.on("pack")(lambda _: None)

    @agent.on("slip", attempts=1)
    def slip(_: Any) -> None:
        raise ValueError("no paper")

    return agent


def shape(children: tuple[CausedMessage, ...]) -> list[Any]:
    """Return types, ways, ends and states of a tree."""
    return [
        (each.type, each.way, f"{each.sender} {each.recipient}", each.state)
        + ((shape(each.children),) if each.children else ())
        for each in children
    ]


def journey(box: Postbox, message_id: str) -> Journey:
    """Return the journey of a message that a file knows."""
    found = box.journey(message_id)
    assert found is not None
    return found


@pytest.fixture
def ordered(world: World) -> tuple[Postbox, Postbox, str]:
    """Send an order, and do all that follows; return the sender, the recipient and the id."""
    shop, *_, box = (world.open(each) for each in ("shop", store(), bank(), office()))
    sent = shop.request("office", None, type="order").id
    world.settle()
    return shop, box, sent


TREE = [
    (
        "charge",
        "request",
        "office bank",
        "processed",
        [
            ("slip", "send", "bank store", "dead"),
            ("text", "reply", "bank office", "processed"),
        ],
    ),
    ("note", "send", "office store", "processed"),
    ("pack", "group", "office store", "processed"),
    ("pack", "group", "office store", "processed"),
    ("text", "reply", "office shop", "processed"),
]
"""The handler asks first, and sends what else it has when it goes on with the answer."""


def test_a_tree_has_what_handlers_sent_in_turn(ordered: tuple[Postbox, Postbox, str]) -> None:
    """With its way and its state, which is that of its recipient; from either file the same."""
    shop, box, sent = ordered

    found = journey(shop, sent)

    assert TREE == shape(found.children)
    assert found.children == journey(box, sent).children
    [slip] = (each for one in found.children for each in one.children if each.type == "slip")
    assert slip.reason == "attempts_spent"
    assert sent == journey(box, found.children[1].id).parent
    assert None is found.parent
    assert 1 == len({each.group for each in found.children if each.type == "pack"})


def test_a_tree_is_drawn_in_lines(ordered: tuple[Postbox, Postbox, str]) -> None:
    """The parent's line first, and each child below the message that caused it."""
    shop, _, sent = ordered

    lines = journey(shop, sent).tree.splitlines()

    assert lines[0] == f"order {sent}, shop to office, acked"
    assert ["├─", "│  ├─", "│  └─", "├─", "├─", "├─", "└─"] == [
        each[: each.index("─") + 1] for each in lines[1:]
    ]
    assert lines[1].endswith("(request), office to bank, processed")


def test_what_runs_and_dispatched_tasks_send_is_in_the_tree(world: World) -> None:
    """They continue the conversation of the message that caused them."""
    agent, worker = Agent("office"), Agent("worker")

    @agent.runs("talk", mode="followup", debounce=0)
    def work(run: Run) -> None:
        run.send("store", "note", type="note")

    @agent.on("task")
    def give(_: Any, ctx: Context) -> None:
        ctx.dispatch("worker", "do", type="do")

    worker.on("do")(lambda _: "done")
    agent.on("worker_result")(lambda _: None)
    shop, *_ = (world.open(each) for each in ("shop", store(), agent, worker))
    talk = shop.session("talk").send("office", "go", type="talk")
    task = shop.send("office", None, type="task")
    world.settle()

    assert [("note", "send", "office store", "processed")] == shape(journey(shop, talk).children)
    [done] = journey(shop, task).children
    assert ("do", "office", "worker", "processed") == (
        done.type, done.sender, done.recipient, done.state,
    )  # fmt: skip


def test_the_files_that_are_not_there_leave_their_messages_as_they_were_sent(
    world: World, ordered: tuple[Postbox, Postbox, str]
) -> None:
    """What the bank sent is unknown without its file, and the state is that of the sender."""
    _, _, sent = ordered
    world.shut()
    for name in ("bank", "store"):
        world.path(name).rename(world.home / f"{name}.away")
    world.path("store").write_bytes(b"no database")
    box = world.open("office")

    found = journey(box, sent)

    assert [("charge", "request", "office bank", "acked")] == [
        each for each in shape(found.children) if each[0] == "charge"
    ]
    assert "acked" == found.children[1].state
    world.path("store").unlink()
    for name in ("bank", "store"):
        (world.home / f"{name}.away").rename(world.path(name))


def test_a_tree_is_bounded_in_width_and_depth(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first messages of each level are there; two statements ask a file for a level."""
    agent, asked = Agent("office"), list[str]()

    @agent.on("again")
    def again(left: int, ctx: Context) -> None:
        for _ in range(3 if left == 5 else 1):
            if left:
                ctx.send("office", left - 1, type="again")

    shop, box = world.open("shop"), world.open(agent)
    sent = shop.send("office", 5, type="again")
    world.settle()
    root = caused.Root(sent, "shop", "office", None)

    def ask(sql: str, bindings: Any) -> list[Any]:
        asked.append(sql)
        return box._db.ask(sql, bindings)

    whole = caused.caused(root, lambda _: ask)
    assert 6 * 2 + 1 == len(asked)
    assert (3, 3 * 5) == (len(whole), count(whole))
    monkeypatch.setattr(caused, "MOST", 7)
    monkeypatch.setattr(caused, "LEVELS", 3)
    assert 7 == count(caused.caused(root, lambda _: ask))
    monkeypatch.setattr(caused, "MOST", 100)
    assert 9 == count(caused.caused(root, lambda _: ask))


def count(children: tuple[CausedMessage, ...]) -> int:
    """Return the number of messages of a tree."""
    return sum(1 + count(each.children) for each in children)


def test_a_message_that_is_its_own_cause_is_there_once(world: World) -> None:
    """Ids and causes that a program chooses may form a circle."""
    shop = world.open("shop", hold_unknown=True)
    for one, other in (("a", "b"), ("b", "a")):
        shop.send("shop", None, message_id=one, causation_id=other, correlation_id="a")

    [child] = journey(shop, "a").children

    assert ("b", ()) == (child.id, child.children)


def test_files_of_other_agents_are_closed_again(ordered: tuple[Postbox, Postbox, str]) -> None:
    """Each is opened at most once, and a limited number of them."""
    shop, _, _ = ordered
    path = Path(shop.file.path)
    with ExitStack() as stack:
        files = caused.beside(path, stack)
        assert files("bank") is files("bank") is not None
        assert [None, None] == [files("nobody"), files("nobody")]
