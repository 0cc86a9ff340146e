"""Three agents that write to each other for days, and what may happen to their files."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path

import apsw
from tests.fleet.mishaps import handling, post
from tests.fleet.world import World

from onceward import Postbox
from onceward.errors import InvalidArgument
from onceward.fleet.report import Report
from onceward.fleet.run import reconcile
from onceward.fleet.verdicts import Rules

DAY = 86_400.0
NAMES = ("ada", "bob", "eve")
MISCHIEF = ("keep", "restore", "copy", "clone", "move", "vanish", "", "")
TO_A_LOG = ("keep", "restore", "copy", "move", "restore")
"""What a log tells apart; of copies that both go on it keeps all rows."""
Judged = dict[tuple[str, ...], str]


class Life:
    """Three agents that write to each other and themselves, whose files meet with mischief."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.dice = folder, random.Random(seed)
        self.world = World(folder / "agents", seed=seed)
        self.away: dict[str, Path] = {}
        self.where = dict.fromkeys(NAMES, "")
        self.nights = 0

    def path(self, name: str) -> Path:
        """Return where an agent's file lies today."""
        return self.world.path(name, self.where[name])

    def work(self) -> None:
        """Let the agents send, some of them handle, and some replay dead letters."""
        boxes = [
            self.world.open(handling(name), where=self.where[name])
            for name in NAMES
            if name not in self.away
        ]
        for box in boxes:
            for _ in range(self.dice.randrange(4)):
                self._send(box)
        self.world.turns(*self._some(boxes), times=2)
        for box in self._some(boxes):
            self._replay(box)
        self.world.turns(*self._some(boxes))
        self.world.rest()

    def _some(self, boxes: list[Postbox]) -> list[Postbox]:
        return self.dice.sample(boxes, k=self.dice.randrange(len(boxes) + 1))

    def _send(self, box: Postbox) -> None:
        wish = self.dice.choice(["fine", "fine", "reject", "drop"])
        ttl = self.dice.choice([None, None, 30, 10_000])
        post(box, self.dice.choice(NAMES), 1, wish=wish, ttl=ttl)

    def _replay(self, box: Postbox) -> None:
        for letter in box.dead_letters.list()[:2]:
            try:
                box.dead_letters.replay(letter.id)
            except InvalidArgument:  # it expired before it left
                continue

    def mischief(self, *among: str) -> None:
        """Do something to one of the files, or nothing."""
        name = self.dice.choice(NAMES)
        done = getattr(self, self.dice.choice(among), None)
        if done is not None and name not in self.away and self.path(name).exists():
            done(name)

    def keep(self, name: str) -> None:
        """Make a backup outside of the fleet."""
        shutil.copyfile(self.path(name), self.folder / f"{name}.kept")

    def restore(self, name: str) -> None:
        """Bring the backup back, if there is one."""
        if (self.folder / f"{name}.kept").exists():
            shutil.copyfile(self.folder / f"{name}.kept", self.path(name))

    def copy(self, name: str) -> None:
        """Leave a backup among the files."""
        target = self.world.path(f"{name}-{self.dice.randrange(3)}", "copies")
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(self.path(name), target)

    def clone(self, name: str) -> None:
        """Let a copy of a file go on by itself."""
        path = self.world.path(name, "clones")
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(self.path(name), path)
        clone = self.world.open(handling(name), where="clones")
        self.world.turns(clone)
        self._replay(clone)
        self.world.turns(clone)
        self.world.rest()

    def move(self, name: str) -> None:
        """Move a file to another folder."""
        before = self.path(name)
        self.where[name] = "" if self.where[name] else "moved"
        self.path(name).parent.mkdir(exist_ok=True)
        before.rename(self.path(name))

    def vanish(self, name: str) -> None:
        """Take a file away for some nights."""
        self.away[name] = self.path(name).rename(self.folder / f"{name}.away")

    def back(self) -> None:
        """Bring back the files that were away."""
        for name, path in self.away.items():
            path.rename(self.path(name))
        self.away.clear()

    def reconcile(
        self, state: Path | None = None, log: str | None = None, *, files: bool = True
    ) -> tuple[Report, Judged]:
        """Judge what is new since a state, or everything, or a log; return the messages, too."""
        self.nights += 1
        out, rules = self.folder / f"out-{self.nights}", Rules(now=self.world.clock.now())
        paths = (self.world.folder,) if files else ()
        report = reconcile(*paths, out=out, rules=rules, state=state, log=log)
        with closing(apsw.Connection(str(out / "messages.db"))) as con:
            rows = con.execute("SELECT sender, recipient, id, verdict FROM messages").fetchall()
        return report, {(str(s), str(r), str(i)): str(verdict) for s, r, i, verdict in rows}
