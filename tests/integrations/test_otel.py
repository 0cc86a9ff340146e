"""Traces and metrics of messages, as OpenTelemetry's messaging conventions name them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanKind, StatusCode
from tests.integrations.conftest import Telemetry, linked, parent_id, span_id, trace_id
from tests.journey.conftest import Clock

from onceward import (
    Agent,
    AsyncContext,
    AsyncMessage,
    AsyncPostbox,
    BatchContext,
    Context,
    Postbox,
    Reject,
    Run,
    step,
)
from onceward.errors import OutboxLimit, SendError
from onceward.features.mailboxes.aio import AsyncHandlerTransaction
from onceward.testing import Controls

PING = {"number": 1}
BAD_PARENTS = [
    "",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
    "00-00000000000000000000000000000000-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
    "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
    "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
    " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "x" * 9000,
    7,
    True,
]
GOOD_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GOOD_TRACE, GOOD_SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


def settle(*boxes: Postbox) -> None:
    """Run the engines until nothing is due."""
    while sum(box.run_until_idle() for box in boxes):
        pass


def answering() -> Agent:
    """Return an agent that answers each message."""
    agent = Agent("b")

    @agent.on("json")
    def answer(body: dict[str, Any], ctx: Context) -> None:
        ctx.reply({"number": body["number"] + 1})

    return agent


def test_a_send_is_a_producer_span_that_its_message_carries(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """The span of a send lasts until the commit, and its context is in the frame."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:
        telemetry.observe(box)
        with telemetry.tracer.start_as_current_span("caller"):
            message_id = box.session("run-42").send("b", PING)
        [(frame,)] = box.query("SELECT frame FROM onceward_outbox")

    span, caller = telemetry.one("send b"), telemetry.one("caller")
    assert (SpanKind.PRODUCER, StatusCode.UNSET) == (span.kind, span.status.status_code)
    assert span_id(caller) == parent_id(span)
    assert f'"traceparent":"00-{trace_id(span):032x}-{span_id(span):016x}-' in frame
    assert {
        "messaging.system": "onceward",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "b",
        "messaging.message.id": message_id,
        "messaging.message.conversation_id": message_id,
        "messaging.onceward.agent": "a",
        "messaging.onceward.session": "run-42",
        "messaging.onceward.message.type": "json",
        "messaging.onceward.outcome": "committed",
    } == dict(span.attributes or {})


