"""Create a fleet of agent files with the real SDK, with a known number of each fault."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from tests.fleet.mishaps import BEFORE, NOW, Mishap, Outcome
from tests.fleet.world import World

from onceward.api.agent import Agent
from onceward.core.handle.context import Context
from onceward.message.clock import Millis
from onceward.testing.faults import HARMLESS

DUTIES: Final = {
    "desk": ("answer", "", ""),
    "clerk": ("case", "order", "smith"),
    "smith": ("order", "check", "scout"),
    "scout": ("check", "answer", "desk"),
}
"""Agents of one crew: the type each takes, its result and the recipient; size n has n crews."""
TASKS: Final = 12
"""Conversations that each crew's desk opens; each is four messages long."""
"""Faults of a crew's deliveries; none may be visible at the end."""
CLONING: Final = frozenset({"double_processed", "duplicated"})
"""Mishaps that leave a copy which went on beside its file."""
QUIET: Final = 3600.0
"""Seconds that pass between what happened and what is happening: longer than any grace."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Files in a folder, their moment, and the expected findings."""

    folder: Path
    now: Millis
    verdicts: Mapping[str, int]
    """Number of messages by verdict."""
    order: int
    """Messages that were handled after a later one of their lane."""
    gaps: int
    """Messages that a later one of their lane has passed while they wait."""
    quarantined: int
    """Unreadable files in the folder."""
    differing: int
    """Copies that went on beside their file, so that each says what the other does not."""
    conversations: int
    """Threads of the crews, each of four messages."""

    @property
    def frames(self) -> int:
        """The number of messages."""
        return sum(self.verdicts.values())


def build(
    folder: Path,
    *,
    size: int = 1,
    seed: int = 0,
    mishaps: Iterable[str] | None = None,
    on_step: Callable[[str], object] = str,
) -> Fleet:
    """
    Make a fleet in an empty folder: *size* crews under faulty delivery, each mishap *size* times.

    The same seed makes the same messages with the same ids. *mishaps* chooses
    among their names; none of them leaves a fleet in which nothing is wrong.
    """
    chosen = {*BEFORE, *NOW} if mishaps is None else set(mishaps)
    total: Outcome = Counter()
    with World(folder, seed=seed) as world:
        total += _all(world, BEFORE, chosen, size, on_step)
        for number in range(size):
            on_step(f"crew {number + 1} of {size}")
            total += _crew(world, number)
        world.clock.advance(QUIET)
        total += _all(world, NOW, chosen, size, on_step)
        now = world.clock.now() + 1000
    return Fleet(
        folder,
        now,
        _verdicts(total),
        total["order"],
        total["gap"],
        quarantined=_litter(folder) + ("unwitnessed" in chosen),
        differing=len(CLONING & chosen),
        conversations=size * TASKS,
    )


def _verdicts(total: Outcome) -> dict[str, int]:
    return {name: count for name, count in sorted(total.items()) if name not in {"order", "gap"}}


def _all(
    world: World,
    table: Mapping[str, tuple[Mishap, int]],
    chosen: set[str],
    size: int,
    on_step: Callable[[str], object],
) -> Outcome:
    total: Outcome = Counter()
    for name, (mishap, count) in table.items():
        if name in chosen:
            on_step(name)
            total += mishap(world, count * size)
    return total


def _crew(world: World, number: int) -> Outcome:
    """Run four agents under faulty delivery until idle; each message takes effect once."""
    names = {role: f"{role}-{number}" for role in DUTIES}
    agents = [_member(role, names) for role in DUTIES]
    weather = cycle(world.dice.choices(HARMLESS, k=97))
    boxes = [world.open(agent, faults=weather) for agent in agents]
    for box in boxes:
        for name in names.values():
            box.peers.add(name, world.url(name))
    for task in range(TASKS):
        boxes[0].session(f"case-{task}").send(
            names["clerk"], {"case": task, "secret": f"pin-{task}"}, type="case"
        )
    world.turns(*boxes, times=40)
    for box in boxes:
        world.shut(box)
    _copy(world.path(names["desk"]), world.folder / "backup")
    return Counter(delivered_once=4 * TASKS)


def _member(role: str, names: Mapping[str, str]) -> Agent:
    """Return an agent that passes a case on to who is next; the last one keeps it."""
    agent = Agent(names[role])
    takes, passes, successor = DUTIES[role]

    @agent.on(takes)
    def handle(body: dict[str, Any], ctx: Context) -> None:
        if successor:
            ctx.send(names[successor], body | {"by": role}, type=passes)

    return agent


def _copy(path: Path, where: Path) -> None:
    """Leave a backup in the fleet's folder: the same file seen twice is not a second delivery."""
    where.mkdir(exist_ok=True)
    shutil.copyfile(path, where / path.name)


def _litter(folder: Path) -> int:
    """Leave files that are not agents': empty, and of another kind; return how many."""
    (folder / "empty.db").touch()
    (folder / "notes.db").write_text("buy milk\n", encoding="utf-8")
    return 2
