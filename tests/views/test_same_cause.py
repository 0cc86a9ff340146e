"""Each situation that holds messages back is told alike by every view of an agent."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.children import PYTHON, Child, run

from onceward import Agent, BatchContext, Context, Msg, Postbox, Reject, Retry, Run
from onceward.file.file_checks import LEFT, owner_name
from onceward.file.in_flight import CallRecords
from onceward.file.read_only import opened
from onceward.message.clock import Millis, SystemClock
from onceward.ops.cli.doctor import examine
from onceward.ops.cli.findings import Finding
from onceward.ops.cli.top_state import row_of
from onceward.ops.inspector import app
from onceward.ops.observe.detail import read_detail
from onceward.ops.observe.rates import Rates
from onceward.ops.observe.snapshots import read_snapshot
from onceward.ops.views import handles, surroundings
from onceward.ops.views.beside import why_of_message
from onceward.ops.views.why import agent_whys
from onceward.testing import ManualClock

LATER = 180_000
"""Milliseconds after which each situation is looked at again, as if nothing had happened."""
ELSEWHERE = "01234567.4026531836.77.88/abc"
"""An owner of leases in a process of another machine."""
LEASE = "UPDATE _onceward_lanes SET owner = ?, due_at = due_at + 3600000 WHERE owner IS NOT NULL"
BREAK = """
UPDATE _onceward_peers SET breaker = 'open', failures = 5, due_at = due_at + 3600000
 WHERE name = 'far'
"""
FAIL = "UPDATE _onceward_schedules SET last_error = 'RecipientUnknown: no agent far'"
PROBLEMS = {
    "ok": "Problems", "paused": "paused", "breaker open": "peer", "dead letters": "dead letter",
    "schedule failing": "schedule", "untaken": "untaken", "undelivered": "undelivered",
    "disk full": "disk full", "replaced": "replaced",
}  # fmt: skip
"""The kind of problem that the inspector lists, by the agent's state."""
IDS = "SELECT id FROM onceward_outbox UNION SELECT id FROM onceward_inbox ORDER BY id DESC LIMIT 1"
Work = Callable[[Any, Any], object]


class Approval(Msg, type="approval"):
    """The message that a person sends."""

    by: str