def test_a_handler_goes_on_with_the_trace_of_its_message(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """An attempt is a child of the send and links to it; the reply is a child of the attempt."""
    agent = answering()
    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        telemetry.observe(a)
        message_id = a.send("b", PING, correlation_id="order-7")
        settle(a, b)

    sent, handled, reply = map(telemetry.one, ("send b", "process b", "send a"))
    assert SpanKind.CONSUMER == handled.kind
    assert (span_id(sent), [span_id(sent)]) == (parent_id(handled), linked(handled))
    assert span_id(handled) == parent_id(reply)
    assert 1 == len({trace_id(span) for span in (sent, handled, reply)})
    assert {
        "messaging.system": "onceward",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "b",
        "messaging.message.id": message_id,
        "messaging.message.conversation_id": "order-7",
        "messaging.onceward.agent": "b",
        "messaging.onceward.session": "default",
        "messaging.onceward.message.type": "json",
        "messaging.onceward.message.attempt": 1,
        "messaging.onceward.outcome": "processed",
    } == dict(handled.attributes or {})


def test_a_message_that_is_claimed_after_a_restart_continues_its_trace(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """The trace is in the file: another opening, with another tracer, goes on with it."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as a:
        telemetry.observe(a)
        a.send("b", PING | {"text": "x" * 200_000})
    later, agent = Telemetry(), answering()
    later.observe(agent)
    with (
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
        Postbox(tmp_path / "a.db", start=False) as a,
    ):
        settle(a, b)
        assert [] == a.file.check(b.file)

    sent, handled = telemetry.one("send b"), later.one("process b")
    assert (trace_id(sent), span_id(sent)) == (trace_id(handled), parent_id(handled))


def test_asking_another_agent_is_one_trace(tmp_path: Path, telemetry: Telemetry) -> None:
    """Request, handling and reply belong to the trace of the caller, over threads and files."""
    agent = answering()
    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "b.db", agent=agent),
        Postbox(tmp_path / "a.db", agent="a") as a,
        telemetry.tracer.start_as_current_span("caller") as caller,
    ):
        telemetry.observe(a)
        assert {"number": 2} == a.ask("b", PING, reply=dict)

    spans = [telemetry.one(name) for name in ("send b", "process b", "send a")]
    assert {caller.get_span_context().trace_id} == {trace_id(span) for span in spans}


def test_each_attempt_is_a_span_and_the_dead_letter_another(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """A failed attempt says why and what follows; the dead letter is in the message's trace."""
    agent, clock = Agent("b"), Clock()

    @agent.on("json", attempts=2)
    def fail(body: object) -> None:
        raise ValueError(body)

    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False, testing=Controls(clock=clock)) as b,
    ):
        telemetry.observe(a)
        a.send("b", PING)
        settle(a, b)
        clock.forward(3600)
        settle(b)

    sent, dead = telemetry.one("send b"), telemetry.one("dead_letter b")
    first, second = telemetry.named("process b")
    outcomes = [(span.attributes or {})["messaging.onceward.outcome"] for span in (first, second)]
    assert ["retry", "dead"] == outcomes
    assert [1, 2] == [
        (span.attributes or {})["messaging.onceward.message.attempt"] for span in (first, second)
    ]
    assert [["exception", "retry"], ["exception", "dead_letter"]] == [
        [event.name for event in span.events] for span in (first, second)
    ]
    assert {StatusCode.ERROR} == {span.status.status_code for span in (first, second, dead)}
    assert {"ValueError"} == {(span.attributes or {})["error.type"] for span in (first, second)}
    assert {trace_id(sent)} == {trace_id(span) for span in (first, second, dead)}
    assert "attempts_spent" == (dead.attributes or {})["error.type"]


