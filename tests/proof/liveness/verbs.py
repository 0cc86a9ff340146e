"""Every public verb as a call on one postbox; a verb that is not measured says why."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from onceward import Postbox
from onceward.api import agent_file, agents, dead_letters, event_source, peers, session
from onceward.events import Sent
from onceward.features.channels import api as channels
from onceward.features.groups import api as groups
from onceward.features.limits import api as limits
from onceward.features.mailboxes import api as mailboxes
from onceward.features.polling import api as sessions
from onceward.features.pools import api as pools
from onceward.features.runs import api as queues
from onceward.features.schedules import api as schedules

CLASSES: Final = (
    Postbox,
    session.Session,
    event_source.EventSource,
    agents.Agents,
    channels.Channels,
    channels.Channel,
    peers.Peers,
    dead_letters.DeadLetters,
    limits.Limits,
    sessions.Sessions,
    queues.Runs,
    agent_file.AgentFile,
    mailboxes.Mailboxes,
    mailboxes.Mailbox,
    schedules.Schedules,
    groups.Groups,
    pools.Pools,
)


@dataclass
class Bystander:
    """A postbox that nothing holds, and what its verbs are called on."""

    box: Postbox
    session: Any
    channel: Any
    mailbox: Any
    sent: str
    number: Iterator[int] = field(default_factory=count)

    @classmethod
    def of(cls, box: Postbox) -> Bystander:
        """Return the verbs' world of a postbox of agent y."""
        spare = box.session("spare")
        return cls(
            box, spare, box.channels.ensure("room"), box.mailboxes.ensure("bin", public=True),
            spare.send("y", 1, type="seen"),
        )  # fmt: skip


def _begin(y: Bystander) -> None:
    with y.session.begin() as tx:
        tx.execute("SELECT 1")
        tx.send("y", 1, type="seen")


def _ask(y: Bystander) -> object:
    return y.session.ask("y", 1, type="seen", reply=object, timeout=0)


def _done(*messages: Any) -> None:
    for message in messages:
        if message is not None:
            message.ack()


def _group(y: Bystander) -> None:
    with y.box.groups.begin(then="y") as group:
        group.send("y", 1, type="seen")


def _pause(y: Bystander) -> None:
    y.box.file.pause()
    y.box.file.resume()


def _pause_channel(y: Bystander) -> None:
    y.channel.pause()
    y.channel.resume()


def _next(y: Bystander) -> str:
    return f"n{next(y.number)}"


def _closed(y: Bystander) -> Any:
    channel = y.box.channels.create(_next(y))
    channel.drain()
    channel.close()
    return channel


