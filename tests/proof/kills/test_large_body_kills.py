"""Large bodies, under SIGKILL: no committed message lacks its body, and the rest is removed."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.proof.seed import proof_seed, size
from tests.waiting import until

from onceward import Agent, Context, Postbox, Tuning
from onceward.features.large_bodies import sweeping
from onceward.testing import crew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KILLS = size(60, 10, "ONCEWARD_BODY_KILLS")
SEED = proof_seed()
LARGE = 20_000
SENT = "SELECT id, frame ->> '$.dataref' FROM onceward_outbox ORDER BY seq"
reader = Agent("reader")


@reader.at_open
def create(box: Postbox) -> None:
    """Create the table of what was read, in which nothing is unique."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS read (id TEXT, length INTEGER)")


@reader.on("text")
def read(text: str, ctx: Context) -> None:
    """Note the length of a body."""
    ctx.tx.execute("INSERT INTO read VALUES (?, ?)", (ctx.message.id, len(text)))


def sender(folder: Path) -> Postbox:
    """Open the sender's file without engines."""
    return Postbox(folder / "shop.db", agent="shop", start=False, large_body=5000)


def send_until(folder: Path, calls: int) -> None:
    """Send one message, in a process that is killed at its call of that number that audits see."""
    left = calls

    def hook(event: str, _args: Any) -> None:
        nonlocal left
        if event.startswith(("open", "os.", "pathlib.")):
            left -= 1
            if left == -1:
                os.kill(os.getpid(), signal.SIGKILL)

    with sender(folder) as box:
        sys.addaudithook(hook)
        box.send("reader", "x" * LARGE)
        left = sys.maxsize


def bodies(folder: Path) -> Iterator[Path]:
    """Yield the files of bodies, drafts included."""
    return (each for each in (folder / "bodies").rglob("*") if each.is_file())


def bodies_sent(folder: Path) -> list[Any]:
    """Return id and reference of each sent message."""
    with sender(folder) as box:
        return box.query(SENT)


def unread(folder: Path) -> list[str]:
    """Return the ids of sent messages whose body is missing or not whole."""
    sent = bodies_sent(folder)
    found = {path.name: path.stat().st_size for path in bodies(folder)}
    names = {row[0]: f"{row[0]}.{str(row[1]).rpartition(';')[2]}" for row in sent}
    return [each for each, name in names.items() if found.get(name) != LARGE + 2]


@pytest.mark.timeout(180)
def test_a_send_that_is_killed_anywhere_leaves_a_whole_body_or_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill it at each of its calls of the system; then remove what belongs to no message."""
    Postbox(tmp_path / "reader.db", agent="reader", start=False).close()
    sender(tmp_path).close()
    context, codes = get_context("forkserver"), list[int | None]()
    context.set_forkserver_preload(["onceward", __name__])
    while codes[-1:] != [0]:
        child = context.Process(target=send_until, args=(tmp_path, len(codes)))
        child.start()
        child.join(60)
        codes.append(child.exitcode)
        assert [] == unread(tmp_path)

    assert {-signal.SIGKILL, 0} == set(codes)
    assert 6 < len(codes)
    before = {path.name for path in bodies(tmp_path)}
    monkeypatch.setattr(sweeping, "UNCOMMITTED", -60.0)
    with sender(tmp_path) as box:
        box.file.run_maintenance()
        kept = {each for (each, _) in box.query(SENT)}
    left = {path.name for path in bodies(tmp_path)}
    assert kept == {name.rpartition(".")[0] for name in left}
    assert len(before) > len(left)


def role_shop(folder: Path, _name: str) -> None:
    """Send for ever."""
    with Postbox(
        folder / "shop.db", agent="shop", large_body=5000, durability="fast", ack_timeout=1.0,
        delivery_retry="50ms..200ms", tuning=Tuning(breaker_failures=1000),
    ) as box:  # fmt: skip
        while True:
            box.send("reader", "x" * LARGE)
            time.sleep(0.005)


def role_reader(folder: Path, _name: str) -> None:
    """Read for ever, and remove bodies as often as possible."""
    sweeping.EACH, sweeping.UNCOMMITTED = 0, 1.0  # type: ignore[misc]
    with (
        Postbox(
            folder / "reader.db", agent=reader, durability="fast", lease=2.0, retention=0,
            tuning=Tuning(maintenance_interval=0.05),
        ),
        Postbox(folder / "shop.db", tuning=Tuning(maintenance_interval=0.05)),
    ):  # fmt: skip
        time.sleep(600)


@pytest.mark.timeout(180 + 4 * KILLS)
def test_every_message_is_read_once_whoever_is_killed(
    tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """With its whole body, although bodies are removed all the time."""
    Postbox(tmp_path / "reader.db", agent=reader, start=False).close()
    sender(tmp_path).close()
    roles = {"shop": role_shop, "reader": role_reader}
    with crew(tmp_path, roles, random.Random(SEED)) as team:
        for _ in range(KILLS):
            before = len(bodies_sent(tmp_path))
            until(lambda before=before: len(bodies_sent(tmp_path)) > before)  # type: ignore[misc]
            team.torment(team.kills + 1)
    unended = "SELECT count(*) FROM onceward_outbox WHERE state IN ('pending', 'sending', 'sent')"
    with (
        Postbox(tmp_path / "shop.db", agent="shop", ack_timeout=1.0) as shop,
        Postbox(tmp_path / "reader.db", agent=reader) as box,
    ):
        until(lambda: shop.query(unended) == [(0,)])
        sent = [(row[0], LARGE) for row in shop.query(SENT)]
        found = box.query("SELECT id, length FROM read ORDER BY id")
        dead = [*shop.dead_letters.list(), *box.dead_letters.list()]
    aloud(f"bodies: {KILLS} kills, {len(sent)} messages, seed {SEED}")

    assert [] == dead
    assert sorted(sent) == [tuple(row) for row in found]
