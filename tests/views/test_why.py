"""Each reason why a message, a session, a peer or an agent is where it is, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed
from tests.children import PYTHON, run

from onceward import Agent, Context, Msg, Postbox, Reject, Retry, RetryPolicy, Run, Settings, Tuning
from onceward.errors import InvalidArgument
from onceward.file.read_only import opened
from onceward.ops.views import lists
from onceward.ops.views.handler_limits import rate_text
from onceward.ops.views.waiting import unhandled
from onceward.ops.views.why import Why, agent_whys, lane_why, message_why, peer_why, session_why
from onceward.testing import Controls, ManualClock

DAY = 86_400


class Approval(Msg, type="approval"):
    """The message that a handler waits for."""

    granted: bool


@dataclass
class Home:
    """A home of agents on one clock."""

    folder: Path
    stack: ExitStack
    clock: ManualClock = field(default_factory=ManualClock)
    boxes: dict[str, Postbox] = field(default_factory=dict)

    def open(self, agent: Agent | str, **options: Any) -> Postbox:
        """Open an agent without engines."""
        name = agent if isinstance(agent, str) else agent.name
        box = Postbox(
            self.folder / f"{name}.db",
            agent=agent,
            start=False,
            testing=Controls(clock=self.clock),
            **options,
        )
        self.boxes[name] = self.stack.enter_context(box)
        return box

    def settle(self) -> None:
        """Deliver and handle everything that is due."""
        for _ in range(3):
            for box in self.boxes.values():
                box.run_until_idle()

    def why(self, message_id: str, sender: str, recipient: str | None = None) -> Why:
        """Return why a message is where it is; without a recipient its file is not readable."""
        with ExitStack() as stack:
            here = stack.enter_context(opened(self.boxes[sender].file.path))
            there = (
                stack.enter_context(opened(self.boxes[recipient].file.path)) if recipient else None
            )
            found = message_why(here, there, message_id, self.clock.now())
        assert found is not None
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Return an empty home."""
    with ExitStack() as stack:
        yield Home(tmp_path, stack)


def handling(name: str, work: Callable[[dict[str, Any], Context], object], **options: Any) -> Agent:
    """Return an agent that handles jobs by *work*."""
    agent = Agent(name)
    agent.on("job", **options)(work)
    return agent


TAKE = "call receive, or start a worker: onceward work MODULE:AGENT"
"""The cure where messages wait and the file does not show how they are taken."""


def pair(home: Home, work: Callable[[dict[str, Any], Context], object], **options: Any) -> Postbox:
    """Open shop and billing, which handles jobs by *work*; return shop's box."""
    shop = home.open("shop")
    home.open(handling("billing", work, **options))
    return shop


def done(body: dict[str, Any], ctx: Context) -> None:
    """Handle a job."""


def busy(body: dict[str, Any], ctx: Context) -> None:
    """Fail for now."""
    msg = "HTTP 503"
    raise Retry(msg, after=35)


def refused(body: dict[str, Any], ctx: Context) -> None:
    """Fail for good."""
    msg = "no such account"
    raise Reject(msg)


# -- in the outbox ------------------------------------------------------------------------


def test_a_message_that_no_process_delivers_is_ready(home: Home) -> None:
    """The sentence names what is missing, and the command that delivers."""
    shop = home.open("shop", hold_unknown=True)

    found = home.why(shop.send("billing", {}), "shop")

    assert "Ready to leave: it waits for a process that delivers for shop" == found.text(
        home.clock.now()
    )
    assert ("ready", "wait", "onceward relay --agent shop") == (
        found.reason,
        found.level,
        found.cure,
    )


def test_a_delayed_message_says_when_it_is_due(home: Home) -> None:
    """The moment is given as a span and as a number."""
    shop = home.open("shop", hold_unknown=True)

    found = home.why(shop.send("billing", {}, delay=90), "shop")

    assert ("delayed", "Delayed: due in 2 m") == (found.reason, found.text(home.clock.now()))
    assert home.clock.now() + 90_000 == found.until_at


