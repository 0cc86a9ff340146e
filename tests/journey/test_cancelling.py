"""Cancelling: a message ends where it is, takes no effect, and its sender is told exactly."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import TYPE_CHECKING

import pytest
from tests.journey.counted import Job, counting, effects
from tests.waiting import until

from onceward import Agent, AsyncContext, BatchContext, Context, Msg, Postbox, Run
from onceward.api import routing
from onceward.errors import InvalidArgument, LeaseLost, RequestCancelled
from onceward.events import Cancelled
from onceward.message.parcel import UNANSWERED
from onceward.message.vocabulary import CANCEL
from onceward.testing.builders import build_frame, parcel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World


ENDS = "SELECT state, reason FROM onceward_inbox WHERE id = ?"


class Approval(Msg, type="approval"):
    """A person's word."""

    ok: bool


def ends(box: Postbox, message_id: str) -> tuple[str, str | None]:
    """Return how a received message ended, and why."""
    [(state, reason)] = box.query(ENDS, (message_id,))
    return state, reason


def asked_of(box: Postbox, message_id: str) -> list[str]:
    """Cancel a message twice, with all that is due in between; return both outcomes."""
    return [box.cancel(message_id).outcome, box.cancel(message_id).outcome]


# -- at the sender --------------------------------------------------------------------------------


def test_a_message_that_has_arrived_is_cancelled_by_its_recipient(world: World) -> None:
    """The sender is told that it asks; then that the message is cancelled: it takes no effect."""
    shop, _ = world.wired("shop", "billing")
    gone, kept = (shop.send("billing", Job(n=n)) for n in (1, 2))
    shop.run_until_idle()
    asked = shop.cancel(gone, reason="wrong amount")
    world.settle()
    world.boxes.pop("billing").close()
    world.open(counting())
    world.settle()

    assert (False, "asked", "sent") == (bool(asked), asked.outcome, asked.state)
    assert "cancelled" == shop.state(gone)
    assert (True, "cancelled") == (bool(again := shop.cancel(gone)), again.outcome)
    assert ("cancelled", "cancelled: wrong amount") == ends(world.boxes["billing"], gone)
    assert [2] == effects(world)
    assert "acked" == shop.state(kept)


def test_a_message_that_took_effect_is_too_late_with_its_state(world: World) -> None:
    """A request that crosses the message's end is answered with that end, and changes nothing."""
    shop, billing = world.wired("shop", counting())
    done = shop.send("billing", Job(n=1))
    world.wire.of, world.wire.always = "billing", "down"  # its receipt does not come back
    world.settle()
    first = shop.cancel(done)
    world.wire.always = "ok"
    world.wait(60)
    late = shop.cancel(done)

    assert ["asked", "too_late"] == [first.outcome, late.outcome]
    assert [1] == effects(world)
    assert ("processed", None) == ends(billing, done)


def test_the_decision_is_exact_where_storing_was_all_that_was_asked(world: World) -> None:
    """With ack="stored" the sender's row is acked before; a later call knows the decision."""
    shop, billing = world.wired("shop", "billing", ack="stored")
    done, waits = (shop.send("billing", Job(n=n)) for n in (1, 2))
    world.settle()
    message = billing.receive()
    assert message is not None
    message.ack()
    first = [shop.cancel(each).outcome for each in (done, waits)]
    world.settle()
    last = [shop.cancel(each) for each in (done, waits)]

    assert ["asked", "asked"] == first
    assert [("too_late", "processed"), ("cancelled", "cancelled")] == [
        (each.outcome, each.state) for each in last
    ]
    assert ["acked", "cancelled"] == [shop.state(each) for each in (done, waits)]


def test_a_request_that_is_cancelled_fails_with_an_error_of_its_own(world: World) -> None:
    """The asker gets RequestCancelled, with the reason."""
    shop, _ = world.wired("shop", "billing")
    ticket = shop.request("billing", Job(n=1))
    world.settle()
    shop.cancel(ticket.id, reason="not needed")
    world.settle()

    with pytest.raises(RequestCancelled, match="not needed") as caught:
        shop.result(ticket, reply=dict, timeout=0)
    assert (ticket.id, "cancelled: not needed") == (caught.value.message_id, caught.value.reason)