CALLS: Final[dict[str, Callable[[Bystander], object]]] = {
    "Postbox.session": lambda y: y.box.session("other"),
    "Postbox.query": lambda y: y.box.query("SELECT count(*) FROM onceward_outbox"),
    "AgentFile.stats": lambda y: y.box.file.stats(),
    "Postbox.history": lambda y: y.box.history(),
    "Postbox.search": lambda y: y.box.search("seen"),
    "Postbox.flush": lambda y: y.box.flush(timeout=0),
    "Postbox.state": lambda y: y.box.state(y.sent),
    "Postbox.journey": lambda y: y.box.journey(y.sent),
    "Postbox.cancel": lambda y: y.box.cancel(y.sent),
    "Postbox.cancel_all": lambda y: y.box.cancel_all(type="none"),
    "Postbox.follow": lambda y: list(y.box.follow(y.sent, timeout=0)),
    "AgentFile.check": lambda y: y.box.file.check(),
    "AgentFile.repair": lambda y: y.box.file.repair(dry_run=True),
    "AgentFile.health": lambda y: y.box.file.health(),
    "Sessions.poll": lambda y: y.box.sessions.poll(agent="y"),
    "Sessions.tail": lambda y: y.box.sessions.tail(),
    "AgentFile.expire": lambda y: y.box.file.expire(),
    "Sessions.stats": lambda y: y.box.sessions.stats(),
    "AgentFile.pause": _pause,
    "AgentFile.resume": lambda y: y.box.file.resume(),
    "AgentFile.run_maintenance": lambda y: y.box.file.run_maintenance(),
    "Session.begin": _begin,
    "Session.send": lambda y: y.session.send("y", 1, type="seen"),
    "Session.send_many": lambda y: y.session.send_many([("y", 1), ("y", 2)], type="seen"),
    "Session.publish": lambda y: y.session.publish("news.now", 1),
    "Session.broadcast": lambda y: y.session.broadcast(1),
    "Session.request": lambda y: y.session.request("y", 1, type="seen"),
    "Session.ask": _ask,
    "Session.result": lambda y: y.session.result(y.sent, reply=object),
    "Session.gather": lambda y: y.session.gather([y.sent], reply=object, timeout=0),
    "Session.progress_of": lambda y: y.session.progress_of(y.sent),
    "Session.status": lambda y: y.session.status(y.sent),
    "Session.receive": lambda y: _done(y.session.receive("pulled")),
    "Session.receive_one": lambda y: _done(y.session.receive_one(y.sent)),
    "Session.receive_each": lambda y: _done(*y.session.receive_each("pulled", timeout=0)),
    "Session.thread": lambda y: y.session.thread(y.sent),
    "Session.history": lambda y: y.session.history(),
    "EventSource.on": lambda y: y.box.on(Sent, lambda _: None)(),
    "Agents.register": lambda y: y.box.agents.register(),
    "Agents.list": lambda y: y.box.agents.list(),
    "Agents.subscribe": lambda y: y.box.agents.subscribe("news.*"),
    "Agents.unsubscribe": lambda y: y.box.agents.unsubscribe("news.none"),
    "Channels.create": lambda y: y.box.channels.create(_next(y)),
    "Channels.ensure": lambda y: y.box.channels.ensure("room"),
    "Channels.get": lambda y: y.box.channels.get("room"),
    "Channels.delete": lambda y: y.box.channels.delete(_closed(y).name),
    "Channels.list": lambda y: y.box.channels.list(),
    "Channel.info": lambda y: y.channel.info(),
    "Channel.members": lambda y: y.channel.members(),
    "Channel.join": lambda y: y.channel.join(),
    "Channel.add": lambda y: y.channel.add("z"),
    "Channel.add_many": lambda y: y.channel.add_many(["z"]),
    "Channel.leave": lambda y: y.channel.leave(),
    "Channel.remove": lambda y: y.channel.remove("z"),
    "Channel.subscribe": lambda y: y.channel.subscribe("news.*"),
    "Channel.unsubscribe": lambda y: y.channel.unsubscribe("news.none"),
    "Channel.pause": _pause_channel,
    "Channel.resume": _pause_channel,
    "Channel.drain": lambda y: y.box.channels.create(_next(y)).drain(),
    "Channel.close": _closed,
    "Channel.send": lambda y: y.channel.send(1),
    "Channel.acknowledgments": lambda y: y.channel.acknowledgments(y.sent),
    "Channel.receive": lambda y: _done(y.channel.receive()),
    "Channel.receive_each": lambda y: _done(*y.channel.receive_each(timeout=0)),
    "Channel.history": lambda y: y.channel.history(),
    "Peers.add": lambda y: y.box.peers.add("z", "memory:z"),
    "Peers.remove": lambda y: y.box.peers.remove("z"),
    "Peers.allow": lambda y: y.box.peers.allow("z", types=["seen"]),
    "Peers.list": lambda y: y.box.peers.list(),
    "Peers.get": lambda y: y.box.peers.get("y"),
    "Peers.reset": lambda y: y.box.peers.reset("z"),
    "Peers.subscribe": lambda y: y.box.peers.subscribe("z", "news.*"),
    "Peers.unsubscribe": lambda y: y.box.peers.unsubscribe("z", "news.*"),
    "DeadLetters.list": lambda y: y.box.dead_letters.list(),
    "DeadLetters.get": lambda y: y.box.dead_letters.get(y.sent),
    "DeadLetters.edit": lambda y: y.box.dead_letters.edit(y.sent, {}),
    "DeadLetters.checks": lambda y: y.box.dead_letters.checks("json"),
    "DeadLetters.replay": lambda y: y.box.dead_letters.replay(y.sent),
    "DeadLetters.replay_all": lambda y: y.box.dead_letters.replay_all(),
    "DeadLetters.discard": lambda y: y.box.dead_letters.discard(y.sent),
    "DeadLetters.discard_all": lambda y: y.box.dead_letters.discard_all(),
    "Limits.set": lambda y: y.box.limits.set("session", "bounded", messages=10),
    "Limits.remove": lambda y: y.box.limits.remove("session", "bounded"),
    "Limits.list": lambda y: y.box.limits.list(),
    "Limits.fullness": lambda y: y.box.limits.fullness(),
    "Limits.drops": lambda y: y.box.limits.drops(),
    "Runs.queues": lambda y: y.box.runs.queues(),
    "Runs.queue": lambda y: y.box.runs.queue("none"),
    "Runs.waiting": lambda y: y.box.runs.waiting("none"),
    "Runs.set": lambda y: y.box.runs.set("some", cap=5),
    "Runs.reorder": lambda y: y.box.runs.reorder("none", []),
    "Runs.discard": lambda y: y.box.runs.discard("none", y.sent),
    "Runs.pause": lambda y: y.box.runs.pause("some"),
    "Runs.resume": lambda y: y.box.runs.resume("some"),
    "Runs.remove": lambda y: y.box.runs.remove("none"),
    "Runs.list": lambda y: y.box.runs.list(),
    "Runs.get": lambda y: y.box.runs.get("none"),
    "Runs.abort": lambda y: y.box.runs.abort("none"),
    "Mailboxes.ensure": lambda y: y.box.mailboxes.ensure("bin", public=True),
    "Mailboxes.create": lambda y: y.box.mailboxes.create(_next(y), public=True),
    "Mailboxes.get": lambda y: y.box.mailboxes.get("bin"),
    "Mailboxes.list": lambda y: y.box.mailboxes.list(),
    "Mailbox.send": lambda y: y.mailbox.send(1),
    "Mailbox.discard": lambda y: y.mailbox.discard(y.sent),
    "Mailbox.scan": lambda y: list(y.mailbox.scan()),
    "Mailbox.query": lambda y: y.mailbox.query(),
    "Mailbox.count": lambda y: y.mailbox.count(),
    "Mailbox.read": lambda y: y.mailbox.read("reader"),
    "Mailbox.lease": lambda y: y.mailbox.lease("group"),
    "Mailbox.receive": lambda y: _done(y.mailbox.receive("group")),
    "Mailbox.reset": lambda y: y.mailbox.reset("reader", "latest"),
    "Groups.begin": _group,
    "Groups.get": lambda y: y.box.groups.get("none"),
    "Groups.list": lambda y: y.box.groups.list(),
    "Groups.messages": lambda y: y.box.groups.messages("none"),
    "Pools.join": lambda y: y.box.pools.join("thumbs"),
    "Pools.leave": lambda y: y.box.pools.leave("thumbs"),
    "Pools.drain": lambda y: y.box.pools.drain("thumbs", 0),
    "Pools.add": lambda y: y.box.pools.add("thumbs", "t1"),
    "Pools.remove": lambda y: y.box.pools.remove("thumbs", "t1"),
    "Pools.release": lambda y: y.box.pools.release("thumbs"),
    "Pools.list": lambda y: y.box.pools.list(),
    "Schedules.add": lambda y: y.box.schedules.add("daily", every="1d"),
    "Schedules.edit": lambda y: y.box.schedules.edit("daily", every="2d"),
    "Schedules.list": lambda y: y.box.schedules.list(),
    "Schedules.get": lambda y: y.box.schedules.get("daily"),
    "Schedules.remove": lambda y: y.box.schedules.remove("daily"),
    "Schedules.pause": lambda y: y.box.schedules.pause("daily"),
    "Schedules.resume": lambda y: y.box.schedules.resume("daily"),
    "Schedules.run_now": lambda y: y.box.schedules.run_now("daily"),
}
NOT_CALLED: Final = {
    "Postbox.accept": "is called by listeners, which have their own proof",
    "Postbox.run_until_idle": "does the engines' work on the caller's thread: it waits for peers",
    "Postbox.stop": "ends the postbox; close is measured, and does this first",
    "Postbox.close": "measured by itself: it ends the postbox",
    "Agents.remove": "takes y out of its home, where the other verbs need it",
    "Channel.acknowledge": "needs a message that was received; settling is measured by receive",
    "Channel.respond": "needs a message that was received; it sends",
    "Session.attach": "needs the handle of a lease",
    "Channel.detach": "as above",
    "Channel.attach": "as above",
    "Peers.ping": "asks another machine, and waits for its answer",
    "Mailbox.handle": "is a loop that a handler runs in; lease and receive are its steps",
}


def public() -> set[str]:
    """Return all public verbs, as ``Class.verb``."""
    return {
        f"{cls.__name__}.{name}"
        for cls in CLASSES
        for name, value in vars(cls).items()
        if not name.startswith("_") and inspect.isfunction(value)
    }
