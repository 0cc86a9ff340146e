"""Create production faults between two agents, with the verdicts that result."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.fleet.world import World

from onceward.api.agent import Agent
from onceward.api.contexts import Context
from onceward.api.postbox import Postbox
from onceward.errors import Drop, Reject, Retry
from onceward.message.body import Msg
from onceward.message.settings import DAY
from onceward.testing.faults import Fault

Outcome = Counter[str]
"""Number of frames of each verdict afterwards; ``order`` and ``gap`` count messages of lanes."""
Mishap = Callable[[World, int], Outcome]
HEALTHY: Final = 3
"""Messages of each pair that fare well before anything happens."""
ASKED: Final = 1
"""Questions of a copied file to its peer: it asks for what it had sent."""
LATE: Final = 7200.0


class Approval(Msg, type="approval"):
    """The decision of a person, for which a handler waits."""


def handling(name: str) -> Agent:
    """Return an agent that handles everything, after the wish in the message's body."""
    agent = Agent(name)

    @agent.on("#")
    def handle(body: dict[str, Any]) -> None:
        if body.get("wish") == "reject":
            raise Reject("this one can never be handled")
        if body.get("wish") == "drop":
            raise Drop

    return agent


def ends(world: World, name: str) -> tuple[Postbox, Postbox]:
    """Open a sender, and a recipient that handles its messages."""
    return world.open(f"{name}-near"), world.open(handling(f"{name}-far"))


def pair(world: World, name: str) -> tuple[Postbox, Postbox]:
    """Return two agents between whom some mail has fared well."""
    near, far = ends(world, name)
    deliver(world, near, far, HEALTHY)
    world.clock.advance(1)
    return near, far


def post(near: Postbox, to: str, count: int, **options: Any) -> list[str]:
    """Send so many messages in one session and return their ids."""
    wish, kind = options.pop("wish", "fine"), options.pop("type", "step")
    return [
        near.session("flow").send(to, {"number": number, "wish": wish}, type=kind, **options)
        for number in range(count)
    ]


def deliver(world: World, near: Postbox, far: Postbox, count: int, **options: Any) -> None:
    """Send so many messages, and run both ends until they rest."""
    post(near, far.agent, count, **options)
    world.run(near, far)


def lost(world: World, n: int) -> Outcome:
    """Restore the recipient's file after it confirmed: the sender counts as done what is lost."""
    _restored(world, "lost", "far", n)
    return Counter(delivered_once=HEALTHY, lost=n)


def orphan(world: World, n: int) -> Outcome:
    """Restore the sender's file: messages that arrived have no row at their sender."""
    _restored(world, "orphan", "near", n)
    return Counter(delivered_once=HEALTHY, orphan=n)


def _restored(world: World, name: str, end: str, n: int) -> None:
    """Deliver messages, and bring back the file of one end from before."""
    pair(world, name)
    backup = world.keep(f"{name}-{end}")
    deliver(world, *ends(world, name), n)
    world.restore(f"{name}-{end}", backup)


def double_processed(world: World, n: int) -> Outcome:
    """Use a second copy of the recipient's file, which handles the same messages again."""
    _cloned(world, "double", n, handled=True)
    return Counter(delivered_once=HEALTHY + 1 + ASKED, double_processed=n)


def duplicated(world: World, n: int) -> Outcome:
    """Use a second copy of the recipient's file, which accepts the same messages again."""
    _cloned(world, "twice", n, handled=False)
    return Counter(delivered_once=HEALTHY + ASKED, duplicated=n, unprocessed=1)


def _cloned(world: World, name: str, n: int, *, handled: bool) -> None:
    pair(world, name)
    clone_path = world.keep(f"{name}-far", "clones")
    near, far = ends(world, name)
    deliver(world, near, far, n)
    world.shut(far)
    clone = world.open(handling(f"{name}-far") if handled else f"{name}-far", where="clones")
    clone.peers.add(near.agent, f"file:{near.file.path}")
    near.peers.add(f"{name}-far", f"file:{clone_path}")
    world.clock.advance(1)
    post(near, f"{name}-far", 1)
    world.run(near, clone)


def unprocessed(world: World, n: int) -> Outcome:
    """The recipient's file takes mail in, and no worker comes for it."""
    near = world.open("idle-near")
    far = world.open("idle-far")
    deliver(world, near, far, n)
    return Counter(unprocessed=n)