class Home:
    """Agents without engines."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.shop = self.open("shop")

    def open(self, agent: Agent | str) -> Postbox:
        """Open an agent; it is closed with the home."""
        name = agent if isinstance(agent, str) else agent.name
        box = Postbox(self.folder / f"{name}.db", agent=agent, start=False)
        return self.stack.enter_context(box)

    def handle(self, work: Work, *, jobs: int = 1, **options: Any) -> None:
        """Let shop send jobs to itself, and handle them until it is idle."""
        self.shop.close()
        agent = Agent("shop")
        agent.on("job", **options)(work)
        agent.waits(Approval)
        self.shop = self.open(agent)
        for _ in range(jobs):
            self.shop.send("shop", {}, type="job")
        self.shop.run_until_idle()

    def arrive(self, count: int = 1, **options: Any) -> None:
        """Let shop send messages to itself, which no handler takes."""
        for n in range(count):
            self.shop.send("shop", n, **options)
        self.shop.run_until_idle()

    def fail_to_reach(self, change: str = "") -> None:
        """Let shop push to a peer that does not answer."""
        self.shop.peers.add("far", "memory:far")
        self.shop.send("far", 1)
        self.shop.run_until_idle()
        if change:
            with self.shop.begin() as tx:
                tx.execute(change)


def work_once(_body: Any, _ctx: Context) -> None:
    """Succeed."""


def later(_body: Any, _ctx: Context) -> None:
    """Fail for an hour."""
    raise Retry("HTTP 503", after=3600)


def all_later(_bodies: list[dict[str, Any]], _ctx: BatchContext) -> None:
    """Fail for an hour with several messages."""
    raise Retry("HTTP 503", after=3600)


def never(_body: Any, _ctx: Context) -> None:
    """Fail for good."""
    raise Reject("no such account")


def waits_for_a_person(home: Home) -> None:
    """A handler waits for an approval."""
    home.handle(lambda _, ctx: ctx.wait(Approval, timeout="3d"))


def asks(home: Home) -> None:
    """A handler waits for the answer of another agent."""
    home.open("ada")
    home.handle(lambda _, ctx: ctx.ask("ada", "may I?", reply=str, timeout="1h"))


def sleeps(home: Home) -> None:
    """A handler sleeps."""
    home.handle(lambda _, ctx: ctx.sleep("2h"))


def fails(home: Home) -> None:
    """A handler fails, and is called again later."""
    home.handle(later)


def blocks(home: Home) -> None:
    """A message that fails is at the head of a lane with others."""
    home.handle(later, jobs=3)


def refuses(home: Home) -> None:
    """A handler refuses a message."""
    home.handle(never)


def has_no_handler(home: Home) -> None:
    """An agent has no handler for a type."""
    home.handle(work_once, jobs=0)
    home.arrive(type="other")


def expires(home: Home) -> None:
    """A message has expired before it was handled."""
    home.arrive(ttl=0.001)


def pauses(home: Home) -> None:
    """An agent is paused, with messages for many peers."""
    for n in range(12):
        home.open(f"peer{n}")
        home.shop.send(f"peer{n}", 1)
    home.shop.file.pause()


def pauses_a_session(home: Home) -> None:
    """A session with runs is paused."""
    home.shop.close()
    agent = Agent("shop")

    @agent.runs(mode="followup")
    def turn(_run: Run) -> None:
        """Do nothing."""

    home.shop = home.open(agent)
    home.arrive()
    home.shop.runs.pause("default")
    home.arrive()


def pauses_a_channel(home: Home) -> None:
    """A channel is paused."""
    home.open("billing")
    news = home.shop.channels.create("news", "group")
    news.add("billing")
    news.pause()
    news.send({})


def reaches_a_limit(home: Home) -> None:
    """A limit holds messages."""
    home.fail_to_reach(BREAK)
    home.shop.limits.set("session", "import", messages=1, overflow="hold")
    for n in range(2):
        home.shop.session("import").send("far", n)


def delays(home: Home) -> None:
    """A message is due in an hour."""
    home.open("billing")
    home.shop.send("billing", 1, delay=3600)


def delays_itself(home: Home) -> None:
    """A message to oneself is due in an hour."""
    home.arrive(delay=3600)


def forgets(home: Home) -> None:
    """A peer has neither a url nor a file any more."""
    home.fail_to_reach(BREAK)
    home.shop.peers.remove("far")


def breaks(home: Home) -> None:
    """The breaker of a peer with a url is open."""
    home.fail_to_reach(BREAK)


def stops_trying(home: Home) -> None:
    """A push failed once, and no process tries it again."""
    home.fail_to_reach()


def cannot_schedule(home: Home) -> None:
    """A schedule's message cannot be sent."""
    home.shop.schedules.add("nightly", every=3600, to="shop", body=1)
    with home.shop.begin() as tx:
        tx.execute(FAIL)


def is_not_taken(home: Home) -> None:
    """No process has received messages of an agent without handlers."""
    home.arrive(6)


def has_lost_its_workers(home: Home) -> None:
    """An agent with handlers has no worker."""
    home.handle(later)
    home.shop.close()
    home.shop = home.open("shop")
    with home.shop.begin() as tx:
        tx.execute("UPDATE _onceward_lanes SET due_at = NULL")


def is_not_sent(home: Home) -> None:
    """No process delivers."""
    home.open("billing")
    home.shop.send("billing", 1)


def dies(home: Home) -> None:
    """The process of a worker was killed a moment ago."""
    home.arrive()
    path = str(home.shop.file.path)
    take = f"Postbox({path!r}, agent='shop', start=False).receive(); os._exit(0)"
    run([*PYTHON, "-c", f"import os; from onceward import Postbox; {take}"])


def loses_a_worker(home: Home) -> None:
    """An error ended the thread of a worker, whose process lives."""
    home.arrive()
    home.shop.receive()
    records, owner = CallRecords(home.shop.file.path), owner_name()
    home.stack.callback(records.close)
    assert records.enter(owner, "reader", 60_000) is not None
    records.forsake(owner)
    with home.shop.begin() as tx:
        tx.execute(LEASE, (owner,))


def dies_elsewhere(home: Home) -> None:
    """The file was moved here while a process of another machine had a lease."""
    home.arrive()
    home.shop.receive()
    with home.shop.begin() as tx:
        tx.execute(LEASE, (ELSEWHERE,))