def test_the_caller_of_a_cancelled_task_is_told(world: World) -> None:
    """A worker_result with the outcome cancelled comes back, for a task that left and one not."""
    shop, _ = world.wired("shop", "billing")
    with shop.session("mine").begin() as tx:
        here = tx.dispatch("billing", Job(n=1), delay=60)
        there = tx.dispatch("billing", Job(n=2))
    world.settle()
    shop.cancel(here)
    shop.cancel(there)
    world.settle()

    told = dict[str, str]()
    while (message := shop.session("mine").receive("worker_result")) is not None:
        told[message.body["dispatch_id"]] = message.body["outcome"]
        message.ack()
    assert {here: "cancelled", there: "cancelled"} == told


def test_both_sides_hear_of_it(world: World) -> None:
    """The event ``cancelled`` tells at the recipient, and at the sender once it knows."""
    shop, billing = world.wired("shop", "billing")
    heard: list[Cancelled] = []
    shop.on(Cancelled, heard.append)
    billing.on(Cancelled, heard.append)
    message = shop.send("billing", Job(n=1))
    world.settle()
    shop.cancel(message, reason="stop")
    world.settle()

    told = [(each.agent, each.message_id, each.peer, each.reason) for each in heard]
    assert [
        ("billing", message, "shop", "cancelled: stop"),
        ("shop", message, "billing", "cancelled: stop"),
    ] == told


def test_a_message_that_never_arrived_is_refused_when_it_comes(world: World) -> None:
    """The recipient decides by the id alone: its record answers the frame that comes later."""
    billing = world.open("billing")
    frames = [build_frame({"n": n}, sender="near", recipient="billing") for n in range(3)]
    asks = {"type": CANCEL, "kind": CANCEL, "causationid": frames[1].id}
    request = frames[0].model_copy(update=asks)
    first = billing._receiver.accept(parcel(1, [request], recipient="billing"))
    late = billing._receiver.accept(parcel(2, frames[1:], previous=request.id, recipient="billing"))

    assert ["processed"] == [each.state for each in first.receipts]
    assert ["cancelled", "stored"] == [each.state for each in late.receipts]
    assert [(frames[2].id,)] == billing.query(
        "SELECT id FROM onceward_inbox WHERE state = 'pending'"
    )
    assert [("cancelled",)] == billing.query(
        "SELECT outcome FROM onceward_processed_messages WHERE id = ?", (frames[1].id,)
    )


def test_a_request_in_the_parcel_of_its_message_cancels_it(world: World) -> None:
    """It is decided once the parcel's messages are stored, whichever comes first."""
    billing = world.open("billing")
    message, request = (build_frame({"n": n}, sender="near", recipient="billing") for n in range(2))
    asks = {"type": CANCEL, "kind": CANCEL, "causationid": message.id}
    both = [request.model_copy(update=asks), message]
    answer = billing._receiver.accept(parcel(1, both, recipient="billing"))

    assert ["processed", "stored"] == [each.state for each in answer.receipts]
    assert ("cancelled", "cancelled") == ends(billing, message.id)


def test_a_sender_cancels_its_own_messages_only(world: World) -> None:
    """A request names an id of its sender; the message of another one of that id stays."""
    billing = world.open("billing")
    message = build_frame({"n": 1}, sender="near", recipient="billing")
    billing._receiver.accept(parcel(1, [message], recipient="billing"))
    asks = {"type": CANCEL, "kind": CANCEL, "causationid": message.id}
    request = build_frame(None, sender="other", recipient="billing").model_copy(update=asks)
    billing._receiver.accept(parcel(1, [request], sender="other", recipient="billing"))

    assert ("pending", None) == ends(billing, message.id)