def test_a_message_of_a_paused_agent_waits_for_its_resume(home: Home) -> None:
    """A pause is something to act on: nothing ends it by itself."""
    shop = home.open("shop", hold_unknown=True)
    message_id = shop.send("billing", {})
    shop.file.pause()
    home.clock.advance(3 * 3600)

    found = home.why(message_id, "shop")

    assert "shop was paused 3 h ago: it handles and sends no message" == found.text(
        home.clock.now()
    )
    assert ("paused", "act", "onceward resume --agent shop") == (
        found.reason,
        found.level,
        found.cure,
    )


def test_a_message_over_a_limit_names_the_limit(home: Home) -> None:
    """It waits until messages before it have ended."""
    shop = home.open("shop", hold_unknown=True)
    shop.limits.set("session", "import", messages=1, overflow="hold")
    session = shop.session("import")
    session.send("billing", {})

    found = home.why(session.send("billing", {}), "shop")

    assert "held" == found.reason
    assert "Waits until the limit of session import has capacity for it" == found.text(
        home.clock.now()
    )


def test_a_message_of_a_paused_channel_names_the_channel(home: Home) -> None:
    """The cure resumes it."""
    shop = home.open("shop")
    home.open("billing")
    news = shop.channels.create("news", "group")
    news.add("billing")
    news.pause()
    news.send({})
    with opened(shop.file.path) as reader:
        [[message_id]] = reader.rows("SELECT id FROM onceward_outbox WHERE held_by IS NOT NULL")

    found = home.why(message_id, "shop")

    assert ("held", "Channel news is paused") == (found.reason, found.text(home.clock.now()))
    assert "onceward channel resume news --agent shop" == found.cure


def test_a_peer_that_does_not_answer_is_named_with_its_error(home: Home) -> None:
    """While pushes fail, the message waits for the next try."""
    shop = home.open("shop", hold_unknown=True)
    message_id = shop.send("billing", {})
    shop.run_until_idle()

    found = home.why(message_id, "shop")

    assert "peer failing" == found.reason
    assert found.text(home.clock.now()).startswith("Pushes to billing failed once in a row (")
    assert found.until_at is not None


def test_an_open_breaker_is_to_be_acted_on(home: Home) -> None:
    """The command that closes it is given."""
    shop = home.open(
        "shop", hold_unknown=True, settings=Settings(tuning=Tuning(breaker_failures=2))
    )
    message_id = shop.send("billing", {})
    for _ in range(3):
        shop.run_until_idle()
        home.clock.advance(120)

    found = home.why(message_id, "shop")

    assert ("breaker open", "act") == (found.reason, found.level)
    assert "its circuit breaker is open" in found.text(home.clock.now())
    assert found.cure == (
        "onceward peers add billing URL --agent shop, or onceward init billing in its home"
    )


def test_a_message_in_another_file_is_stored_there(home: Home) -> None:
    """Without the recipient's file the sender's one says how far it has come."""
    shop = pair(home, done)
    message_id = shop.send("billing", {}, type="job")
    shop.run_until_idle()
    home.clock.advance(40)

    found = home.why(message_id, "shop")

    assert "billing stored it 40 s ago; it is not handled yet" == found.text(home.clock.now())
    assert "stored there" == found.reason


def test_a_cancelled_message_says_so(home: Home) -> None:
    """It needs nothing."""
    shop = home.open("shop", hold_unknown=True)
    message_id = shop.send("billing", {})
    shop.cancel(message_id)
    home.clock.advance(5)

    found = home.why(message_id, "shop")

    assert ("cancelled", "ok") == (found.reason, found.level)
    assert found.text(home.clock.now()).startswith("Cancelled 5 s ago")


def test_an_expired_message_is_sent_as_new(home: Home) -> None:
    """Under its id its recipient would refuse it, and so does a replay here."""
    shop = home.open("shop", hold_unknown=True)
    message_id = shop.send("billing", {}, ttl=60)
    home.clock.advance(120)
    shop.run_until_idle()
    home.clock.advance(3600)
    shop.run_until_idle()

    found = home.why(message_id, "shop")

    assert f"onceward dead replay {message_id} --as-new --agent shop" == found.cure
    with pytest.raises(InvalidArgument, match="replay it with as_new=True"):
        shop.dead_letters.replay(message_id)
    assert "pending" == shop.state(shop.dead_letters.replay(message_id, as_new=True))


