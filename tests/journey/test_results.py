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
    assert ([], []) == (box.dead_letters.list(), box.query(KEPT))


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
@pytest.mark.parametrize("value", ["text", {"n": [1]}, b"\xff", None, 0])
def test_a_result_is_kept_where_its_handler_says_so(world: World, kind: str, value: Any) -> None:
    """It is read by the id of the message, again and again, also after a restart."""
    box = world.open(jobs(keep_result=True))
    sent = box.send("jobs", value, type=kind)
    world.settle()
    wanted = type(value)

    assert value == box.result(sent, reply=wanted) == box.result(sent, reply=wanted)
    [box] = world.reopen("jobs")
    assert value == box.result(sent, reply=wanted)
    assert ("acked", []) == (box.state(sent), box.dead_letters.list())


def test_the_file_of_the_recipient_has_the_results_of_all_senders(world: World) -> None:
    """The sender is told where the result is, and how to get it."""
    shop, box = world.wired("shop", jobs(keep_result=True))
    sent = shop.send("jobs", "done", type="sync")
    world.settle()

    assert [(sent, "shop", "done")] == box.query(KEPT)
    assert "done" == box.result(sent, reply=str)
    with pytest.raises(InvalidArgument, match="without asking for a reply: send it with request"):
        shop.result(sent, reply=str)


def test_a_result_is_there_with_the_end_of_its_message(world: World) -> None:
    """Not before; a message that has ended without one says why."""

    def work(body: str) -> str:
        if body == "bad":
            raise ValueError(body)
        return body

    agent = Agent("jobs")
    agent.on("job", keep_result=True, attempts=1)(work)
    agent.on("other")(lambda _: "dropped")
    box = world.open(agent)
    waits = box.send("jobs", "x", type="job", delay=60)
    with pytest.raises(AnswerTimeout):
        box.result(waits, reply=str)
    failed, dropped = box.send("jobs", "bad", type="job"), box.send("jobs", "x", type="other")
    world.settle()
    with pytest.raises(RequestFailed, match="attempts_spent"):
        box.result(failed, reply=str)
    with pytest.raises(RequestFailed, match="keep_result=True"):
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
