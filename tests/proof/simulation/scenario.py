"""Draw the steps of a world: engines that run, callers that send, and accidents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.proof.simulation.fault_plan import DAY
from tests.proof.simulation.history import EFFECT, Sent
from tests.proof.simulation.people import ask_again, send_from, send_group
from tests.proof.simulation.process import Died, Process
from tests.proof.simulation.world import Simulation

from onceward.errors import OncewardError

RUDE: Final = 0.4
POINTS: Final = 60
"""A process that is to die inside a step dies at one of so many points."""
JUMPS: Final = (-DAY, -600.0, -30.0, 30.0, 600.0, DAY)
PAUSES: Final = (0.005, 0.5, 3.0, 6.0, 20.0)
OPENED: Final = "SELECT opened FROM _onceward_file_info"
SOME: Final = 4
"""In one world of so many a WAL is removed now and then; seeds keep their stories."""
FORGET, WAL_LOST, REGRET = 0, 1, 2
ODD: Final = 0.03
HURRY, ODD_FULL, FULL = 0.4, 0.5, "full"
BACKUP: Final = "backup"
NORMAL: Final = {"priority": "normal"}
URGENT: Final = {"priority": "urgent"}
WORK: Final[dict[str, float]] = {
    "send": 6,
    "carry": 6,
    "handle": 5,
    "read": 0.5,
    "time": 4,
    "maintain": 1.5,
    "begin": 1.5,
    "late": 1,
    "cancel": 0.4,
    "replay": 0.8,
}
"""Acts of callers and engines, by weight."""


def step(world: Simulation) -> None:
    """Let a caller or an engine act, or an accident happen."""
    if world.seed % SOME == WAL_LOST and world.luck.random() < ODD:
        _mislay(world)
        return
    if world.seed % SOME == REGRET and world.luck.random() < ODD:
        _regret(world)
        return
    if world.engines and world.seed % SOME == FORGET and world.luck.random() < ODD:
        _forget(world)
        return
    chances = WORK | world.weather.blows
    [name] = world.rng.choices(list(chances), list(chances.values()))
    STEPS[name](world)


def interrupt(world: Simulation) -> None:
    """Act while another call is under way, often on the file that it works on."""
    if world.rng.random() < RUDE and world.busy:
        world.pass_time(world.rng.choice(PAUSES))
        rival = world.awake(world.busy[-1].agent)
        attempt(
            world,
            rival,
            lambda p: (
                [p.handle(worker) for worker in p.workers]
                if world.rng.randrange(2)
                else _carried(world, p)
            ),
        )
    else:
        step(world)


def someone(world: Simulation) -> Process | None:
    """Return a process that has nothing to do."""
    return world.awake(world.rng.choice(list(world.agents)))


def attempt(world: Simulation, process: Process | None, work: Callable[[Process], Any]) -> Any:
    """Let a process do something that may be refused or cut short."""
    if process is None:
        return None
    try:
        return world.enter(process, lambda: work(process))
    except (OncewardError, Died) as error:
        world.note("broken off", process.agent, type(error).__name__)
        world.history.reached[f"raised {type(error).__name__}"] += 1
    return None


# -- engines ------------------------------------------------------------------------------------


def _carry(world: Simulation) -> None:
    process = someone(world)
    ask_again(world, process)
    attempt(world, process, lambda p: _carried(world, p))


def _carried(world: Simulation, process: Process) -> None:
    """Let a process push; with engines, the answers that wait are committed now or with others."""
    process.carry(hurry=world.engines and world.luck.random() < HURRY)


def _handle(world: Simulation) -> None:
    attempt(
        world,
        someone(world),
        lambda p: p.handle(world.rng.choice(p.workers)) if p.workers else None,
    )


def _read(world: Simulation) -> None:
    """Take one message by hand, with its effect in a transaction of the reader's own."""

    def read(process: Process) -> None:
        message = process.box.receive()
        if message is None:
            return
        world.meanwhile()
        if not world.rng.randrange(3):
            message.retry(after=1.0)
            return
        with process.box.begin() as tx:
            tx.execute(EFFECT, (message.id, message.sender))
            message.ack()

    attempt(world, someone(world), read)


def _maintain(world: Simulation) -> None:
    attempt(world, someone(world), lambda p: p.box.file.run_maintenance())


def _time(world: Simulation) -> None:
    world.pass_time(world.rng.choice(PAUSES))


def _begin(world: Simulation) -> None:
    """Start a process where there are fewer than there were."""
    for name, alive in world.processes.items():
        if len(alive) < world.weather.processes:
            world.begin(name)


# -- callers ------------------------------------------------------------------------------------


def _send(world: Simulation) -> None:
    process = someone(world)
    if process is not None:
        send_from(world, process)