def test_a_refused_message_is_a_dead_letter_in_the_trace_of_its_send(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """A message that no handler wants, and its sender's view of it, are visible."""
    agent = Agent("b")
    telemetry.observe(agent)

    @agent.on("other")
    def reject(body: object) -> None:
        raise Reject("unused")

    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        telemetry.observe(a)
        a.send("b", PING)
        settle(a, b)

    dead = telemetry.one("dead_letter b")
    assert trace_id(telemetry.one("send b")) == trace_id(dead)
    assert "unhandled" == (dead.attributes or {})["messaging.onceward.reason"]
    assert [] == telemetry.named("process b")


def test_messages_that_are_sent_together_share_a_span(tmp_path: Path, telemetry: Telemetry) -> None:
    """A batch is one span, whose context each of its messages carries."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:
        telemetry.observe(box)
        box.send_many([("b", PING), ("b", PING), ("c", PING)])
        frames = [frame for (frame,) in box.query("SELECT frame FROM onceward_outbox")]

    span = telemetry.one("send")
    assert 3 == (span.attributes or {})["messaging.batch.message_count"]
    assert "messaging.message.id" not in (span.attributes or {})
    assert 3 == sum(f"{span_id(span):016x}" in frame for frame in frames)


def test_a_published_message_is_one_span_named_by_its_topic(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """All copies of a message carry the context of its send."""
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent="b", start=False) as b,
        Postbox(tmp_path / "c.db", agent="c", start=False) as c,
    ):
        for box in (b, c):
            box.agents.subscribe("prices")
        telemetry.observe(a)
        a.publish("prices", PING)
        settle(a, b, c)
        frames = [f for box in (b, c) for (f,) in box.query("SELECT frame FROM onceward_inbox")]

    span = telemetry.one("send prices")
    assert 2 == sum(f"{span_id(span):016x}" in frame for frame in frames)


def test_each_call_of_a_step_is_a_span_within_its_attempt(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """With its name and number; what the function raises is on it; a stored step has none."""
    agent = Agent("a")
    clock = Clock()

    def away() -> int:
        with telemetry.tracer.start_as_current_span("inner"):
            if step.attempt < 2:
                raise OSError("away")
        return 1

    @agent.on("json")
    def work(body: dict[str, int], ctx: Context) -> None:
        ctx.step(away, attempts=2)
        ctx.step(sum, [1, 2], name="add")
        if ctx.message.attempt < 2:
            raise ValueError

    telemetry.observe(agent)
    with Postbox(tmp_path / "a.db", agent=agent, start=False, testing=Controls(clock=clock)) as box:
        sent = box.send("a", PING)
        for _ in range(4):
            settle(box)
            clock.forward(5)

    calls = [each for each in telemetry.spans.get_finished_spans() if each.name.startswith("step ")]
    attempts = [
        span_id(each) for each in telemetry.spans.get_finished_spans() if each.name == "process a"
    ]
    assert [
        ("step away", 1, StatusCode.ERROR, "OSError"),
        ("step away", 2, StatusCode.UNSET, None),
        ("step add", 1, StatusCode.UNSET, None),
    ] == [
        (
            each.name,
            (each.attributes or {})["messaging.onceward.step.attempt"],
            each.status.status_code,
            (each.attributes or {}).get("error.type"),
        )
        for each in calls
    ]
    assert [attempts[0], attempts[1], attempts[1]] == [parent_id(each) for each in calls]
    assert [span_id(each) for each in calls[:2]] == [
        parent_id(each) for each in telemetry.spans.get_finished_spans() if each.name == "inner"
    ]
    assert {sent} == {(each.attributes or {})["messaging.message.id"] for each in calls}


def test_a_run_links_to_each_of_its_messages(tmp_path: Path, telemetry: Telemetry) -> None:
    """A run of several messages is a span with a trace of its own; its replies are children."""
    agent = Agent("b")

    @agent.runs(mode="collect", debounce=0)
    def serve(run: Run) -> None:
        run.send("a", PING)

    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        telemetry.observe(a)
        a.session("s").send("b", PING)
        a.session("s").send("b", PING)
        settle(a, b)
        [run] = b.runs.list()

    sends, span = telemetry.named("send b"), telemetry.one("process b")
    assert (None, [span_id(each) for each in sends]) == (parent_id(span), linked(span))
    attributes = dict(span.attributes or {})
    assert run.id == attributes["messaging.onceward.run.id"]
    assert 2 == attributes["messaging.batch.message_count"]
    assert "processed" == attributes["messaging.onceward.outcome"]
    assert span_id(span) == parent_id(telemetry.one("send a"))


def test_a_batch_says_of_each_message_what_it_is_and_how_it_ends(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """A link for each, also where one send made them all; the span itself tells the worst end."""
    agent = Agent("b")

    @agent.on("json", batch=3, within=0)
    def serve(bodies: list[dict[str, int]], ctx: BatchContext) -> None:
        _, second, third = ctx.messages
        ctx.retry(second, after=60)
        ctx.reject(third, "no")

    telemetry.observe(agent)
    with Postbox(tmp_path / "b.db", agent=agent, start=False) as b:
        ids = b.send_many([("b", PING)] * 3, correlation_id="order-7")
        settle(b)

    send, span = telemetry.one("send b"), telemetry.one("process b")
    assert [span_id(send)] * 3 == linked(span)
    assert [
        {
            "messaging.message.id": each,
            "messaging.message.conversation_id": "order-7",
            "messaging.onceward.message.type": "json",
        }
        for each in ids
    ] == [dict(link.attributes or {}) for link in span.links]
    assert [("retry", ids[1]), ("dead_letter", ids[2])] == [
        (event.name, (event.attributes or {})["messaging.message.id"]) for event in span.events
    ]
    assert "messaging.message.id" not in (span.attributes or {})
    assert ("rejected", "dead") == (
        (span.attributes or {})["error.type"],
        (span.attributes or {})["messaging.onceward.outcome"],
    )


def test_a_batch_that_raises_is_a_failed_span(tmp_path: Path, telemetry: Telemetry) -> None:
    """Its messages are tried alone after that, which costs none of them an attempt."""
    agent = Agent("b")

    @agent.on("json", batch=2, within=0)
    def serve(bodies: list[dict[str, int]]) -> None:
        if len(bodies) == 2:
            raise KeyError(2)

    telemetry.observe(agent)
    with Postbox(tmp_path / "b.db", agent=agent, start=False) as b:
        b.send_many([("b", PING)] * 2)
        settle(b)

    [failed, *_] = telemetry.named("process b")
    assert StatusCode.ERROR == failed.status.status_code
    assert ("KeyError", "retry") == (
        (failed.attributes or {})["error.type"],
        (failed.attributes or {})["messaging.onceward.outcome"],
    )
    assert ["exception", "retry", "retry"] == [event.name for event in failed.events]


def test_a_handler_that_ends_to_wait_for_a_reply_is_no_retry(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """Both calls are of the trace of its message, and so are question and answer."""
    agent = Agent("b")

    @agent.on("json")
    def work(body: dict[str, int], ctx: Context) -> None:
        ctx.ask("c", body, type="question", reply=int)

    oracle = Agent("c")
    oracle.on("question")(lambda body: body["number"])
    telemetry.observe(agent)
    telemetry.observe(oracle)
    with (
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
        Postbox(tmp_path / "c.db", agent=oracle, start=False) as c,
    ):
        b.send("b", PING)
        settle(b, c)

    waiting, ended = telemetry.named("process b")
    assert ["waiting", "processed"] == [
        (span.attributes or {})["messaging.onceward.outcome"] for span in (waiting, ended)
    ]
    assert ((), StatusCode.UNSET) == (waiting.events, waiting.status.status_code)
    assert span_id(waiting) == parent_id(telemetry.one("send c"))
    assert 1 == len({trace_id(span) for span in telemetry.spans.get_finished_spans()})


def test_a_schedule_sends_when_it_is_due_and_not_when_it_is_added(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """The check at its adding is not a send; each date is a trace of its own."""
    agent, clock = Agent("b"), Clock()
    agent.on("json")(lambda _: None)
    telemetry.observe(agent)
    with Postbox(tmp_path / "b.db", agent=agent, start=False, testing=Controls(clock=clock)) as b:
        b.schedules.add("every", to="b", body=PING, every=60)
        assert () == telemetry.spans.get_finished_spans()
        for _ in range(2):
            clock.forward(61)
            settle(b)

    sent, handled = telemetry.named("send b"), telemetry.named("process b")
    assert list(map(span_id, sent)) == list(map(parent_id, handled))
    assert 2 == len(set(map(trace_id, sent)))


def test_a_run_that_fails_says_why(tmp_path: Path, telemetry: Telemetry) -> None:
    """The span of a run has the class of what its handler raised."""
    agent = Agent("b")

    @agent.runs(attempts=1)
    def serve(run: Run) -> None:
        raise KeyError(run.id)

    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        telemetry.observe(a)
        a.session("s").send("b", PING)
        settle(a, b)

    span = telemetry.one("process b")
    assert ("KeyError", "dead") == (
        (span.attributes or {})["error.type"],
        (span.attributes or {})["messaging.onceward.outcome"],
    )
    assert span_id(telemetry.one("send b")) == parent_id(span)


def test_a_send_that_is_rolled_back_is_not_called_committed(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """The span ends with the transaction, and says that no commit is known."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:
        telemetry.observe(box)
        with suppress(ZeroDivisionError), box.begin() as tx:
            tx.send("b", PING)
            assert [] == telemetry.named("send b")
            raise ZeroDivisionError
        with box.begin() as tx:
            tx.send("b", PING)
            assert 1 == len(telemetry.named("send b"))

    lost, kept = telemetry.named("send b")
    assert ("unconfirmed", StatusCode.UNSET) == (
        (lost.attributes or {})["messaging.onceward.outcome"],
        lost.status.status_code,
    )
    assert "committed" == (kept.attributes or {})["messaging.onceward.outcome"]
    assert [1] == [count for _, count in telemetry.metrics()["messaging.client.sent.messages"]]


def test_a_refused_send_names_the_error(tmp_path: Path, telemetry: Telemetry) -> None:
    """A full outbox, and an unknown recipient, are errors of their spans."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, max_pending=1) as box:
        telemetry.observe(box)
        box.send("a", PING)
        refused: list[Callable[[], object]] = [
            lambda: box.send("a", PING),
            lambda: box.send("nowhere", PING),
        ]
        for call in refused:
            with pytest.raises(SendError):
                call()

    full, unknown = telemetry.named("send a")[1], telemetry.one("send nowhere")
    assert (f"onceward.errors.{OutboxLimit.__name__}", "onceward.errors.UnknownRecipient") == (
        (full.attributes or {})["error.type"],
        (unknown.attributes or {})["error.type"],
    )
    assert {StatusCode.ERROR} == {span.status.status_code for span in (full, unknown)}


def test_the_same_key_is_the_same_message_in_another_trace(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """The trace context is not part of what a repetition is compared by."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:
        telemetry.observe(box)
        first = box.send("b", PING, key="k")
        again = box.send("b", PING, key="k")

    assert first == again
    assert ["committed", "known"] == [
        (span.attributes or {})["messaging.onceward.outcome"] for span in telemetry.named("send b")
    ]


@pytest.mark.parametrize("parent", BAD_PARENTS, ids=range(len(BAD_PARENTS)))
def test_a_stranger_s_bad_trace_context_counts_as_absent(
    tmp_path: Path, telemetry: Telemetry, parent: Any
) -> None:
    """What breaks a rule of the trace context harms no delivery; the attempt begins a trace."""
    handled: list[object] = []
    agent = Agent("b")
    agent.on("json")(handled.append)
    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        a.send("b", PING, headers={"traceparent": parent, "tracestate": "a=1,a=2"})
        settle(a, b)

    span = telemetry.one("process b")
    assert ([PING], None, []) == (handled, parent_id(span), linked(span))


def test_a_bad_trace_state_leaves_the_trace(tmp_path: Path, telemetry: Telemetry) -> None:
    """A trace state that breaks a rule is dropped alone; a good one travels on."""
    agent = answering()
    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        for state in ("vendor=1,=", "vendor=1, other@x=2"):
            a.send("b", PING, headers={"traceparent": GOOD_PARENT, "tracestate": state})
        settle(a, b)
        frames = [f for (f,) in b.query("SELECT frame FROM onceward_outbox ORDER BY seq")]

    assert [GOOD_TRACE] * 2 == [trace_id(span) for span in telemetry.named("process b")]
    assert [False, True] == ['"tracestate":"vendor=1,other@x=2"' in frame for frame in frames]


def test_a_context_of_the_caller_s_own_is_kept(tmp_path: Path, telemetry: Telemetry) -> None:
    """A send links to the creation context that its caller put into the headers."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as box:
        telemetry.observe(box)
        box.send("b", PING, headers={"traceparent": GOOD_PARENT})
        [(frame,)] = box.query("SELECT frame FROM onceward_outbox")

    span = telemetry.one("send b")
    assert GOOD_PARENT in frame
    assert (SpanKind.CLIENT, [GOOD_SPAN]) == (span.kind, linked(span))


def test_an_agent_for_strangers_begins_traces_of_its_own(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """Without continuing, an attempt only links to the send."""
    agent = answering()
    telemetry.observe(agent, continue_traces=False)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        a.send("b", PING, headers={"traceparent": GOOD_PARENT})
        settle(a, b)

    span = telemetry.one("process b")
    assert (None, [GOOD_SPAN]) == (parent_id(span), linked(span))
    assert GOOD_TRACE != trace_id(span)


def test_an_attempt_within_a_span_links_to_that_span(tmp_path: Path, telemetry: Telemetry) -> None:
    """A handler that runs on the caller's thread belongs to its message, and names the caller."""
    agent = Agent("b")
    agent.on("json")(lambda _: None)
    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
        telemetry.tracer.start_as_current_span("job") as job,
    ):
        b.send("b", PING, headers={"traceparent": GOOD_PARENT})
        b.run_until_idle()

    span = telemetry.one("process b")
    links = [GOOD_SPAN, job.get_span_context().span_id]
    assert (GOOD_SPAN, links) == (parent_id(span), linked(span))


