"""Messages that are cancelled under SIGKILL: each has its effect once, or is cancelled."""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.forking import Forked
from tests.proof.seed import proof_seed, size
from tests.waiting import until

from onceward import Postbox

KILLS = size(80, 10, "ONCEWARD_CANCEL_KILLS")
SEED = proof_seed()
SETTINGS = (
    "durability='fast', delivery_retry='50ms..200ms', handler_retry='50ms..200ms', "
    "tuning=dict(breaker_failures=1000), ack_timeout=1.0"
)
SENDER = f"""
import random, sys, time
from onceward import Postbox

folder, seed, mistake = sys.argv[1:]
dice = random.Random(int(seed))
exec(mistake)
with (
    open(f"{{folder}}/told", "a", buffering=1) as told,
    Postbox(f"{{folder}}/alice.db", agent="alice", {SETTINGS}) as box,
):
    sent = []
    while True:
        session = box.session(f"s{{dice.randrange(4)}}")
        sent.append(session.send("bob", {{}}, type="job", delay=dice.choice((None, None, 0.03))))
        time.sleep(dice.uniform(0, 0.03))
        if dice.random() < 0.7:
            one = dice.choice(sent[-5:])
            found = box.cancel(one, timeout=dice.choice((0, 0, 0.3)))
            told.write(f"{{one}} {{found.outcome}}\\n")
"""
WORKER = f"""
import random, sys, time
from onceward import Agent, Context, Postbox

folder, seed, mistake = sys.argv[1:]
agent, dice = Agent("bob"), random.Random(int(seed))
exec(mistake)

@agent.on("job")
def work(job: dict, ctx: Context) -> None:
    if ctx.message.id[-1] in "0123":
        ctx.sleep(0.02)
    time.sleep(dice.uniform(0, 0.04))
    ctx.tx.execute("INSERT INTO effects VALUES (?)", (ctx.message.id,))

with Postbox(f"{{folder}}/bob.db", agent=agent, lease=2.0, workers=2, {SETTINGS}):
    time.sleep(600)
"""
TEAM = {"alice": SENDER, "bob": WORKER, "another bob": WORKER}
KEEPS_NOTHING = """
from onceward.features.cancellation import arrived
arrived.Canceller.end = lambda self, tx, seqs, reason: set(seqs)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of all messages once every process is at rest."""

    effects: Counter[str]
    ends: dict[str, str]
    """How each message ended for its sender."""
    told: dict[str, set[str]]
    """What ``cancel`` has returned for each message."""

    @property
    def done(self) -> set[str]:
        """The messages that had their effect."""
        return set(self.effects)

    @property
    def cancelled(self) -> set[str]:
        """The messages that ended as cancelled."""
        return {each for each, end in self.ends.items() if end == "cancelled"}

    @property
    def violations(self) -> set[str]:
        """The messages that break a promise: effects twice, both ends, none, or a false word."""
        said = {each for each, words in self.told.items() if "cancelled" in words}
        late = {each for each, words in self.told.items() if "too_late" in words}
        twice = {each for each, count in self.effects.items() if count > 1}
        neither = self.ends.keys() - self.done - self.cancelled
        both = self.done & self.cancelled
        return twice | neither | both | (said & self.done) | (late - self.done)


def torture(folder: Path, kills: int, mistake: str = "") -> Outcome:
    """Kill sender and workers again and again, and return what became of all messages."""
    dice = random.Random(SEED)
    with Postbox(folder / "bob.db", agent="bob", start=False) as box, box.begin() as tx:
        tx.execute("CREATE TABLE effects (id TEXT)")
    Postbox(folder / "alice.db", agent="alice", start=False).close()

    def begin(name: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", TEAM[name], str(folder), str(dice.getrandbits(32)), mistake]
        return Forked(words)

    team = {name: begin(name) for name in TEAM}
    try:
        until((folder / "told").exists)
        for _ in range(kills):
            time.sleep(dice.uniform(0.4, 1.6))
            name = dice.choice(sorted(team))
            _end(team.pop(name))
            team[name] = begin(name)
        _end(team.pop("alice"))
        with Postbox(folder / "alice.db", agent="alice", ack_timeout=1.0) as alice:
            until(lambda: not alice.query("SELECT 1 FROM onceward_outbox WHERE ended_at IS NULL"))
            jobs = "SELECT id, state FROM onceward_outbox WHERE type = 'job'"
            ends = dict(alice.query(jobs))
    finally:
        for process in team.values():
            _end(process)
    with Postbox(folder / "bob.db", agent="bob", start=False) as box:
        effects = Counter(each for (each,) in box.query("SELECT id FROM effects"))
    return Outcome(effects, ends, _told(folder))


def _told(folder: Path) -> dict[str, set[str]]:
    told: dict[str, set[str]] = {}
    for line in (folder / "told").read_text(encoding="utf-8").splitlines():
        message_id, outcome = line.split()
        told.setdefault(message_id, set()).add(outcome)
    return told


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.mark.timeout(180 + 4 * KILLS)
def test_a_message_has_its_effect_or_is_cancelled(
    tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """Whatever process dies: one of both, never both; what ``cancel`` has said stays true."""
    found = torture(tmp_path, KILLS)
    told = Counter(word for words in found.told.values() for word in words)
    aloud(f"{KILLS} kills, {len(found.ends)} messages, {dict(told)}, seed {SEED}")

    assert set() == found.violations
    assert len(found.done) >= KILLS
    assert len(found.cancelled) >= KILLS
    assert {"cancelled", "asked", "too_late"} == set(told)


def test_a_recipient_that_ends_nothing_is_found(tmp_path: Path) -> None:
    """A mistake shows: it says cancelled, and its handler goes on to its effect."""
    assert set() != torture(tmp_path, 4, KEEPS_NOTHING).violations