# -- in the inbox -------------------------------------------------------------------------


def test_a_handled_message_is_processed(home: Home) -> None:
    """Both files know it; the recipient's is asked first."""
    shop = pair(home, done)
    message_id = shop.send("billing", {}, type="job")
    home.settle()
    home.clock.advance(60)

    found = home.why(message_id, "shop", "billing")

    assert ("processed", "ok") == (found.reason, found.level)
    assert "billing processed it 1 m ago" == found.text(home.clock.now())


def test_a_message_that_ended_without_its_handler_says_how(home: Home) -> None:
    """Cancelled by its recipient, or expired before a worker took it."""
    shop = pair(home, done)
    billing = home.boxes["billing"]
    cancelled = shop.send("billing", {}, type="job")
    expired = shop.session("late").send("billing", {}, type="job", ttl=60)
    shop.run_until_idle()
    billing.cancel(cancelled)
    home.clock.advance(120)
    home.settle()

    one, other = (home.why(each, "shop", "billing") for each in (cancelled, expired))

    assert one.text(home.clock.now()).startswith("billing cancelled it 2 m ago")
    assert other.text(home.clock.now()).startswith("Expired at billing 0 s ago")
    assert ("cancelled", "expired") == (one.reason, other.reason)


def test_a_message_that_no_worker_takes_is_next(home: Home) -> None:
    """Handlers that have left no trace and readers look alike: the cure names both."""
    shop = pair(home, done)
    message_id = shop.send("billing", {}, type="job")
    shop.run_until_idle()

    found = home.why(message_id, "shop", "billing")

    assert "Next in its lane: it waits for a free worker of billing" == found.text(home.clock.now())
    assert ("ready", TAKE) == (found.reason, found.cure)


def test_an_agent_that_had_workers_needs_one(home: Home) -> None:
    """A failed attempt shows that it has handlers: the command that starts workers is given."""
    shop = pair(home, busy)
    message_id = shop.send("billing", {}, type="job")
    home.settle()
    home.clock.advance(36)

    found = home.why(message_id, "shop", "billing")

    assert ("ready", "onceward work MODULE:AGENT") == (found.reason, found.cure)


def test_a_failed_handler_is_told_with_its_error_and_next_try(home: Home) -> None:
    """How often it failed, why, and when it is tried again."""
    shop = pair(home, busy)
    message_id = shop.send("billing", {}, type="job")
    home.settle()

    found = home.why(message_id, "shop", "billing")

    assert "Handler failed once (HTTP 503); next try in 35 s" == found.text(home.clock.now())
    assert ("retry", home.clock.now() + 35_000) == (found.reason, found.until_at)


def test_a_message_behind_a_failing_one_names_it(home: Home) -> None:
    """The sentence has the id of the head of its lane, and why that one waits."""
    shop = pair(home, busy)
    head = shop.send("billing", {}, type="job")
    message_id = shop.send("billing", {}, type="job")
    home.settle()
    home.clock.advance(40)
    home.settle()

    found = home.why(message_id, "shop", "billing")

    told = "That one: handler failed twice (HTTP 503); next try in 35 s"
    assert f"Waits behind {head[:13]}… in its lane. {told}" == found.text(home.clock.now())
    assert "behind" == found.reason


@pytest.mark.parametrize(
    ("options", "reason", "said"),
    [
        ({"rate": "1/h"}, "rate", "Its handler has reached its rate; called in 1 h"),
        (
            {"rate": "1/h", "key": "body.t"},
            "rate",
            "Its handler has reached its rate for a; called in 1 h",
        ),
        (
            {"debounce": 3600, "key": "body.t"},
            "quiet",
            "Debounced: handled if no later message with its key comes; called in 1 h",
        ),
    ],
)
def test_a_message_that_a_limit_holds_back_names_it(
    home: Home, options: dict[str, Any], reason: str, said: str
) -> None:
    """With its key, and when its handler will be called."""
    agent = Agent("billing")
    agent.on("job", **options)(lambda _: None)
    shop = home.open("shop")
    home.open(agent)
    ids = [shop.send("billing", {"t": "a"}, type="job", ordering_key=str(n)) for n in range(2)]
    home.settle()

    found = home.why(ids[1], "shop", "billing")

    assert (reason, said) == (found.reason, found.text(home.clock.now()))