def _cancel(world: Simulation) -> None:
    """Withdraw a message, which then must never take effect."""
    process = someone(world)
    mine = [
        s
        for s in world.history.sent.values()
        if process is not None and s.sender == process.agent and s.word == "promised"
    ]
    if mine:
        _withdraw(world, process, world.rng.choice(mine[-5:]))


def _regret(world: Simulation) -> None:
    """Withdraw a message whose parcel was given up, because another message of it expired."""
    process = someone(world)
    others = [name for name in world.agents if process is not None and name != process.agent]
    if process is None or not others:
        return
    peer, fates = world.luck.choice(others), world.network.fates
    _, sent = send_group(world, process, peer, [NORMAL | {"ttl": 1.0}, NORMAL])
    fates[peer] = ["lose"]
    attempt(world, process, lambda p: _carried(world, p))
    attempt(world, world.awake(peer), lambda p: [p.handle(worker) for worker in p.workers])
    world.pass_time(world.luck.choice(PAUSES))
    process = world.awake(sent.sender)
    if process is not None:
        send_group(world, process, peer, [URGENT] * world.luck.randint(1, 5))
        fates[peer] = ["drop"]
        attempt(world, process, lambda p: _carried(world, p))
    fates.clear()
    if sent.word == "promised":
        _withdraw(world, world.awake(sent.sender), sent)


def _forget(world: Simulation) -> None:
    """Kill a process while an answer waits for a commit; try to withdraw what it has pushed."""
    process = someone(world)
    others = [name for name in world.agents if process is not None and name != process.agent]
    if process is None or not others:
        return
    peer = world.luck.choice(others)
    [sent] = send_group(world, process, peer, [NORMAL])
    attempt(world, process, lambda p: p.carry(hurry=False))
    if not process.over:
        world.kill(process)
    attempt(world, world.awake(peer), lambda p: [p.handle(worker) for worker in p.workers])
    _begin(world)
    attempt(world, world.awake(sent.sender), lambda p: [p.handle(each) for each in p.workers])
    if sent.word == "promised":
        _withdraw(world, world.awake(sent.sender), sent)


def _withdraw(world: Simulation, process: Process | None, sent: Sent) -> None:
    sent.excused = sent.excused or "its sender wanted it back"
    found = attempt(world, process, lambda p: p.box.cancel(sent.id))
    if found is None:
        return
    world.history.reached[f"cancel {found.outcome}"] += 1
    sent.asked |= found.outcome == "asked"
    if found and sent.sender not in world.history.doubled:
        sent.word = "cancelled"


def _replay(world: Simulation) -> None:
    """Put a dead letter back on its way."""

    def replay(process: Process) -> None:
        letters = process.box.dead_letters.list()
        if not letters:
            return
        letter = world.rng.choice(letters)
        sent = world.history.sent.get(letter.id)
        as_new = letter.origin == "outbox" and not world.rng.randrange(4)
        if sent is not None:
            sent.ordered = False
            sent.excused = sent.excused or ("it was sent as new" if as_new else "")
        world.history.deaths.pop(letter.id, None)
        process.box.dead_letters.replay(letter.id, as_new=as_new)
        world.note("replayed", process.agent, letter.id, as_new)

    attempt(world, someone(world), replay)


# -- accidents ----------------------------------------------------------------------------------


def _late(world: Simulation) -> None:
    world.network.arrive_late()


def _kill(world: Simulation) -> None:
    process = someone(world)
    if process is not None:
        world.kill(process)


def _kill_inside(world: Simulation) -> None:
    """Kill a process at one of the next points that its statements pass."""
    process = someone(world)
    if process is not None:
        process.kill_in(world.rng.randrange(POINTS))
        _busy_with(world, process)


def _commit_fails(world: Simulation) -> None:
    """Let a COMMIT report an error, before or after it has happened."""
    process = someone(world)
    if process is not None:
        when = world.rng.choice(("before", "after"))
        process.fail_commit(FULL if world.engines and world.luck.random() < ODD_FULL else when)
        _busy_with(world, process)


def _busy_with(world: Simulation, process: Process) -> None:
    match world.rng.randrange(4):
        case 0:
            send_from(world, process)
        case 1:
            attempt(world, process, lambda p: p.box.file.run_maintenance())
        case 2:
            attempt(world, process, lambda p: _carried(world, p))
        case _:
            attempt(world, process, lambda p: [p.handle(worker) for worker in p.workers])


def _partition(world: Simulation) -> None:
    """Cut two agents off from each other, or all wires mend."""
    if world.network.cut:
        world.network.cut.clear()
    elif len(world.agents) > 1:
        world.network.cut.add(frozenset(world.rng.sample(list(world.agents), 2)))


def _clock_jump(world: Simulation) -> None:
    name, jump = world.rng.choice(list(world.agents)), world.rng.choice(JUMPS)
    world.note("clock", name, jump)
    world.clocks[name].step(jump)


