"""
Dispatched tasks: the caller's session hears of the end of the worker's run once.

However the run ends, the news cannot be lost.
"""

from typing import Any

import pytest

from onceward import Agent, Context, Drop, Postbox, Reject, Run
from onceward.testing import Harness


class Office:
    """A manager that dispatches and a worker whose runs end as a test wants."""

    def __init__(self, scripted_agent: Any, **options: Any) -> None:
        self.agent = scripted_agent(mode="followup")
        self.worker = Agent("worker")
        self.does: list[Any] = []
        self.worker.runs(mode="steer", attempts=2, **options)(self._work)
        self.box: Postbox = self.agent.harness.peer("worker", self.worker)
        self.ids: list[str] = []
        self.agent.script = [self._dispatch]

    def _work(self, run: Run) -> Any:
        return self.does.pop(0)(run) if self.does else {"built": run.message.body}

    def _dispatch(self, run: Run) -> None:
        self.ids.append(run.dispatch("worker", {"task": run.message.body}))

    def ask(self, *bodies: Any) -> list[dict[str, Any]]:
        """Let the manager dispatch for each body; return the results that its session heard of."""
        self.agent.script = [self._dispatch] * len(bodies)
        self.agent.say(*bodies)
        for _ in range(4):
            self.agent.go(61)
        return self.results

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results that came into the manager's session, in order."""
        return [run.message.body for run in self.agent.runs if run.message.type == "worker_result"]


@pytest.fixture
def office(scripted_agent: Any) -> Office:
    """Return a manager and a worker."""
    return Office(scripted_agent)


def test_a_result_comes_back_into_the_callers_session(office: Office) -> None:
    """A spawned session's body and headers bear the dispatch id and the session's label."""
    [result] = office.ask("x")
    message = office.agent.runs[-1].message
    label = office.box.runs.list()[0].session

    assert ("done", {"built": {"task": "x"}}, None) == (
        result["outcome"],
        result["result"],
        result["error"],
    )
    assert (office.ids[0], label) == (result["dispatch_id"], result["session"])
    assert ({"dispatchid": office.ids[0], "spawnedsession": label}, "s") == (
        message.headers,
        message.session,
    )
    assert message.in_reply_to == office.ids[0]
    assert label.startswith("worker-")
    assert ["x", result] == [
        body for run in office.agent.runs for body in (m.body for m in run.messages)
    ]


def fail(_: Run) -> None:
    """End badly."""
    raise RuntimeError("no luck")


def reject(_: Run) -> None:
    """Refuse for good."""
    raise Reject("not mine")


def drop(_: Run) -> None:
    """Want nothing of it."""
    raise Drop


@pytest.mark.parametrize(
    ("does", "outcome", "error"),
    [
        ([fail, fail], "failed", "attempts_spent: RuntimeError: no luck"),
        ([reject], "failed", "rejected: not mine"),
        ([drop], "dropped", None),
        ([fail], "done", None),
    ],
)
def test_every_end_is_told_once(
    office: Office, does: list[Any], outcome: str, error: str | None
) -> None:
    """Done, given up, rejected or dropped, a task has one result, and not before its end."""
    office.does = does

    assert [(outcome, error)] == [(each["outcome"], each["error"]) for each in office.ask("x")]


def test_an_aborted_task_goes_on_in_the_next_run(office: Office) -> None:
    """A worker that is steered away has not ended its task: the next run does, and is told once."""

    def steered(run: Run) -> None:
        run.checkpoint("half")
        office.agent.user.session(run.session).send("worker", "and something else")
        office.agent.harness.deliver()

    office.agent.harness.peer("user").peers.add("worker", "test:worker")
    office.does = [steered, lambda run: run.previous.partial]
    [result] = office.ask("x")

    assert ("done", "half", None) == (result["outcome"], result["result"], result["error"])


def test_an_aborted_task_that_counts_as_delivered_is_told(scripted_agent: Any) -> None:
    """A worker steered away after a checkpoint tells its caller, with its result so far."""
    office = Office(scripted_agent, aborted="deliver")

    def steered(run: Run) -> None:
        run.checkpoint("half")
        office.agent.user.session(run.session).send("worker", "do something else")
        office.agent.harness.deliver()

    office.agent.harness.peer("user").peers.add("worker", "test:worker")
    office.does = [steered]
    [result] = office.ask("x")

    assert ("aborted", "half", True) == (
        result["outcome"],
        result["partial"],
        "steer by message" in result["error"],
    )


def test_a_full_queue_tells_the_caller(scripted_agent: Any) -> None:
    """A task that found no room in the worker's queue, or was pushed out, has ended too."""
    office = Office(scripted_agent, cap=1, overflow="reject")
    office.agent.script = [
        lambda run: office.ids.extend(run.dispatch("worker", n, session="shared") for n in (1, 2))
    ]
    office.box.runs.pause("shared")
    office.agent.say("go")
    office.agent.go()
    office.agent.go(61)

    assert [("refused", office.ids[1])] == [
        (each["outcome"], each["dispatch_id"]) for each in office.results
    ]