def test_a_debounced_message_that_no_worker_takes_counts_for_its_agent(home: Home) -> None:
    """It is in a lane of its key, which has no sender."""
    agent = Agent("billing")
    agent.on("job", debounce=60, key="body.t")(lambda _: None)
    shop = home.open("shop")
    home.open(agent)
    shop.send("billing", {"t": "a"}, type="job")
    home.settle()
    home.clock.advance(70)

    with opened(home.folder / "billing.db") as reader:
        found = unhandled(reader, home.clock.now())
        told = agent_whys(reader, home.clock.now())

    assert (1, 0) == (found.lanes, found.leased)
    assert ["untaken"] == [each.reason for each in told]


def test_a_message_of_a_paused_type_names_the_pause(home: Home) -> None:
    """The message and its agent say since when, and how the type is resumed."""
    agent = Agent("billing")
    agent.on("job")(lambda _: None)
    shop, billing = home.open("shop"), home.open(agent)
    billing.file.pause(type="job")
    message_id = shop.send("billing", {}, type="job")
    home.settle()
    home.clock.advance(60)

    found = home.why(message_id, "shop", "billing")
    with opened(home.folder / "billing.db") as reader:
        told = agent_whys(reader, home.clock.now())

    assert "job was paused 1 m ago: its messages wait" == found.text(home.clock.now())
    assert ("type paused", "act") == (found.reason, found.level)
    assert "onceward resume --type job --agent billing" == found.cure
    assert ["type paused"] == [each.reason for each in told]


def test_a_message_that_waits_for_a_set_rate_names_it_and_the_declared_one(home: Home) -> None:
    """Also how many calls run at once, if that is set."""
    agent = Agent("billing")
    agent.on("job", rate="10/m")(lambda _: None)
    shop, billing = home.open("shop"), home.open(agent)
    billing.limits.set("handler", "job", rate="1/h", concurrency=2)
    ids = [shop.send("billing", {}, type="job", ordering_key=str(n)) for n in range(2)]
    home.settle()

    found = home.why(ids[1], "shop", "billing")

    told = "Its handler has reached its rate, which is set to 1/h, 2 at once (declared: 10/m)"
    assert f"{told}; called in 1 h" == found.text(home.clock.now())


@pytest.mark.parametrize(
    ("per_second", "burst", "told"),
    [
        (10, 10, "10/s"),
        (10 / 60, 10, "10/m"),
        (1 / 3600, 1, "1/h"),
        (2.5, 1, "2.5/s in bursts of 1"),
        (1 / 86_400, 1, "0.0417/h in bursts of 1"),
    ],
)
def test_a_rate_is_told_as_it_is_given(per_second: float, burst: float, told: str) -> None:
    """In the shortest unit in which it is at least one."""
    assert told == rate_text(per_second, burst)


def test_a_dead_letter_says_which_agent_gave_it_up(home: Home) -> None:
    """The cure replays it there."""
    shop = pair(home, refused)
    message_id = shop.send("billing", {}, type="job")
    home.settle()
    home.clock.advance(3 * 60)

    found = home.why(message_id, "shop", "billing")

    assert "billing gave it up 3 m ago: rejected (no such account)" == found.text(home.clock.now())
    assert ("dead letter", "act") == (found.reason, found.level)
    assert f"onceward dead replay {message_id} --agent billing" == found.cure


def test_a_leased_message_is_handled_now(home: Home) -> None:
    """Until its worker's lease has ended."""
    shop = home.open("shop")
    billing = home.open("billing")
    message_id = shop.send("billing", {})
    shop.run_until_idle()
    assert billing.receive() is not None

    found = home.why(message_id, "shop", "billing")
    home.clock.advance(3600)
    late = home.why(message_id, "shop", "billing")

    assert ("handled", "ok") == (found.reason, found.level)
    assert "billing handles it now, attempt 1" == found.text(home.clock.now())
    assert "lease ended" == late.reason
    assert late.text(home.clock.now()).startswith("The lease of its worker ended ")