def patient(name: str, oracle: str = "") -> Agent:
    """Return an agent whose handler waits as the body of the message wishes."""
    agent = Agent(name)
    agent.waits(Approval)

    @agent.on("step")
    def handle(body: dict[str, Any], ctx: Context) -> None:
        match body["wish"]:
            case "retry":
                raise Retry("the bank is closed", after="3d")
            case "person":
                ctx.wait(Approval, timeout="3d")
            case "ask":
                ctx.ask(oracle, {"number": 1}, type="question", reply=dict, timeout="3d")
            case _:
                ctx.sleep(body["wish"])

    return agent


def waiting(world: World, n: int) -> Outcome:
    """Let handlers wait for days, in all ways, with a message behind each; one question waits."""
    near = world.open("patient-near")
    far = world.open(patient("patient-far", oracle="patient-near"))
    wishes = ("retry", "person", "ask", "3d")
    for number in range(n):
        wish = wishes[number // 2 % len(wishes)]
        near.session(f"flow-{number // 2}").send(far.agent, {"wish": wish}, type="step")
    world.run(near, far)
    return Counter(waiting=n, unprocessed=(n // 2 + n % 2 + 1) // len(wishes))


def kept(world: World, n: int) -> Outcome:
    """Keep messages for a wait; one is taken by a wait, and the others are not."""
    near, far = world.open("keep-near"), world.open(patient("keep-far"))
    for number in range(n):
        near.session(f"flow-{number}").send(far.agent, {"number": number}, type="approval")
    near.session("flow-0").send(far.agent, {"wish": "person"}, type="step")
    world.run(near, far)
    return Counter(delivered_once=2, kept=n - 1)


def overslept(world: World, n: int) -> Outcome:
    """Let handlers sleep for a minute, after which no worker comes for them."""
    near, far = world.open("late-sleep-near"), world.open(patient("late-sleep-far"))
    post(near, far.agent, n, wish="60s")
    world.run(near, far)
    return Counter(unprocessed=n)


def passed_over(world: World, n: int) -> Outcome:
    """Take the messages of the second type out of a lane and leave those of the first."""
    near, far = world.open("pull-near"), world.open("pull-far")
    post(near, "pull-far", n, type="slow")
    deliver(world, near, far, 1, type="quick")
    _pull(far, "quick")
    return Counter(unprocessed=n, delivered_once=1, gap=n)


def overtaken(world: World, n: int) -> Outcome:
    """Take the messages of the second type out of a lane, then those of the first."""
    near, far = world.open("swap-near"), world.open("swap-far")
    post(near, "swap-far", 1, type="slow")
    deliver(world, near, far, n, type="quick")
    for _ in range(n):
        _pull(far, "quick")
    _pull(far, "slow")
    world.turns(near, far)
    return Counter(delivered_once=n + 1, order=n)


def _pull(box: Postbox, kind: str) -> None:
    message = box.receive(kind)
    if message is not None:
        message.ack()


def dead_lettered(world: World, n: int) -> Outcome:
    """The recipient's handler rejects some, and its receiver refuses one for good."""
    near, far = pair(world, "dead")
    post(near, "dead-far", n - 1, wish="reject")
    world.turns(near, far)
    refusing = world.open("refused-near", faults=[Fault.REFUSE] * 100)
    refusing.peers.add("dead-far", world.url("dead-far"))
    post(refusing, "dead-far", 1)
    world.run(refusing)
    return Counter(delivered_once=HEALTHY, dead_lettered=n)


def expired(world: World, n: int) -> Outcome:
    """Some run out of time before they leave, one runs out of time in the inbox."""
    _, far = pair(world, "stale")
    world.rest()
    path = far.file.path
    hidden = path.rename(path.with_suffix(".away"))
    near = world.open("stale-near")
    post(near, "stale-far", n - 1, ttl=30)
    world.turns(near)
    hidden.rename(path)
    far = world.open("stale-far")
    world.turns(near, times=2)
    post(near, "stale-far", 1, ttl=30)
    world.run(near)
    world.clock.advance(31)
    world.shut(far)
    far = world.open(handling("stale-far"))
    far.file.run_maintenance()
    world.turns(near, far)
    return Counter(delivered_once=HEALTHY, expired=n)


def late(world: World, n: int) -> Outcome:
    """Run the recipient's worker hours later; one message had been given up by its sender."""
    near, far = pair(world, "late")
    world.shut(far)
    far = world.open("late-far")
    deliver(world, near, far, n - 1)
    world.clock.advance(LATE)
    world.shut(far)
    far = world.open(handling("late-far"))
    world.turns(far, near, times=2)
    hasty = world.open("hasty-near", faults=[Fault.LOSE_RECEIPT, Fault.REFUSE])
    hasty.peers.add("late-far", world.url("late-far"))
    post(hasty, "late-far", 1)
    world.turns(hasty, times=2)
    world.turns(far, hasty)
    return Counter(delivered_once=HEALTHY, late=n)


def dropped(world: World, n: int) -> Outcome:
    """The recipient's handler drops them on purpose."""
    near, far = pair(world, "drop")
    deliver(world, near, far, n, wish="drop")
    return Counter(delivered_once=HEALTHY, dropped=n)


def cancelled(world: World, n: int) -> Outcome:
    """The sender withdraws them before they leave."""
    near, far = pair(world, "cancel")
    for message_id in post(near, "cancel-far", n, delay=600):
        near.cancel(message_id)
    world.run(near, far)
    return Counter(delivered_once=HEALTHY, cancelled=n)


def forgotten(world: World, n: int) -> Outcome:
    """The recipient's records were pruned by age; the sender's were not."""
    near, far = ends(world, "old")
    deliver(world, near, far, n)
    world.clock.advance(8 * DAY)
    far.file.run_maintenance()
    deliver(world, near, far, HEALTHY)
    return Counter(delivered_once=HEALTHY, forgotten=n)


def unwitnessed(world: World, n: int) -> Outcome:
    """Damage the recipient's file: its confirmations can be neither proved nor denied."""
    near, far = ends(world, "witness")
    deliver(world, near, far, n)
    world.rest()
    far.file.path.write_bytes(b"this was a database once\n" * 400)
    return Counter(unwitnessed=n)


def begun_anew(world: World, n: int) -> Outcome:
    """Lose the recipient's disk and begin its file again; then replay a dead letter of another."""
    near, far = pair(world, "again")
    deliver(world, near, far, n)
    world.rest()
    _delete(far.file.path)
    far, other = world.open(handling("again-far")), world.open("again-other")
    post(other, "again-far", HEALTHY, wish="reject")
    world.run(other, far)
    for letter in far.dead_letters.list()[:-1]:
        far.dead_letters.replay(letter.id)
    world.run(other, far)
    return Counter(lost=HEALTHY + n, dead_lettered=HEALTHY)


def _delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def pruned_minted(world: World, n: int) -> Outcome:
    """Prune the recipient's records: those of ids that the sender chose stay, older than others."""
    near, far = ends(world, "keen")
    for number in range(HEALTHY):
        near.send("keen-far", {"number": number}, type="step", message_id=f"keen-{number}")
    world.run(near, far)
    world.clock.advance(60)
    deliver(world, near, far, n)
    world.clock.advance(8 * DAY)
    far.file.run_maintenance()
    return Counter(delivered_once=HEALTHY, forgotten=n)


def pruned_sender(world: World, n: int) -> Outcome:
    """Prune the sender's outbox; its recipient keeps its records for longer."""
    near = world.open("brief-near")
    far = world.open(handling("brief-far"), retention=30 * DAY)
    post(near, "brief-far", n - 1)
    near.send("brief-far", {"number": n}, type="step", message_id="brief-chosen")
    world.run(near, far)
    world.clock.advance(8 * DAY)
    near.file.run_maintenance()
    deliver(world, near, far, HEALTHY)
    return Counter(delivered_once=HEALTHY, forgotten=n)


def tenants(world: World, n: int) -> Outcome:
    """Give two tenants agents of the same names: one prunes its records, the other loses mail."""
    near, far = tenant(world, "room", "west")
    deliver(world, near, far, n)
    world.clock.advance(8 * DAY)
    far.file.run_maintenance()
    near, far = tenant(world, "room", "east")
    deliver(world, near, far, HEALTHY)
    _lose(world, "room", "east", lambda near: post(near, "room-far", 1))
    return Counter(forgotten=n, delivered_once=HEALTHY, lost=1)


def tenant(world: World, name: str, where: str) -> tuple[Postbox, Postbox]:
    """Return two agents of one tenant, which know no one but each other."""
    world.rest()
    near = world.open(f"{name}-near", where=where)
    far = world.open(handling(f"{name}-far"), where=where)
    near.peers.add(far.agent, f"file:{far.file.path}")
    far.peers.add(near.agent, f"file:{near.file.path}")
    return near, far


def _lose(world: World, name: str, where: str, send: Callable[[Postbox], object]) -> None:
    """Let a tenant's messages arrive, then replace the recipient's file by its backup."""
    world.rest()
    path = world.path(f"{name}-far", where)
    backup = shutil.copyfile(path, world.folder / f"{path.name}.kept")
    near, far = tenant(world, name, where)
    send(near)
    world.run(near, far)
    world.rest()
    shutil.move(backup, path)


def same_ids(world: World, n: int) -> Outcome:
    """Let two tenants choose the same ids: one prunes its outbox, the other loses its mail."""
    near, far = tenant(world, "same", "west")
    numbered(near, "same-far", n)
    world.run(near, far)
    world.clock.advance(8 * DAY)
    near.file.run_maintenance()
    near, far = tenant(world, "same", "east")
    numbered(near, "same-far", HEALTHY)
    world.run(near, far)
    _lose(world, "same", "east", lambda near: numbered(near, "same-far", HEALTHY + n))
    return Counter(forgotten=n, delivered_once=HEALTHY, lost=n)


def numbered(near: Postbox, to: str, count: int) -> None:
    """Send messages by numbers as ids, each number once."""
    for number in range(count):
        near.send(to, {"number": number}, type="step", message_id=f"step-{number}")


def deleted(world: World, n: int) -> Outcome:
    """Delete the first messages of two files by hand: nothing says that they were pruned."""
    near, _ = _aged(world, "first-out", n)
    with near.begin() as tx:
        tx.execute("DELETE FROM _onceward_outbox WHERE seq <= ?", (n,))
    _, far = _aged(world, "first-in", n)
    with far.begin() as tx:
        tx.execute("DELETE FROM _onceward_inbox WHERE seq <= ?", (n,))
        tx.execute("DELETE FROM _onceward_processed_messages WHERE seq <= ?", (n,))
    return Counter(delivered_once=2 * HEALTHY, orphan=n, lost=n, gap=n)


def _aged(world: World, name: str, n: int) -> tuple[Postbox, Postbox]:
    """Return two agents between whom some messages have fared well, the first ones earlier."""
    near, far = ends(world, name)
    for count in (n, HEALTHY):
        deliver(world, near, far, count)
        world.clock.advance(60)
    return near, far


def discarded(world: World, n: int) -> Outcome:
    """Discard the dead letters of a sender that did not hear of their arrival."""
    far = world.open(handling("discard-far"))
    near = world.open("discard-near", faults=[Fault.LOSE_RECEIPT, Fault.REFUSE])
    near.peers.add(far.agent, world.url(far.agent))
    post(near, far.agent, n)
    world.turns(near, times=2)
    world.turns(far, near)
    near.dead_letters.discard_all()
    return Counter(forgotten=n)


def overdue(world: World, n: int) -> Outcome:
    """Let handlers take longer than their messages live: each is handled after its time."""
    agent = Agent("slow-far")

    @agent.on("#")
    def handle(_: dict[str, Any]) -> None:
        world.clock.advance(60)

    near, far = world.open("slow-near"), world.open(agent)
    for _ in range(n):
        near.session("flow").send("slow-far", {}, type="step", ttl=30)
        world.run(near, far)
    return Counter(overdue=n)


def in_flight(world: World, n: int) -> Outcome:
    """Send the last messages just now; one of them waits in the recipient's inbox."""
    near, far = pair(world, "moving")
    world.shut(far)
    world.open("moving-far")
    post(near, "moving-far", 1)
    world.run(near)
    post(near, "moving-far", n - 1)
    return Counter(delivered_once=HEALTHY, in_flight=n)


BEFORE: Final[dict[str, tuple[Mishap, int]]] = {
    "forgotten": (forgotten, 4),
    "lost": (lost, 3),
    "orphan": (orphan, 5),
    "double_processed": (double_processed, 7),
    "duplicated": (duplicated, 6),
    "unprocessed": (unprocessed, 8),
    "overslept": (overslept, 2),
    "passed_over": (passed_over, 2),
    "overtaken": (overtaken, 3),
    "dead_lettered": (dead_lettered, 9),
    "expired": (expired, 10),
    "late": (late, 11),
    "dropped": (dropped, 12),
    "cancelled": (cancelled, 13),
    "unwitnessed": (unwitnessed, 14),
    "begun_anew": (begun_anew, 16),
    "pruned_minted": (pruned_minted, 17),
    "pruned_sender": (pruned_sender, 18),
    "tenants": (tenants, 19),
    "deleted": (deleted, 2),
    "same_ids": (same_ids, 21),
    "discarded": (discarded, 22),
    "overdue": (overdue, 20),
    "waiting": (waiting, 8),
    "kept": (kept, 3),
}
"""Earlier faults and their messages at size one; the numbers differ, to tell them apart."""
NOW: Final[dict[str, tuple[Mishap, int]]] = {"in_flight": (in_flight, 15)}
"""Faults of the last moment."""