def test_what_may_have_ended_long_ago_is_not_called_cancelled(world: World) -> None:
    """An unknown id that the deduplication window has passed is too late, whatever became of it."""
    billing = world.open("billing")
    message = build_frame({"n": 1}, sender="near", recipient="billing")
    billing._receiver.accept(parcel(1, [message], recipient="billing"))
    taken = billing.receive()
    assert taken is not None
    taken.ack()
    world.clock.forward(400 * 86_400)
    billing.file.run_maintenance()
    marks = billing.query("SELECT id FROM onceward_processed_messages")
    asks = {"type": CANCEL, "kind": CANCEL, "causationid": message.id}
    request = build_frame(None, sender="near", recipient="billing").model_copy(update=asks)
    billing._receiver.accept(parcel(2, [request], previous=message.id, recipient="billing"))
    told = billing._db.read("SELECT receipts FROM _onceward_receipts ORDER BY seq DESC LIMIT 1")

    assert [] == marks
    assert "too late: outside the deduplication window" in told[0][0]
    assert [] == billing.query(
        "SELECT id FROM onceward_processed_messages WHERE id = ?", (message.id,)
    )


def test_cancel_waits_for_the_decision(tmp_path: Path) -> None:
    """With a timeout the call returns what the recipient decided."""
    with (
        Postbox(tmp_path / "billing.db", agent="billing"),
        Postbox(tmp_path / "shop.db", agent="shop") as shop,
    ):
        message = shop.send("billing", Job(n=1))
        until(lambda: shop.state(message) == "sent")

        assert "cancelled" == shop.cancel(message, timeout=30).outcome


def test_cancel_waits_for_a_decision_that_it_is_too_late(tmp_path: Path) -> None:
    """A mailbox has a message as soon as it has arrived: the call returns that, or cancels it."""
    with (
        Postbox(tmp_path / "billing.db", agent="billing") as billing,
        Postbox(tmp_path / "shop.db", agent="shop") as shop,
    ):
        billing.mailboxes.create("invoices", public=True)
        invoices = shop.mailboxes.get("invoices")
        found = [shop.cancel(invoices.send({"n": n}), timeout=30) for n in range(20)]

    assert set() == {each.outcome for each in found} - {"too_late", "cancelled"}


def test_many_are_cancelled_by_what_they_have_in_common(world: World) -> None:
    """By recipient, type, session or key; what has left is asked for, what has ended is not."""
    shop, _ = world.wired("shop", "billing")
    left = shop.session("a").send("billing", Job(n=1))
    world.settle()
    here = [shop.session("a").send("billing", Job(n=n), delay=60) for n in range(450)]
    other = shop.session("b").send("billing", Job(n=2), delay=60, key="mine")
    found = shop.cancel_all(session="a", to="billing")
    by_key = shop.cancel_all(key="mine")
    world.settle()

    assert (sorted(here), [left], []) == (sorted(found.cancelled), found.asked, found.too_late)
    assert [other] == by_key.cancelled
    assert "cancelled" == shop.state(left)


def test_a_recipient_cancels_many_of_a_sender(world: World) -> None:
    """Those of a type, in all its lanes; the key is that which their sender gave."""
    shop, billing = world.wired("shop", "billing")
    jobs = [shop.send("billing", Job(n=n), ordering_key=f"k{n}") for n in range(5)]
    keyed = shop.send("billing", {"n": 1}, type="other", key="mine")
    world.settle()
    by_key = billing.cancel_all(sender="shop", key="mine")
    by_type = billing.cancel_all(type=Job, reason="closed")
    world.settle()

    assert ([keyed], jobs) == (by_key.cancelled, by_type.cancelled)
    assert {"cancelled"} == {shop.state(each) for each in (*jobs, keyed)}
    assert 6 == billing.file.stats()["inbox_cancelled"]


def test_not_everything_is_cancelled_by_mistake(world: World) -> None:
    """Something has to say which messages are meant."""
    with pytest.raises(InvalidArgument, match="say which messages"):
        world.open("shop").cancel_all()


# -- at the recipient -----------------------------------------------------------------------------