def test_a_result_is_protected_in_the_callers_queue(scripted_agent: Any) -> None:
    """
    A full queue of the caller still takes the result.

    The result waits in it and is delivered by the queue's mode.
    """
    office = Office(scripted_agent)
    office.agent.say("x")
    office.agent.harness.peer("user")
    office.agent.box.runs.set("s", cap=1, overflow="drop_old")

    def dispatches(run: Run) -> None:
        office.ids.append(run.dispatch("worker", 1))
        run.checkpoint("sent")
        office.agent.say("a", "b", "c")
        for _ in range(3):
            office.agent.harness.deliver()
            office.agent.harness.advance(61)

    office.agent.script = [dispatches]
    for _ in range(3):
        office.agent.go(1)

    assert 1 == len(office.results)


def test_a_handler_may_dispatch_too(scripted_agent: Any) -> None:
    """``ctx.dispatch`` commits with the processed mark; the handler's session gets the result."""
    manager, results = Agent("manager"), []

    @manager.on("go")
    def go(body: Any, ctx: Context) -> None:
        ctx.dispatch("coder", body)

    @manager.on("worker_result")
    def result(body: Any, ctx: Context) -> None:
        results.append((body["outcome"], body["result"], ctx.session))

    one = scripted_agent()
    one.script = [lambda _: "made"]
    one.harness.peer("manager", manager)
    one.harness.peer("user").peers.add("manager", "test:manager")
    one.harness.peer("user").session("talk").send("manager", 1, type="go")
    one.go()

    assert [("done", "made", "talk")] == results


TASKS = [
    (lambda body: f"made {body}", ("done", "made x", None)),
    (fail, ("failed", None, "attempts_spent: RuntimeError: no luck")),
    (reject, ("failed", None, "rejected: not mine")),
    (drop, ("dropped", None, None)),
]


@pytest.mark.parametrize(("does", "told"), TASKS)
def test_a_task_may_go_to_an_ordinary_handler(
    scripted_agent: Any, does: Any, told: tuple[str, Any, Any]
) -> None:
    """
    An agent without runs tells the end of a task once, with the handler's result.

    There is no second answer.
    """
    worker, one = Agent("worker"), scripted_agent()
    worker.on("task", attempts=2)(lambda body: does(body))  # noqa: PLW0108 - `fail` is annotated for runs
    one.harness.peer("worker", worker)
    one.script = [lambda run: run.dispatch("worker", "x", type="task")]
    one.say("go")
    for _ in range(4):
        one.go(61)
    [result] = [run.message for run in one.runs if run.message.type == "worker_result"]

    assert told == (result.body["outcome"], result.body["result"], result.body["error"])
    assert 2 == len(one.runs)


@pytest.mark.parametrize(
    ("settle", "outcome"), [("ack", "done"), ("drop", "dropped"), ("reject", "failed")]
)
def test_a_task_may_be_taken_by_hand(scripted_agent: Any, settle: str, outcome: str) -> None:
    """Who receives a task and settles it has told its end."""
    one = scripted_agent()
    one.script = [lambda run: run.dispatch("worker", "x")]
    worker = one.harness.peer("worker")
    one.say("go")
    one.go()
    message = worker.receive()
    getattr(message, settle)(*["not mine"] if settle == "reject" else [])
    one.go()

    assert [outcome] == [
        run.message.body["outcome"] for run in one.runs if run.message.type == "worker_result"
    ]


def test_a_task_that_never_arrived_is_told(scripted_agent: Any) -> None:
    """
    The dead letter and the result are one transaction of the caller's own file.

    A replay that fails again tells nothing twice.
    """
    one = scripted_agent()
    one.script = [lambda run: run.dispatch("nobody", "x", ttl=5)]
    one.harness.postbox.peers.add("nobody", "test:nobody")
    one.say("go")
    for _ in range(4):
        one.go(61)
    [result] = [run.message for run in one.runs if run.message.type == "worker_result"]
    [letter] = one.box.dead_letters.list()

    assert ("undelivered", letter.id, "s") == (
        result.body["outcome"],
        result.body["dispatch_id"],
        result.session,
    )
    assert letter.reason in result.body["error"]


def test_the_sender_is_not_blocked_by_a_busy_target(scripted_agent: Any) -> None:
    """Mail to an agent that is busy is taken in by its session's queue at once."""
    one = scripted_agent()
    stored: list[str] = []

    def busy(_: Run) -> None:
        [message_id] = one.say("next")
        one.harness.deliver()
        stored.append(one.user.state(message_id))

    one.script = [busy]
    one.say("first")
    one.go()

    assert ["sent"] == stored


def test_a_harness_is_enough_for_a_run_of_your_own() -> None:
    """The shipped harness plays runs as it plays handlers."""
    agent = Agent("a")
    agent.runs()(lambda run: run.reply(f"hello {run.message.body}"))
    with Harness(agent) as harness:
        harness.send("world")
        harness.deliver()

        assert ["hello world"] == harness.sent("tester")