def test_a_handler_that_asked_waits_for_the_answer(home: Home) -> None:
    """The sentence names the agent that was asked, and when."""

    def ask(body: dict[str, Any], ctx: Context) -> None:
        ctx.ask("crm", {}, reply=str, timeout=30 * DAY)

    shop = pair(home, ask)
    home.open("crm")
    message_id = shop.send("billing", {}, type="job")
    home.settle()
    home.clock.advance(3 * DAY)

    found = home.why(message_id, "shop", "billing")

    assert ("answer", "Waits for an answer of crm, asked 3 d ago") == (
        found.reason,
        found.text(home.clock.now()),
    )


def test_a_handler_that_sleeps_says_until_when(home: Home) -> None:
    """It holds no worker until then."""
    shop = pair(home, lambda _body, ctx: ctx.sleep(2 * DAY))
    message_id = shop.send("billing", {}, type="job")
    home.settle()

    found = home.why(message_id, "shop", "billing")

    assert ("asleep", "Sleeps, and continues in 2 d") == (
        found.reason,
        found.text(home.clock.now()),
    )
    assert home.clock.now() + 2 * DAY * 1000 == found.until_at


def test_a_handler_that_waits_for_a_message_names_its_type(home: Home) -> None:
    """With the end of its patience."""

    def wait(body: dict[str, Any], ctx: Context) -> None:
        ctx.wait(Approval, timeout=7 * DAY)

    billing = handling("billing", wait)
    billing.waits(Approval)
    shop = home.open("shop")
    home.open(billing)
    message_id = shop.send("billing", {}, type="job")
    home.settle()

    found = home.why(message_id, "shop", "billing")

    assert "message awaited" == found.reason
    assert "Waits for a message of type approval; its timeout is in 1 w" == found.text(
        home.clock.now()
    )


def test_a_handler_whose_message_has_come_is_next(home: Home) -> None:
    """It no longer waits for that message, but for a worker; after a while no worker runs."""
    billing = handling("billing", lambda _body, ctx: ctx.wait(Approval, timeout=7 * DAY))
    billing.waits(Approval)
    shop = home.open("shop")
    home.open(billing)
    message_id = shop.send("billing", {}, type="job")
    home.settle()
    shop.send("billing", Approval(granted=True))
    shop.run_until_idle()
    home.clock.advance(2)
    found = home.why(message_id, "shop", "billing")
    home.clock.advance(5)
    later = home.why(message_id, "shop", "billing")

    assert ("ready", "ready") == (found.reason, later.reason)
    assert "Next in its lane: it waits for a free worker of billing" == found.text(0)
    assert "Next in its lane: no worker of billing takes messages" == later.text(0)


def test_a_failing_step_is_named_with_its_error(home: Home) -> None:
    """The step's own attempts are told, not those of the handler."""

    def charge() -> int:
        msg = "card service is down"
        raise ConnectionError(msg)

    def work(body: dict[str, Any], ctx: Context) -> None:
        ctx.step(charge, attempts=5, retry=RetryPolicy(wait_fixed(60), stop_after_attempt(5)))

    shop = pair(home, work)
    message_id = shop.send("billing", {}, type="job")
    home.settle()

    found = home.why(message_id, "shop", "billing")

    assert "step failed" == found.reason
    assert found.text(home.clock.now()).startswith("Step charge failed once (")
    assert "card service is down" in found.text(home.clock.now())
    assert "; next try in " in found.text(home.clock.now())


def test_a_message_in_a_mailbox_lies_there(home: Home) -> None:
    """It is read when a reader comes: nothing is wrong."""
    shop, coder = home.open("shop"), home.open("coder")
    coder.mailboxes.ensure("tickets", public=True)
    shop.mailboxes.get("tickets").send({})
    home.settle()
    with opened(coder.file.path) as reader:
        [[message_id]] = reader.rows("SELECT id FROM onceward_inbox")

    found = home.why(message_id, "shop", "coder")

    assert ("mailbox", "ok") == (found.reason, found.level)
    assert "In mailbox tickets until it is read" == found.text(home.clock.now())


# -- a session, a peer, a lane, an agent --------------------------------------------------