def test_metrics_have_the_names_and_durations_of_the_spans(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """Sent and consumed messages are counted; a histogram has the durations of the spans."""
    agent = answering()
    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        telemetry.observe(a)
        a.send("b", PING)
        settle(a, b)

    shared = {"messaging.system": "onceward", "messaging.destination.name": "b"}
    named = {name: telemetry.metrics()[name] for name in sorted(telemetry.metrics())}
    assert [
        "messaging.client.consumed.messages",
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.process.duration",
    ] == list(named)
    assert ({**shared, "messaging.operation.name": "send"}, 1) in named[
        "messaging.client.sent.messages"
    ]
    assert [({**shared, "messaging.operation.name": "process"}, 1)] == named[
        "messaging.process.duration"
    ]
    assert [({**shared, "messaging.operation.name": "process"}, 1)] == named[
        "messaging.client.consumed.messages"
    ]
    sent = {**shared, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert (sent, 1) in named["messaging.client.operation.duration"]


def test_baggage_is_carried_when_it_is_asked_for(tmp_path: Path, telemetry: Telemetry) -> None:
    """W3C baggage reaches the handler where both sides say so, and is in no frame otherwise."""
    seen: list[object] = []
    agent = Agent("b")
    agent.on("json")(lambda _: seen.append(baggage.get_baggage("tenant")))
    telemetry.observe(agent, baggage=True)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "c.db", agent="c", start=False) as c,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        telemetry.observe(a, baggage=True)
        telemetry.observe(c)
        token = attach(baggage.set_baggage("tenant", "blue"))
        for box in (a, c):
            box.send("b", PING)
        detach(token)
        settle(a, c, b)

    assert ["blue", None] == seen


def test_log_lines_of_a_handler_name_its_trace(
    tmp_path: Path, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """The line of a failure carries the ids of the message, of the trace and of the span."""
    agent = Agent("b")

    @agent.on("json", attempts=1)
    def fail(body: object) -> None:
        raise ValueError(body)

    telemetry.observe(agent)
    with (
        caplog.at_level(logging.WARNING, "onceward"),
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        message_id = b.send("b", PING)
        b.run_until_idle()

    [fields] = [record.__dict__["onceward"] for record in caplog.records]
    span = telemetry.one("process b")
    assert {
        "agent": "b",
        "session": "default",
        "message_id": message_id,
        "type": "json",
        "attempt": 1,
        "trace_id": f"{trace_id(span):032x}",
        "span_id": f"{span_id(span):016x}",
    }.items() <= fields.items()


def test_async_sends_and_handlers_keep_the_span_of_their_task(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """What a task sends is a child of the task's span, in a handler and out of one."""
    agent = Agent("b")

    @agent.on("json")
    async def handle(body: dict[str, int], ctx: AsyncContext) -> None:
        with telemetry.tracer.start_as_current_span("inner"):
            await ctx.send("a", body)

    telemetry.observe(agent)

    async def main() -> None:
        async with (
            AsyncPostbox(tmp_path / "b.db", agent=agent, start=False) as b,
            AsyncPostbox(tmp_path / "a.db", agent="a", start=False) as a,
        ):
            telemetry.observe(a)
            with telemetry.tracer.start_as_current_span("outer"):
                await a.send("b", PING)
            with telemetry.tracer.start_as_current_span("block"):
                async with a.begin() as tx:
                    await tx.send("a", PING)
            await a.run_until_idle()
            await b.run_until_idle()

    asyncio.run(main())
    named = {name: telemetry.one(name) for name in ("outer", "inner", "block", "send b")}
    handled = telemetry.one("process b")
    assert span_id(named["outer"]) == parent_id(named["send b"])
    assert span_id(handled) == parent_id(named["inner"])
    assert {span_id(named["inner"]), span_id(named["block"])} == {
        parent_id(span) for span in telemetry.named("send a")
    }


def test_a_context_sends_within_its_attempt(tmp_path: Path, telemetry: Telemetry) -> None:
    """What a handler sends, and tasks that it dispatches, are children of its span."""
    agent = Agent("b")

    @agent.on("json")
    def handle(body: dict[str, int], ctx: Context) -> None:
        ctx.send("a", body)
        ctx.dispatch("a", body)

    telemetry.observe(agent)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as b,
    ):
        a.send("b", PING)
        settle(a, b)

    handled = telemetry.one("process b")
    assert [span_id(handled)] * 2 == [parent_id(span) for span in telemetry.named("send a")]


def test_telemetry_ends_when_it_is_told_to(tmp_path: Path, telemetry: Telemetry) -> None:
    """The call that instrumenting returned ends it, for an agent that is opened later, too."""
    agent = answering()
    off = telemetry.observe(agent)
    with Postbox(tmp_path / "b.db", agent=agent, start=False) as b:
        b.send("b", PING)
        off()
        b.send("b", PING)
        with Postbox(tmp_path / "other.db", agent=agent, start=False) as other:
            other.send("b", PING)

    assert 1 == len(telemetry.named("send b"))


def test_a_message_that_is_received_by_hand_is_handled_in_its_block(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """The block of a message goes on with its trace, and what is sent in it is a child."""
    with Postbox(tmp_path / "b.db", agent="b", start=False) as b:
        telemetry.observe(b)
        b.send("b", PING, headers={"traceparent": GOOD_PARENT})
        b.run_until_idle()
        received = b.receive()
        assert received is not None
        with received as message:
            message.reply(PING)
        b.run_until_idle()
        again = b.receive()
        assert again is not None
        with again:
            raise Reject("unused")

    first, second = telemetry.named("process b")
    [reply] = [span for span in telemetry.named("send b") if span.parent is not None]
    assert (GOOD_SPAN, span_id(first)) == (parent_id(first), parent_id(reply))
    assert [None, "onceward.errors.Reject"] == [
        (span.attributes or {}).get("error.type") for span in (first, second)
    ]


def test_a_task_handles_a_message_in_its_block(tmp_path: Path, telemetry: Telemetry) -> None:
    """An async block, and an async handler of a mailbox, are attempts as the sync ones are."""

    async def main() -> None:
        async with AsyncPostbox(tmp_path / "b.db", agent="b", start=False) as b:
            telemetry.observe(b)
            await b.send("b", PING, headers={"traceparent": GOOD_PARENT})
            mailbox = await b.mailboxes.ensure("jobs", public=True)
            await mailbox.send(PING, headers={"traceparent": GOOD_PARENT})
            await b.run_until_idle()
            received = await b.receive()
            assert received is not None
            async with received as message:
                await message.reply(PING)

            async def work(message: AsyncMessage[Any], effects: AsyncHandlerTransaction) -> None:
                await effects.send("b", message.body)

            assert 1 == await mailbox.handle("group", work)

    asyncio.run(main())
    handled = telemetry.named("process b")
    replies = [span for span in telemetry.named("send b") if span.parent is not None]
    assert [GOOD_SPAN] * 2 == [parent_id(span) for span in handled]
    assert [span_id(span) for span in handled] == [parent_id(span) for span in replies]
