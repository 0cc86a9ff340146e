"""Values that handlers return: replies to requests, kept results, and otherwise no message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncContext, Context, Postbox, Run
from onceward.core.rows import tickets
from onceward.errors import AnswerTimeout, InvalidArgument, RequestFailed
from onceward.testing import Controls, ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

KEPT = "SELECT message_id, sender, body FROM onceward_results ORDER BY seq"


def jobs(**options: Any) -> Agent:
    """Return an agent whose handlers, of functions and coroutines, return what they got."""
    agent = Agent("jobs")

    @agent.on("sync", **options)
    def sync(body: Any) -> Any:
        return body

    @agent.on("async", **options)
    async def later(body: Any, ctx: AsyncContext) -> Any:
        del ctx
        return body

    return agent


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_value_returned_to_a_plain_send_is_no_message(world: World, kind: str) -> None:
    """A queue whose sender is its worker gets no message that no handler takes."""
    box = world.open(jobs())
    sent = box.send("jobs", "sent", type=kind)
    world.settle()

    assert "acked" == box.state(sent)
    assert [(1,)] == box.query("SELECT count(*) FROM onceward_outbox")
    assert ([], "sent") == (box.dead_letters.list(), box.result(sent, reply=str))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_value_returned_to_a_request_is_its_reply(world: World, kind: str) -> None:
    """Whether its handler keeps results or not."""
    shop, box = world.wired("shop", jobs(keep_result=True))
    asked, own = shop.request("jobs", 1, type=kind), box.request("jobs", 2, type=kind)
    world.settle()

    assert 1 == shop.result(asked, reply=int)
    assert 2 == box.result(own, reply=int)
    assert [] == box.query(KEPT)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("value", ["text", {"n": [1]}, b"\xff", 0])
def test_a_returned_value_is_kept_as_the_result_of_its_message(
    world: World, kind: str, value: Any
) -> None:
    """It is read by the id of the message, again and again, also after a restart."""
    box = world.open(jobs())
    sent = box.send("jobs", value, type=kind)
    world.settle()
    wanted = type(value)

    assert value == box.result(sent, reply=wanted) == box.result(sent, reply=wanted)
    [box] = world.reopen("jobs")
    assert value == box.result(sent, reply=wanted)
    assert ("acked", []) == (box.state(sent), box.dead_letters.list())


@pytest.mark.parametrize("keep", [None, True, False])
def test_a_handler_says_what_is_kept(world: World, keep: bool | None) -> None:
    """True keeps None, too, and False nothing; otherwise a message without a value has no row."""
    box = world.open(jobs(keep_result=keep))
    nothing, one = (box.send("jobs", body, type="sync") for body in (None, 1))
    world.settle()

    kept = [each for each in (nothing, one) if keep or (keep is None and each == one)]
    assert kept == [row[0] for row in box.query(KEPT)]
    if keep:
        assert box.result(nothing, reply=type(None)) is None
        return
    with pytest.raises(RequestFailed, match="processed without a result"):
        box.result(nothing, reply=str)


def test_a_sender_gets_the_result_from_the_file_of_its_recipient(world: World) -> None:
    """Before its receipt has come, and after both files were opened again."""
    shop, box = world.wired("shop", jobs())
    sent = shop.send("jobs", "done", type="sync")
    with pytest.raises(AnswerTimeout):
        shop.result(sent, reply=str)
    world.settle()

    assert [(sent, "shop", "done")] == box.query(KEPT)
    assert "done" == box.result(sent, reply=str) == shop.result(sent, reply=str)
    shop, box = world.reopen("shop", "jobs")
    assert "done" == box.result(sent, reply=str) == shop.session("s").result(sent, reply=str)


def test_the_recipient_has_the_result_of_a_request(world: World) -> None:
    """It is the reply."""
    shop, box = world.wired("shop", jobs())
    asked = shop.request("jobs", {"n": 1}, type="sync")
    world.settle()

    assert {"n": 1} == box.result(asked.id, reply=dict[str, int])


def test_a_value_that_cannot_be_stored_is_not_kept(world: World) -> None:
    """The message is done all the same, once; its sender asked for no value."""
    agent = Agent("jobs")
    called: list[str] = []

    @agent.on("#")
    def work(kind: str) -> object:
        called.append(kind)
        return object() if kind == "odd" else "x" * 2000

    box = world.open(agent, max_body=1000)
    sent = [box.send("jobs", kind, type=kind) for kind in ("odd", "big")]
    world.settle()

    assert (["odd", "big"], []) == (called, box.dead_letters.list())
    for each in sent:
        with pytest.raises(RequestFailed, match="processed without a result"):
            box.result(each, reply=str)


def test_the_result_of_a_remote_recipient_is_not_read(world: World) -> None:
    """Its file is in no folder here; the sender is told how to get the result."""
    shop = world.open("shop")
    shop.peers.add("far", "https://far.example")
    sent = shop.send("far", "x", type="job")

    for ask in (lambda: shop.result(sent, reply=str), lambda: shop.progress_of(sent)):
        with pytest.raises(InvalidArgument, match="without asking for a reply"):
            ask()
    assert "waiting" == shop.status(sent).state


def test_a_result_is_there_with_the_end_of_its_message(world: World) -> None:
    """Not before; a message that has ended without one says why."""

    def work(body: str) -> str:
        if body == "bad":
            raise ValueError(body)
        return body

    agent = Agent("jobs")
    agent.on("job", keep_result=True, attempts=1)(work)
    agent.on("other")(lambda _: None)
    box = world.open(agent)
    waits = box.send("jobs", "x", type="job", delay=60)
    with pytest.raises(AnswerTimeout):
        box.result(waits, reply=str)
    failed, dropped = box.send("jobs", "bad", type="job"), box.send("jobs", "x", type="other")
    world.settle()
    with pytest.raises(RequestFailed, match="attempts_spent"):
        box.result(failed, reply=str)
    with pytest.raises(RequestFailed, match="processed without a result"):
        box.result(dropped, reply=str)
    with pytest.raises(InvalidArgument, match="never sent from this file"):
        box.result("unknown", reply=str)
    world.wait(61)

    assert "x" == box.result(waits, reply=str)


def test_results_are_kept_for_a_time_and_in_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the setting ``result_retention``; above the number the oldest go."""
    monkeypatch.setattr(tickets, "RESULTS_OF_FILE", 3)
    clock = ManualClock()
    with Postbox(
        tmp_path / "jobs.db",
        agent=jobs(keep_result=True),
        start=False,
        result_retention="10m",
        testing=Controls(clock=clock),
    ) as box:
        sent = [box.send("jobs", n, type="sync") for n in range(5)]
        box.run_until_idle()
        kept = [row[0] for row in box.query(KEPT)]
        last = box.result(sent[-1], reply=int)
        clock.advance(601)
        with pytest.raises(RequestFailed, match="result_retention"):
            box.result(sent[-1], reply=int)
        box.file.run_maintenance()

        assert (sent[2:], 4) == (kept, last)
        assert [] == box.query(KEPT)