def chatting(home: Home) -> Postbox:
    """Open an agent whose session chat has runs, with one message in its queue."""
    coder = Agent("coder")

    @coder.runs("chat", mode="collect", debounce=60)
    def turn(run: Run) -> None:
        """Do nothing."""

    shop, box = home.open("shop"), home.open(coder)
    shop.session("chat").send("coder", "hello")
    home.settle()
    return box


def test_a_session_says_what_its_next_run_waits_for(home: Home) -> None:
    """A worker, a resume, or nothing; one without runs is told from it."""
    box = chatting(home)

    def why(session: str) -> Why:
        with opened(box.file.path) as reader:
            return session_why(reader, session)

    waiting = why("chat")
    first = waiting.text(home.clock.now())
    box.runs.pause("chat")
    home.clock.advance(60)
    paused = why("chat")
    box.runs.resume("chat")
    home.settle()

    told = "The next run of session chat begins in 1 m; 1 message in its queue"
    assert ("debounce", told) == (waiting.reason, first)
    assert "Session chat was paused 1 m ago; 1 message in its queue" == paused.text(
        home.clock.now()
    )
    assert ("session paused", "act") == (paused.reason, paused.level)
    assert "onceward runs resume chat --agent coder" == paused.cure
    assert ("empty", "no runs") == (why("chat").reason, why("other").reason)


def test_a_message_in_a_session_queue_has_the_reason_of_its_session(home: Home) -> None:
    """The run takes it with the others."""
    box = chatting(home)
    with opened(box.file.path) as reader:
        [[message_id]] = reader.rows("SELECT id FROM onceward_inbox WHERE state = 'pending'")

    found = home.why(message_id, "shop", "coder")

    assert "The next run of session chat begins in 1 m; 1 message in its queue" == found.text(
        home.clock.now()
    )


def test_a_peer_that_answers_is_reachable(home: Home) -> None:
    """One that the file does not know has no reason."""
    shop = pair(home, done)
    shop.send("billing", {}, type="job")
    home.settle()

    with opened(shop.file.path) as reader:
        found = peer_why(reader, "billing")
        unknown = peer_why(reader, "nobody")

    assert found is not None
    assert ("reachable", "ok") == (found.reason, found.level)
    assert unknown is None


def test_a_lane_has_the_reason_of_its_head(home: Home) -> None:
    """The lists of lanes show the same sentence as the message."""
    shop = pair(home, busy)
    shop.send("billing", {}, type="job")
    home.settle()

    with opened(home.boxes["billing"].file.path) as reader:
        [lane] = lists.held_lanes(reader, 10)
        found = lane_why(reader, lane, home.clock.now())

    assert "Handler failed once (HTTP 503); next try in 35 s" == found.text(home.clock.now())


def test_an_agent_lists_what_to_act_on_first(home: Home) -> None:
    """A dead letter comes before a lane that is tried again; a quiet agent says that it is idle."""
    shop = home.open("shop")
    billing = Agent("billing")
    billing.on("bad")(refused)
    billing.on("slow")(busy)
    home.open(billing)
    shop.session("a").send("billing", {}, type="bad")
    shop.session("b").send("billing", {}, type="slow")
    home.settle()
    home.clock.advance(40)
    home.settle()

    with opened(home.boxes["billing"].file.path) as reader:
        found = agent_whys(reader, home.clock.now())
    with opened(shop.file.path) as reader:
        [calm] = agent_whys(reader, home.clock.now())

    assert ["dead letters", "retry"] == [each.reason for each in found]
    assert "1 dead letter of billing to replay or discard" == found[0].text(home.clock.now())
    told = found[1].text(home.clock.now())
    assert told.startswith("1 lane of billing failed and will be retried: 0")
    assert told.endswith("… failed twice (HTTP 503); next try in 35 s")
    assert ("idle", "No message of shop waits") == (calm.reason, calm.text(home.clock.now()))


def test_a_lane_is_told_after_its_first_failure(home: Home) -> None:
    """With the moment of the next try, while that is to come."""
    shop = pair(home, busy)
    shop.send("billing", {}, type="job")
    home.settle()

    with opened(home.boxes["billing"].file.path) as reader:
        [found] = agent_whys(reader, home.clock.now())
        late = agent_whys(reader, home.clock.now() + 40_000)[-1]

    told = found.text(home.clock.now())
    assert told.endswith("… failed once (HTTP 503); next try in 35 s")
    assert ("retry", home.clock.now() + 35_000) == (found.reason, found.until_at)
    assert late.text(home.clock.now()).endswith("… failed once (HTTP 503)")