def test_a_message_between_two_calls_of_its_handler_is_cancelled(world: World) -> None:
    """One that rests before its next attempt ends, and its lane goes on at once."""
    agent, calls = Agent("billing"), list[int]()

    @agent.on(Job)
    def fail(job: Job) -> None:
        calls.append(job.n)
        if job.n == 1:
            raise ValueError

    shop, billing = world.wired("shop", agent)
    first, second = (shop.send("billing", Job(n=n)) for n in (1, 2))
    world.settle()
    resting = [*calls]
    cancelled = billing.cancel(first)
    world.settle()

    assert [1] == resting
    assert cancelled
    assert [1, 2] == calls
    assert ["cancelled", "acked"] == [shop.state(first), shop.state(second)]


def test_a_message_whose_handler_waits_is_cancelled(world: World) -> None:
    """Waiting for a reply, a person or a time: the handler is not called again."""
    agent, calls = Agent("billing"), list[int]()
    agent.waits(Approval)

    @agent.on(Job)
    def wait(job: Job, ctx: Context) -> None:
        calls.append(job.n)
        if job.n == 1:
            ctx.ask("shop", Job(n=7), reply=Approval)
        if job.n == 2:
            ctx.wait(Approval)
        ctx.sleep("3d")

    shop, billing = world.wired("shop", agent)
    waiting = [shop.send("billing", Job(n=n), ordering_key=f"k{n}") for n in (1, 2, 3)]
    world.settle()
    cancelled = [billing.cancel(each) for each in waiting]
    question = shop.receive(Job)
    assert question is not None
    question.reply(Approval(ok=True))
    shop.send("billing", Approval(ok=True))
    world.wait(4 * 86_400)

    assert all(cancelled)
    assert [1, 2, 3] == sorted(calls)
    assert ["cancelled"] * 3 == [shop.state(each) for each in waiting]


def test_the_requests_of_a_cancelled_handler_are_cancelled_too(world: World) -> None:
    """
    Over two agents: the one whose handler waits, and the one that it has asked, which waits.

    One that has not left is withdrawn; none of their handlers is called again.
    """
    agent, helper, calls = Agent("billing"), Agent("helper"), list[str]()

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        calls.append("billing")
        tickets = [ctx.request("helper", job), ctx.request("shop", job, delay="1h")]
        tickets.append(ctx.request("billing", {"n": 1}, type="own"))
        ctx.gather(tickets, reply=dict)

    @agent.on("own")
    def own(_: dict[str, int], ctx: Context) -> None:
        ctx.sleep("3d")

    @helper.on(Job)
    def help_out(_: Job, ctx: Context) -> None:
        calls.append("helper")
        ctx.ask("shop", {"n": 1}, type="question", reply=dict)

    shop, billing, other = world.open("shop"), world.open(agent), world.open(helper)
    job = shop.send("billing", Job(n=1))
    world.settle()
    shop.cancel(job, reason="too dear")
    world.settle()
    world.wait(4 * 86_400)

    ends = "SELECT type, state, reason FROM onceward_inbox WHERE state = 'cancelled' ORDER BY seq"
    told = "cancelled: too dear"
    assert ["billing", "helper"] == calls
    assert [("job", "cancelled", told), ("own", "cancelled", told)] == billing.query(ends)
    assert [("job", "cancelled", told)] == other.query(ends)
    assert [("question", "cancelled", told)] == shop.query(ends)
    assert [("cancelled",)] == billing.query(
        "SELECT state FROM onceward_outbox WHERE recipient = 'shop'"
    )
    assert "cancelled" == shop.state(job)


