"""
Agents that talk in a channel while their processes are killed.

An owner, two members, one who comes late, and one who reads nothing.

The owner gives numbered commands, each in one commit with its note, some of
them while the channel is paused. The others do each in one commit with the
word that it is done. Once all are done the owner gives some more for the next
hour, and closes the channel.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from onceward.api.postbox import Postbox
from onceward.errors import ChannelRefused, OncewardError
from onceward.features.channels.api import Channel
from onceward.testing.kills import Role

BOSS: Final = "boss"
LATE: Final = "eve"
SILENT: Final = "zoe"
ROOM: Final = "room"
SAID: Final = 100
"""How many commands the owner gives."""
DELAYED: Final = 10
"""How many commands it gives that are not due before the channel is closed."""
HOUR: Final = 3600.0
HOLD_EACH: Final = 7
"""Each so-manieth command is given while the channel is paused."""
TOLD: Final = "CREATE TABLE told (n INTEGER PRIMARY KEY, id TEXT)"
DONE: Final = "CREATE TABLE done (n INTEGER, id TEXT)"
SETTINGS: Final[dict[str, Any]] = {
    "durability": "fast", "ack_timeout": 0.5,
    "tuning": {"poll_interval": 0.05, "breaker_failures": 1000},
    "delivery_retry": "0.05s..0.2s ±0%", "handler_retry": "0.05s..0.2s ±0%",
}  # fmt: skip


def open_box(folder: Path, name: str, *, start: bool = True) -> Postbox:
    """Open the file of a talker."""
    return Postbox(folder / f"{name}.db", agent=name, start=start, **SETTINGS)


def boss(folder: Path, name: str) -> None:
    """Give numbered commands, each in one commit with its note, some during a pause."""
    with open_box(folder, name) as box:
        room = box.channels.get(ROOM)
        if room.info().state == "paused":
            room.resume()
        [(last,)] = box._db.read("SELECT coalesce(max(n), 0) FROM told")
        for n in range(int(last) + 1, SAID + 1):
            give(box, room, n)
        while not completed(box):
            time.sleep(0.05)
        close(box, room)
        while True:
            time.sleep(1)


def close(box: Postbox, room: Channel) -> None:
    """Give commands for later, and close the channel; go on where a killed process was."""
    [(last,)] = box._db.read("SELECT max(n) FROM told")
    if room.info().state == "active":
        for n in range(int(last) + 1, SAID + DELAYED + 1):
            give(box, room, n, delay=HOUR)
        room.drain()
    if room.info().state == "draining":
        room.close()


def give(box: Postbox, room: Channel, n: int, delay: float | None = None) -> None:
    """Say one number, and note it in the same commit."""
    held = n % HOLD_EACH == 0
    if held:
        room.pause()
    with box.begin() as tx:
        posted = room.send({"n": n}, kind="command", delay=delay)
        tx.execute("INSERT INTO told (n, id) VALUES (?, ?)", (n, posted.id))
    if held:
        time.sleep(0.02)
        room.resume()
    time.sleep(random.uniform(0, 0.03))


def listener(folder: Path, name: str) -> None:
    """
    Take part, and do what is said.

    First a word that it came, then the effect together with the word that it is done.
    """
    with open_box(folder, name) as box:
        room = box.channels.get(ROOM)
        room.join()
        while room.info().state != "closed":
            message = None
            with suppress(ChannelRefused):  # closed while it waited
                message = room.receive(timeout=1.0)
            if message is None:
                continue
            with suppress(OncewardError):  # the lease ran out: it comes again
                room.acknowledge(message, "received")
                with box.begin() as tx:
                    tx.execute(
                        "INSERT INTO done (n, id) VALUES (?, ?)",
                        (message.body["n"], message.correlation_id),
                    )
                    room.acknowledge(message, "completed")
        while True:
            time.sleep(1)


def silent(folder: Path, name: str) -> None:
    """Read nothing."""
    with open_box(folder, name):
        while True:
            time.sleep(1)


def latecomer(folder: Path, name: str) -> None:
    """Be a listener once the others have talked for a while."""
    while not (folder / "late").exists():
        time.sleep(0.02)
    listener(folder, name)


ROLES: Final[dict[str, Role]] = {
    BOSS: boss, "ann": listener, "bob": listener, LATE: latecomer, SILENT: silent
}  # fmt: skip
LISTENERS: Final = sorted(set(ROLES) - {BOSS, SILENT})


def prepare(folder: Path) -> None:
    """Make the files and the channel, with all participants but the late one."""
    for name in ROLES:
        with open_box(folder, name, start=False) as box:
            with box.begin() as tx:
                tx.execute(TOLD if name == BOSS else DONE)
            if name == BOSS:
                box.channels.create(
                    ROOM, sticky=True, ack_timeout=0.5, attempts=1001, retry_backoff=0.05
                ).add_many(("ann", "bob", SILENT))


def done(box: Postbox) -> list[tuple[int, str]]:
    """Return what a listener did, in its order."""
    return [(int(n), str(i)) for n, i in box._db.read("SELECT n, id FROM done ORDER BY rowid")]


def told(box: Postbox) -> list[tuple[int, str]]:
    """Return what the owner said."""
    return [(int(n), str(i)) for n, i in box._db.read("SELECT n, id FROM told ORDER BY n")]


def completed(box: Postbox) -> bool:
    """Return whether the owner knows of each command that all participants completed it."""
    room, everybody = box.channels.get(ROOM), dict.fromkeys(LISTENERS, "completed")
    given = told(box)[:SAID]
    return len(given) == SAID and all(
        everybody == {each.participant: each.status for each in room.acknowledgments(message_id)}
        for _, message_id in given
    )


WAITS: Final = """
SELECT (SELECT count(*) FROM _onceward_outbox WHERE state IN ('pending', 'sent'))
       + (SELECT count(*) FROM _onceward_inbox WHERE state = 'pending')
"""
COPIES: Final = """
SELECT recipient, state FROM _onceward_outbox WHERE kind = 'command'
UNION ALL
SELECT peer, 'dead' FROM _onceward_dead_letters WHERE origin = 'outbox' AND kind = 'command'
"""


def ended(boxes: Iterable[Postbox]) -> bool:
    """Return whether no message waits anywhere."""
    return not sum(box._db.read(WAITS)[0][0] for box in boxes)


def buried(box: Postbox) -> dict[str, int]:
    """Return how many messages ended with the channel in a file, by the file where they waited."""
    return Counter(
        dead.origin for dead in box.dead_letters.list(limit=1_000_000, reason="channel_closed")
    )


def copies(box: Postbox) -> dict[tuple[str, str], int]:
    """Return how many of the owner's commands have each recipient and end."""
    return Counter((str(to), str(state)) for to, state in box._db.read(COPIES))
