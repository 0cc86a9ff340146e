"""Two agents that have used each feature, and left it halfway: a row in every table, and state."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from onceward import Agent, Context, Msg, Postbox, Reject, Run
from onceward.file import known_homes
from onceward.testing import Controls, ManualClock

if TYPE_CHECKING:
    from pathlib import Path

LEAD, CREW = "lead", "crew"
CHOSEN = "019b76da-a800-7000-8000-000000000001"
"""An id that looks like a generated one."""


class Approval(Msg, type="approval"):
    """A person's answer."""

    text: str


def crew() -> Agent:
    """Return the agent that is asked: each handler leaves another state behind."""
    agent = Agent(CREW)
    agent.waits(Approval)

    @agent.on("job", key="body.tenant", rate="1/h", concurrency=1)
    def work(body: dict[str, Any], ctx: Context) -> dict[str, Any]:
        ctx.progress({"done": body["n"]})
        return {"n": body["n"]}

    @agent.on("typed", debounce=3600, key="body.user")
    def typed(body: dict[str, Any]) -> None:
        """Wait until the last one has come."""

    @agent.on("approve")
    def approve(body: dict[str, Any], ctx: Context) -> str:
        ctx.step(str, body["n"])
        return ctx.wait(Approval, timeout="30d").text

    @agent.on("once", unique_for=86_400)
    def once(body: str, ctx: Context) -> None:
        """Handle each body once a day, and write output."""
        ctx.stream().append("one")

    @agent.on("bad")
    def bad(body: dict[str, Any]) -> None:
        raise Reject("it is bad")

    @agent.runs(pattern="chat", mode="collect", debounce=3600, cap=3, overflow="summarize")
    def chat(run: Run) -> None:
        """Wait for more."""

    return agent


def write(home: Path, controls: Controls) -> None:
    """Use every feature once, in the files of two agents."""
    with ExitStack() as stack:
        lead, box = (
            stack.enter_context(
                Postbox(
                    home / f"{name}.db",
                    agent=agent,
                    start=False,
                    testing=controls,
                    transitions=True,
                )
            )
            for name, agent in ((LEAD, LEAD), (CREW, crew()))
        )
        ask_and_leave(lead)
        serve_a_pool(lead, box)
        post_in_channels(lead, box)
        fill_mailboxes(lead, box)
        settle(lead, box)
        read_halfway(lead, box)
        bound(lead)
        settle(lead, box)
        end_in_every_way(lead, box)
        assert isinstance(controls.clock, ManualClock)
        controls.clock.advance(10)
        box.file.run_maintenance()


def settle(*boxes: Postbox) -> None:
    """Carry and handle until nothing is due."""
    while sum(box.run_until_idle() for box in boxes):
        pass


def ask_and_leave(lead: Postbox) -> None:
    """Send jobs, results of which are kept, wait, or are gathered."""
    for n, tenant in enumerate("aab"):
        lead.session(tenant).request(CREW, {"n": n, "tenant": tenant}, type="job", timeout="30d")
    lead.session("typed").send(CREW, {"user": "ann"}, type="typed")
    lead.session("approve").send(CREW, {"n": 1}, type="approve")
    lead.session("bad").send(CREW, {"n": 2}, type="bad")
    lead.session("once").send(CREW, "twice", type="once")
    lead.session("expired").send(CREW, {"n": 4, "tenant": "a"}, type="job", ttl=5)
    lead.send(CREW, "later", type="note", delay="30d", priority="urgent", headers={"tags": "a,b"})
    lead.session("chat").send_many([(CREW, text) for text in ("one", "two", "three")])
    with lead.groups.begin(then=LEAD, data="album") as group:
        group.send(CREW, {"n": 5, "tenant": "b"}, type="job")
        group.send(CREW, {"n": 6, "tenant": "c"}, type="job")


def post_in_channels(lead: Postbox, box: Postbox) -> None:
    """Post in channels of each type that keeps something."""
    box.channels.create("review", "group")
    lead.channels.get("review").join()
    box.channels.get("review").send("deploy", kind="command")
    box.send(LEAD, "taken by hand", type="note", message_id=CHOSEN)
    lead.channels.create("news", "pubsub", sticky=True, retain_count=10)
    lead.channels.get("news").send("green", topic="build.done")
    box.agents.subscribe("build.#")
    lead.publish("build.done", "green")


def serve_a_pool(lead: Postbox, box: Postbox) -> None:
    """Send to a pool: its member has one message at a time, and another waits."""
    box.pools.join("many", credits=1)
    know_another_home(lead)
    lead.pools.add("many", "absent", credits=1)
    for n in range(3):
        lead.session(f"pool {n}").send("many", f"pool {n}", type="once")


def know_another_home(lead: Postbox) -> None:
    """Store another home, and what it tells of an agent that serves a pool."""
    directory = lead._opening.home.directory
    far = known_homes.add(directory, "far", "https://far.example", "SHA256:far")
    agent = {"name": "far-1", "description": "far", "accepts": ["once"], "pools": {"distant": 2}}
    known_homes.tell(directory, far, [agent])


def fill_mailboxes(lead: Postbox, box: Postbox) -> None:
    """Send to mailboxes."""
    box.mailboxes.ensure("tasks", public=True)
    box.mailboxes.ensure("state", public=True, newest_per_key=True)
    for n in range(3):
        lead.mailboxes.get("tasks").send({"n": n})
        lead.mailboxes.get("state").send({"n": n}, ordering_key="host")


def read_halfway(lead: Postbox, box: Postbox) -> None:
    """Read with a cursor, by lease, by poll, and acknowledge one post."""
    tasks = box.mailboxes.get("tasks")
    next(iter(tasks.read("reader")))
    next(iter(tasks.lease("leasers", limit=1)))
    box.sessions.poll("polled")
    post = lead.channels.get("review").receive()
    assert post is not None
    lead.channels.get("review").acknowledge(post, "in_progress", "halfway")


def bound(lead: Postbox) -> None:
    """Set limits, and send more than one of them has room for."""
    lead.limits.set("session", "bounded", messages=1, overflow="drop_old")
    for n in range(3):
        lead.session("bounded").send(CREW, n, type="note", delay="1d")
    lead.limits.set("handler", "job", rate="1/h")


def end_in_every_way(lead: Postbox, box: Postbox) -> None:
    """Cancel, pause, and leave a message in the outbox."""
    lead.cancel(lead.send(CREW, "never", type="note", delay="1d"))
    given_up = lead.session("c").send(CREW, {"n": 7, "tenant": "a"}, type="job")
    settle(lead, box)
    lead.cancel(given_up)
    lead.session("early").send(CREW, Approval(text="early"))
    settle(lead, box)
    [dead] = box.dead_letters.list()
    box.dead_letters.replay(dead.id)
    lead.history(since=0)
    handled = lead.receive(type="note")
    assert handled is not None
    handled.ack()
    lead.send(CREW, "not carried", type="note")