def _restore(world: Simulation) -> None:
    """Back a file up, or restore it from a backup taken earlier."""
    name = world.rng.choice(list(world.agents))
    kept = world.backups.pop(name, None)
    if kept is None:
        path = world.paths[name].with_suffix(f".{BACKUP}")
        world.backups[name] = (path, world.copy(name, path))
    elif not world.restore(name, *kept):
        world.backups[name] = kept


def _lose(world: Simulation) -> None:
    """Back files up, or restore them: also twice from one backup, and with a peer."""
    names = list(world.agents)
    for name in world.luck.sample(names, world.luck.choice((1, 1, 2))):
        kept = world.backups.get(name)
        if kept is not None and world.luck.randrange(2):
            twice = name in world.history.restored
            world.history.reached["restored again" if twice else "restored"] += world.restore(
                name, *kept
            )
            continue
        path = world.paths[name].with_suffix(f".{BACKUP}")
        world.backups[name] = (path, world.copy(name, path))


def _redo(world: Simulation) -> None:
    """Restore a file to before it has handled messages, whose results have arrived."""
    name = world.luck.choice(list(world.agents))
    if any(busy.agent == name for busy in world.busy):
        return
    path = world.paths[name].with_suffix(f".{BACKUP}")
    world.backups[name] = (path, world.copy(name, path))
    for other in world.agents:
        process = world.awake(other)
        if process is not None:
            send_from(world, process)
    for work in (_carried, _handled, _carried):
        for other in world.agents:
            attempt(world, world.awake(other), lambda p, work=work: work(world, p))  # type: ignore[misc]
    world.history.reached["restored to redo"] += world.restore(name, *world.backups[name])


def _handled(_world: Simulation, process: Process) -> None:
    for worker in process.workers:
        process.handle(worker)


def _take_over(world: Simulation) -> None:
    """Go on with a backup on another machine, or let the one that was given up act."""
    idle = [old for old in world.clones if old not in world.busy]
    if not idle or not world.luck.randrange(4):
        name = world.luck.choice(list(world.agents))
        if name in world.backups and world.processes[name]:
            again = any(old.agent == name for old in world.clones)
            world.history.reached["taken over again" if again else "taken over"] += 1
            world.take_over(name, *world.backups[name])
        return
    old = world.luck.choice(idle)
    match world.luck.randrange(4):
        case 0:
            send_from(world, old, certain=False)
        case 1:
            attempt(world, old, lambda p: [p.handle(worker) for worker in p.workers])
        case _:
            attempt(world, old, lambda p: _carried(world, p))


def _mislay(world: Simulation) -> None:
    """Remove the WAL under the only process of a file, whose next commit notices and repeats."""
    name = world.luck.choice(list(world.agents))
    if not world.processes[name] or any(busy.agent == name for busy in world.busy):
        return
    first, *others = world.processes[name]
    for other in others:
        world.kill(other)
    world.history.files[name].close()
    if attempt(world, first, lambda p: p.box._db.checkpoint(truncate=True)) != (0, 0):
        return
    world.note("mislaid", name)
    Path(f"{world.paths[name]}-wal").unlink()
    seen = attempt(world, first, lambda p: p.box._db.read(OPENED))
    attempt(world, first, lambda p: p.box._db.persist_clock())
    world.history.reached["guard rang"] += (
        attempt(world, first, lambda p: p.box._db.read(OPENED)) != seen
    )


def _clone(world: Simulation) -> None:
    """Open a copy of a file for a while, which sends and carries as if it were the agent."""
    rng = world.rng
    idle = [clone for clone in world.clones if clone not in world.busy]
    if not idle:
        name = rng.choice(list(world.agents))
        path = Path(f"{world.paths[name]}.clone{world.place()}")
        world.copy(name, path)
        world.history.doubled.add(name)
        world.note("cloned", name)
        clone = world.begin(name, at=path)
    else:
        clone = rng.choice(idle)
    if clone is None:
        return
    match rng.randrange(4):
        case 0 if idle:
            world.kill(clone)
        case 1:
            send_from(world, clone, certain=False)
        case _:
            attempt(world, clone, lambda p: _carried(world, p))


def _pause(world: Simulation) -> None:
    attempt(world, someone(world), _toggle)


def _toggle(process: Process) -> None:
    file = process.box.file
    if file.health().paused:
        file.resume()
    else:
        file.pause()


STEPS: Final[dict[str, Callable[[Simulation], None]]] = {
    "send": _send,
    "carry": _carry,
    "handle": _handle,
    "read": _read,
    "time": _time,
    "maintain": _maintain,
    "begin": _begin,
    "late": _late,
    "cancel": _cancel,
    "replay": _replay,
    "kill": _kill,
    "kill_inside": _kill_inside,
    "commit_fails": _commit_fails,
    "partition": _partition,
    "clock_jump": _clock_jump,
    "restore": _restore,
    "lose": _lose,
    "redo": _redo,
    "take_over": _take_over,
    "clone": _clone,
    "pause": _pause,
}
"""Steps by name."""