def test_a_handler_that_sleeps_after_a_failure_is_not_to_be_retried(home: Home) -> None:
    """Its lane has failed once, and rests for the sleep."""

    def work(body: dict[str, Any], ctx: Context) -> None:
        if ctx.message.attempt == 1:
            raise Retry(after=5)
        ctx.sleep(DAY)

    shop = pair(home, work)
    shop.send("billing", {}, type="job")
    home.settle()
    home.clock.advance(5)
    home.settle()

    with opened(home.boxes["billing"].file.path) as reader:
        found = agent_whys(reader, home.clock.now())

    assert ["asleep"] == [each.reason for each in found]


def test_messages_that_no_worker_takes_are_told(home: Home) -> None:
    """Also right after a pause, and not while a reader has one or has just had one."""
    shop, billing = home.open("shop"), home.open("billing")
    for session in "abc":
        shop.session(session).send("billing", {})
    shop.run_until_idle()
    billing.file.pause()
    home.clock.advance(60)
    billing.file.resume()

    def reason(later: int = 0) -> str:
        with opened(billing.file.path) as reader:
            return agent_whys(reader, home.clock.now() + later)[0].reason

    with opened(billing.file.path) as reader:
        [found] = agent_whys(reader, home.clock.now())
    message = billing.receive()
    assert message is not None
    leased = reason()
    message.ack()

    said = "No worker takes the messages of billing; the oldest has waited for 1 m"
    assert said == found.text(home.clock.now())
    assert ("untaken", "wait", TAKE) == (
        found.reason,
        found.level,
        found.cure,
    )
    assert ("busy", "busy", "untaken") == (leased, reason(), reason(5000))


def test_a_process_that_ended_works_no_more(home: Home) -> None:
    """Its lease has time left, and counts as none."""
    shop, billing = home.open("shop"), home.open("billing")
    message_id = shop.send("billing", {})
    shop.run_until_idle()
    take = (
        f"Postbox({str(billing.file.path)!r}, agent='billing', start=False).receive(); os._exit(0)"
    )
    run([*PYTHON, "-c", f"import os; from onceward import Postbox; {take}"])
    home.clock.advance(10)

    found = home.why(message_id, "shop", "billing")
    with opened(billing.file.path) as reader:
        [of_agent] = agent_whys(reader, home.clock.now())

    assert ("lease ended", "untaken") == (found.reason, of_agent.reason)
    assert "The process of its worker has ended: the next worker handles it" == found.text(0)
    assert TAKE == found.cure


def test_messages_that_no_process_delivers_are_told(home: Home) -> None:
    """With the command that delivers them; a failing peer is told instead, where it fails."""
    shop = home.open("shop")
    home.open("billing")
    shop.send("billing", {})
    with opened(shop.file.path) as reader:
        early = agent_whys(reader, home.clock.now())[0]
        [found] = agent_whys(reader, home.clock.now() + 5000)

    assert ("busy", "undelivered") == (early.reason, found.reason)
    assert "onceward relay --agent shop" == found.cure
    said = "No process delivers the messages of shop; the oldest has waited for 5 s"
    assert said == found.text(home.clock.now() + 5000)


def test_a_schedule_that_the_code_forgot_is_told(home: Home) -> None:
    """With the command that removes it."""
    before, after = Agent("shop"), Agent("shop")
    before.every("1h", name="nightly")(lambda _: None)
    after.on("job")(lambda _: None)
    home.open(before).close()
    box = home.open(after)
    home.clock.advance(3600)
    box.run_until_idle()

    with opened(box.file.path) as reader:
        [found] = agent_whys(reader, home.clock.now())

    assert ("schedule withdrawn", "wait", "nightly") == (found.reason, found.level, found.of)
    assert "Schedule nightly is paused: the code of shop no longer declares it" == found.text(0)
    assert "onceward schedules remove nightly --agent shop" == found.cure