@pytest.mark.parametrize("kind", ["handler", "run"])
def test_a_kept_request_outlives_its_cancelled_handler(world: World, kind: str) -> None:
    """It is handled to its end, and its reply is there for its id; the others are cancelled."""
    agent, helper = Agent("billing"), Agent("helper")
    asked: list[str] = []

    def work(ctx: Context | Run) -> None:
        tickets = [ctx.request("helper", {"n": n}, type="job", keep=n == 1) for n in (1, 2)]
        asked[:] = [each.id for each in tickets]
        ctx.gather(tickets, reply=int)

    if kind == "run":
        agent.runs("talk", mode="collect", debounce=0)(lambda run: work(run))  # noqa: PLW0108
    else:
        agent.on("job")(lambda _, ctx: work(ctx))

    @helper.on("job")
    def help_out(body: dict[str, int], ctx: Context) -> int:
        ctx.sleep("1h")
        return body["n"]

    shop, billing, other = world.open("shop"), world.open(agent), world.open(helper)
    job = shop.session("talk").send("billing", {}, type="job")
    world.settle()
    shop.cancel(job)
    world.settle()
    world.wait(3700)
    world.wait(60)

    states = dict(other.query("SELECT id, state FROM onceward_inbox"))
    assert ["processed", "cancelled"] == [states[each] for each in asked]
    assert 1 == billing.result(asked[0], reply=int)
    with pytest.raises(RequestCancelled):
        billing.result(asked[1], reply=int)


def test_what_a_cancelled_handler_asks_over_is_asked_once(world: World) -> None:
    """A request that its handler has cancelled itself is known to its recipient by one request."""
    agent = Agent("billing")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.ask("shop", job, reply=dict)

    shop, billing = world.wired("shop", agent)
    job = shop.send("billing", Job(n=1))
    world.settle()
    [(question,)] = billing.query("SELECT id FROM onceward_outbox")
    world.wire.of, world.wire.always = "shop", "down"
    first = billing.cancel(question, reason="mine").outcome
    billing.cancel(job, reason="yours")
    world.wire.always = "ok"
    world.wait(60)

    assert "asked" == first
    assert ("cancelled", "cancelled: mine") == ends(shop, question)
    assert 1 == len(billing.query("SELECT id FROM onceward_outbox WHERE type = 'onceward.cancel'"))


def test_a_handler_that_runs_sees_it_and_its_effects_roll_back(tmp_path: Path) -> None:
    """``ctx.cancelled`` turns true in another process's handle, too; no write of it is kept."""
    agent, begun, seen = Agent("bob"), Event(), list[bool]()

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        if job.n == 1:
            seen.append(ctx.cancelled)
            begun.set()
            until(lambda: ctx.cancelled)
            seen.append(ctx.cancelled)
        ctx.tx.execute("CREATE TABLE IF NOT EXISTS effects (n)")
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))

    path = tmp_path / "bob.db"
    with Postbox(path, agent=agent) as bob, Postbox(path, start=False) as second:
        message, later = (bob.send("bob", Job(n=n)) for n in (1, 2))
        assert begun.wait(30)
        cancelled = second.cancel(message)
        until(lambda: bob.state(later) == "acked")

        assert cancelled
        assert [False, True] == seen
        assert [(2,)] == bob.query("SELECT n FROM effects")
        assert "cancelled" == bob.state(message)


def test_a_coroutine_is_cancelled(tmp_path: Path) -> None:
    """An async handler's task is cancelled within a moment; what it wrote rolls back."""
    agent, begun, ended = Agent("bob"), Event(), list[str]()

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> None:
        if job.n == 1:
            begun.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
        await ctx.tx.execute("CREATE TABLE IF NOT EXISTS effects (n)")
        await ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))

    with Postbox(tmp_path / "bob.db", agent=agent) as bob:
        message, later = (bob.send("bob", Job(n=n)) for n in (1, 2))
        assert begun.wait(30)
        cancelled = bob.cancel(message)
        until(lambda: bob.state(later) == "acked")

        until(lambda: bool(ended))
        assert cancelled
        assert [(2,)] == bob.query("SELECT n FROM effects")


def test_a_message_that_is_read_by_hand_cannot_be_acked_any_more(world: World) -> None:
    """Its lease is over: ``ack`` raises LeaseLost, and the next message comes."""
    shop, billing = world.wired("shop", "billing")
    first, _ = (shop.send("billing", Job(n=n)) for n in (1, 2))
    world.settle()
    message = billing.receive(Job)
    assert message is not None
    billing.cancel(first)

    with pytest.raises(LeaseLost):
        message.ack()
    following = billing.receive(Job)
    assert following is not None
    assert 2 == following.body.n
    following.ack()