def is_isolated(home: Home) -> None:
    """A batch has failed, so the messages of its lane are handled alone; the first one waits."""
    home.handle(all_later, jobs=3, batch=3)
    [(alone,)] = home.shop._db.read("SELECT max(isolate_upto_seq) FROM _onceward_lanes")
    assert alone > 0


def kills_its_process(home: Home) -> None:
    """A handler has ended the process of its worker."""
    home.arrive(3, type="job")
    path, die = str(home.shop.file.path), "agent.on('job')(lambda _: os._exit(9))"
    make = f"import os; from onceward import Agent, Postbox; agent = Agent('shop'); {die}"
    work = f"{make}; Postbox({path!r}, agent=agent, start=False).run_until_idle()"
    run([*PYTHON, "-c", work], check=False)


def closes_a_channel(home: Home) -> None:
    """A channel was closed before its message was sent."""
    home.open("billing")
    news = home.shop.channels.create("news", "group")
    news.add("billing")
    news.send({})
    news.drain()
    news.close()


def reads_a_closed_channel(home: Home) -> None:
    """A message of a channel has arrived that was closed before it was read."""
    billing = home.open("billing")
    news = billing.channels.create("news", "group")
    news.add("shop")
    news.send({})
    billing.run_until_idle()
    news.drain()
    news.close()


def has_no_room(home: Home) -> None:
    """The disk is full; a message waits for a process that delivers."""
    is_not_sent(home)
    full = pytest.MonkeyPatch()
    home.stack.callback(full.undo)
    full.setattr(surroundings, "free_bytes", lambda _: 4096)


def loses_its_name(home: Home) -> None:
    """The file of a live process was moved away, and a copy has its place."""
    home.shop.close()
    path = home.shop.file.path
    hold = f"box = Postbox({str(path)!r}, start=False); print(box.agent, flush=True); input()"
    command = [*PYTHON, "-c", f"from onceward import Postbox; {hold}"]
    assert "shop" == home.stack.enter_context(Child(command, "stdin", "stdout")).hear()
    path.rename(path.with_name("moved.db"))
    handles._last[:] = [handles._Look()]  # forgets the look of the test before
    shutil.copy(path.with_name("moved.db"), path)


def is_open_with_sqlite3(home: Home) -> None:
    """The process that sends has the recipient's file open with sqlite3, for a while already."""
    home.open("billing")
    home.shop.send("billing", 1)
    home.shop.run_until_idle()
    home.shop.send("billing", 2)
    with home.shop.begin() as tx:
        tx.execute("UPDATE _onceward_peers SET last_error = ?", (LEFT.format("billing.db"),))


@dataclass(frozen=True)
class Situation:
    """What every view says of it."""

    plant: Callable[[Home], None]
    reason: str
    """Of ``why``."""
    cure: str
    """The beginning of the cure, without the name of the file."""
    checks: tuple[str, ...]
    """Checks of doctor that warn."""
    state: str
    """Of ``top``, and of the agents' page."""
    calm: str = ""
    """The check of doctor that names the reason without a warning."""
    later: Millis = LATER