def test_no_retention_keeps_no_result(world: World) -> None:
    """The setting 0 drops what handlers return."""
    box = world.open(jobs(keep_result=True), result_retention=0)
    box.send("jobs", 1, type="sync")
    world.settle()

    assert [] == box.query(KEPT)


def test_a_result_that_is_too_large_fails_its_handler(world: World) -> None:
    """Like a reply of that size."""
    box = world.open(jobs(keep_result=True, attempts=1), max_body=1000)
    agent = Agent("big")
    agent.on("job", keep_result=True, attempts=1)(lambda _: "x" * 2000)
    big = world.open(agent, max_body=1000)
    big.send("big", {}, type="job")
    world.settle()

    assert [] == box.dead_letters.list()
    assert ["attempts_spent"] == [each.reason for each in big.dead_letters.list()]
    assert "exceeds max_body 1000" in str(big.dead_letters.list()[0].last_error)


def test_a_batch_has_no_results() -> None:
    """Nor has a handler results by a word."""
    for given in ({"keep_result": True, "batch": 2}, {"keep_result": "yes"}):
        with pytest.raises(InvalidArgument, match="keep_result"):
            Agent("jobs").on("job", **given)(lambda _: None)


def test_a_run_answers_requests_only(world: World) -> None:
    """Its value is its result; a plain message of it gets no message back."""
    agent = Agent("coder")

    @agent.runs(mode="collect", debounce=0)
    def turn(run: Run) -> str:
        return f"{len(run.messages)} messages"

    box = world.open(agent)
    talk = box.session("talk")
    asked, told = talk.request("coder", "question"), talk.send("coder", "remark")
    world.wait(1)

    assert "2 messages" == talk.result(asked, reply=str)
    assert "acked" == box.state(told)
    assert ([], "2 messages") == (box.dead_letters.list(), box.runs.list()[0].result)
    assert [(3,)] == box.query("SELECT count(*) FROM onceward_outbox")


def test_an_explicit_reply_is_a_message(world: World) -> None:
    """Whether its message asked for one or not; ``reply_to`` asks for the value, elsewhere."""
    agent = Agent("jobs")

    @agent.on("job")
    def work(body: str, ctx: Context) -> str:
        ctx.reply(f"reply to {body}")
        return f"value of {body}"

    shop, _ = world.wired("shop", agent)
    shop.send("jobs", "a", type="job")
    shop.send("jobs", "b", type="job", reply_to="shop")
    world.settle()
    got = []
    for message in shop.receive_each(timeout=0):
        with message:
            got.append(message.body)

    assert ["reply to a", "reply to b", "value of b"] == got


def test_the_result_of_a_run_is_named(world: World) -> None:
    """The error for a message that a run has served says where the result is, and it is there."""
    agent = Agent("a")

    @agent.runs("chat-*", debounce=0)
    def serve(run: Run) -> str:
        return f"served {run.message.body}"

    box = world.open(agent)
    asked = box.session("chat-1").send("a", "x")
    world.settle()
    with pytest.raises(RequestFailed) as failed:
        box.result(asked, reply=str)

    assert "processed by a run, which has its result: see runs.list(session='chat-1')" == (
        failed.value.reason
    )
    assert ["served x"] == [run.result for run in box.runs.list(session="chat-1")]