def test_a_message_of_a_batch_is_cancelled_and_the_others_are_handled(tmp_path: Path) -> None:
    """The batch of a cancelled message rolls back, and comes again without it."""
    agent, begun, go_on = Agent("bob"), Event(), Event()
    calls = list[list[int]]()

    @agent.on(Job, batch=3, within=2)
    def work(jobs: list[Job], ctx: BatchContext) -> None:
        calls.append([job.n for job in jobs])
        begun.set()
        assert go_on.wait(30)
        ctx.tx.execute("CREATE TABLE IF NOT EXISTS effects (n)")
        ctx.tx.executemany("INSERT INTO effects VALUES (?)", [(job.n,) for job in jobs])

    with Postbox(tmp_path / "bob.db", agent=agent) as bob:
        messages = [bob.send("bob", Job(n=n), ordering_key=f"k{n}") for n in (1, 2, 3)]
        assert begun.wait(30)
        cancelled = bob.cancel(messages[1])
        go_on.set()
        until(lambda: bob.state(messages[0]) == bob.state(messages[2]) == "acked")

        assert cancelled
        assert [1, 2, 3] == calls[0]
        assert [(1,), (3,)] == sorted(bob.query("SELECT n FROM effects"))


def test_a_message_of_a_run_is_cancelled_and_the_run_ends(tmp_path: Path) -> None:
    """The run is aborted; its other messages get another one."""
    agent, begun = Agent("bob"), Event()
    runs = list[list[int]]()

    @agent.runs("chat", mode="collect", debounce=0)
    def chat(run: Run) -> None:
        bodies = [each.body["n"] for each in run.messages]
        runs.append(bodies)
        if 1 in bodies:
            begun.set()
            until(lambda: run.cancelled)

    with Postbox(tmp_path / "bob.db", agent=agent) as bob:
        first = bob.session("chat").send("bob", {"n": 1})
        assert begun.wait(30)
        second = bob.session("chat").send("bob", {"n": 2})
        cancelled = bob.cancel(first)
        until(lambda: bob.state(second) == "acked")

        assert cancelled
        assert [[1], [2]] == runs
        assert "cancelled" == bob.state(first)


def test_a_handler_does_not_cancel_its_own_message(world: World) -> None:
    """It is told to raise Drop or Reject: its own commit would undo the cancelling for ever."""
    agent, told = Agent("billing"), list[str]()

    @agent.on(Job)
    def work(_: Job, ctx: Context) -> None:
        with pytest.raises(InvalidArgument) as caught:
            billing.cancel(ctx.message.id)
        told.append(str(caught.value))

    shop, billing = world.wired("shop", agent)
    shop.send("billing", Job(n=1))
    world.settle()

    assert ["raise Drop() or Reject(reason)"] == [each[-38:-8] for each in told]


def test_cancelling_again_says_the_same(world: World) -> None:
    """A message that is cancelled stays so; an id that is not known is absent."""
    shop, billing = world.wired("shop", "billing")
    message = shop.send("billing", Job(n=1))
    world.settle()

    assert ["cancelled", "cancelled"] == asked_of(billing, message)
    assert ("too_late", "absent") == (
        (found := billing.cancel("no-such-id")).outcome,
        found.state,
    )
    assert UNANSWERED not in str(ends(billing, message))


def test_a_recipient_that_cancels_nothing_accepts_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation without the feature decides no request, and stays reachable."""
    Postbox(tmp_path / "b.db", agent="b", start=False).close()
    monkeypatch.setattr(routing, "ARRIVES", [])
    with Postbox(tmp_path / "a.db", agent="a", start=False) as a:
        sent = a.send("b", "work")
        a.run_until_idle()
        asked = a.cancel(sent)
        later = a.send("b", "more work")
        a.run_until_idle()

        assert ("asked", "sent", "sent") == (asked.outcome, a.state(sent), a.state(later))