SITUATIONS = [
    Situation(waits_for_a_person, "message awaited", "onceward send shop", (), "ok", "replies"),
    Situation(asks, "answer", "onceward show", ("replies",), "ok"),
    Situation(sleeps, "asleep", "", (), "ok", "replies"),
    Situation(fails, "retry", "onceward show", ("lanes",), "ok"),
    Situation(blocks, "retry", "onceward show", ("lanes",), "ok"),
    Situation(refuses, "dead letters", "onceward dead ls", ("dead letters",), "dead letters"),
    Situation(has_no_handler, "dead letters", "onceward dead", ("dead letters",), "dead letters"),
    Situation(expires, "dead letters", "onceward dead ls", ("dead letters",), "dead letters"),
    Situation(pauses, "paused", "onceward resume", ("paused",), "paused"),
    Situation(pauses_a_session, "session paused", "onceward runs", ("paused",), "ok"),
    Situation(pauses_a_channel, "held", "onceward channel resume news", ("held",), "ok"),
    Situation(reaches_a_limit, "breaker open", "onceward peers reset far",
              ("held", "breakers", "delivery", "limits"), "breaker open"),
    Situation(delays, "delayed", "", (), "ok"),
    Situation(delays_itself, "delayed", "", (), "ok"),
    Situation(forgets, "breaker open", "onceward peers add far URL", ("breakers", "delivery"),
              "breaker open"),
    Situation(breaks, "breaker open", "onceward peers reset far", ("breakers", "delivery"),
              "breaker open"),
    Situation(stops_trying, "undelivered", "onceward relay", ("delivery",), "undelivered"),
    Situation(cannot_schedule, "schedule failing", "onceward schedules ls", ("schedules",),
              "schedule failing"),
    Situation(is_not_taken, "untaken", "call receive", ("handling",), "untaken"),
    Situation(has_lost_its_workers, "untaken", "onceward work", ("handling",), "untaken"),
    Situation(is_not_sent, "undelivered", "onceward relay", ("delivery",), "undelivered"),
    Situation(dies, "untaken", "call receive", ("handling", "leases"), "untaken", later=10),
    Situation(loses_a_worker, "untaken", "call receive", ("handling", "leases"), "untaken",
              later=10),
    Situation(dies_elsewhere, "leased elsewhere", "", (), "ok", "leases"),
    Situation(is_isolated, "retry", "onceward show", ("lanes",), "ok"),
    Situation(kills_its_process, "untaken", "call receive", ("handling", "leases"), "untaken",
              later=10),
    Situation(closes_a_channel, "dead letters", "onceward dead ls", ("dead letters",),
              "dead letters"),
    Situation(reads_a_closed_channel, "untaken", "call receive", ("handling",), "untaken"),
    Situation(has_no_room, "disk full", "free disk space", ("space", "delivery"), "disk full"),
    Situation(loses_its_name, "replaced", "end process", ("handles", "write"), "replaced"),
    Situation(is_open_with_sqlite3, "left to its process", "onceward relay", ("breakers",), "ok"),
]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Return a home of one agent."""
    monkeypatch.delenv("ONCEWARD_HOME", raising=False)
    tmp_path.chmod(0o700)
    with ExitStack() as stack:
        yield Home(tmp_path, stack)


def pages(folder: Path, now: Millis) -> Iterator[str]:
    """Yield the words of the inspector's pages of all agents, of shop, and of all problems."""
    made = app([folder], clock=ManualClock(now))
    made.state.site.refresher.refresh()
    with ExitStack() as stack:
        stack.callback(made.state.site.refresher.stop)
        client = stack.enter_context(TestClient(made, base_url="http://localhost"))
        for address in ("/", "/agents/shop", "/problems"):
            told = re.sub(r"<[^>]*>", " ", client.get(address).text)
            yield " ".join(html.unescape(told).split())


def about(found: list[Finding], level: str) -> dict[str, Finding]:
    """Return the first finding of each check with this level."""
    return {each.check: each for each in reversed(found) if each.level == level}


@pytest.mark.parametrize("of", SITUATIONS, ids=lambda of: of.plant.__name__)
def test_every_view_names_the_same_cause(
    home: Home, monkeypatch: pytest.MonkeyPatch, of: Situation
) -> None:
    """One cause and the right cure, in ``why``, ``doctor``, ``top`` and the inspector."""
    of.plant(home)
    path, now = home.shop.file.path, SystemClock().now() + of.later
    monkeypatch.setattr(SystemClock, "now", lambda _: now)
    with opened(path) as reader:
        why, *_ = agent_whys(reader, now)
        [(newest,)] = reader.rows(IDS) or [("",)]
    detail, row = read_detail(path), row_of(read_snapshot(path, now), Rates(), now)
    agents, page, problems = pages(home.folder, now)
    of_message = why_of_message(path, newest, now)
    found = [each for each in examine(path) if each.check != "disk"]  # tests may be in memory
    warned, calm = about(found, "warning") | about(found, "serious"), about(found, "ok")

    assert (of.reason, of.state) == (why.reason, row.state)
    assert set(of.checks) == set(warned)
    assert (why.cure or "").startswith(of.cure)
    assert bool(of.cure) is bool(why.cure)
    assert [why] == list(detail.whys[:1])
    told = f"{why.text(now)} Cure: {why.cure}" if why.cure else why.text(now)
    assert told in page
    assert (of.state != "ok") == (f"shop {of.state}" in agents)
    assert f" {PROBLEMS[of.state]} " in problems
    if of.checks:
        cures = " ".join(warned[each].cure for each in of.checks)
        assert of.cure.replace(" shop", "") in cures
    elif of.calm:
        assert why.text(now) == calm[of.calm].found
    assert of_message is None or "1 messages" not in of_message.text(now)
    assert "1 messages" not in f"{why.text(now)} {found} {page}"
