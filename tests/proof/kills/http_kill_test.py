"""
Two agents that reach each other over HTTP, through proxies that spoil, while both are killed.

They share a secret, or their homes know each other's keys.

The sender is killed between the commit of its messages, the push of their parcel, the answer and
the settlement; so are the workers, one of which listens.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Final

from tests.ports import free_port
from tests.proof.kills.nats_kill_test import (
    ANN,
    BOB,
    SETTINGS,
    TABLE,
    Verdict,
    fulfilling,
    judged_by,
    orders_for,
    send_missing,
)
from tests.proof.network.proxy import FAULTS, spoiling

from onceward import Tuning
from onceward.api.agent import Agent
from onceward.api.postbox import Postbox
from onceward.errors import OncewardError
from onceward.file import known_homes
from onceward.homes import Homes
from onceward.http import HttpListener
from onceward.keys import Keys
from onceward.testing.kills import Role, crew
from onceward.transports.network.homes import HomeKeys
from onceward.transports.network.http import HttpTransport

SMALL: Final = {**SETTINGS, "tuning": Tuning(parcel_max_messages=20)}
"""Many parcels are pushed, so that many are spoiled."""


def open_box(
    folder: Path, agent: Agent | str, *, start: bool = True, listens: bool = False
) -> Postbox:
    """Open the file of one of the two, in a home of its own."""
    name, other = (BOB, ANN) if getattr(agent, "name", agent) == BOB else (ANN, BOB)
    port = (folder / f"{name}.port").read_text(encoding="ascii")
    ears = [HttpListener(f"http://127.0.0.1:{port}")] if listens else []
    path = folder / name / f"{name}.db"
    box = Postbox(path, agent=agent, start=start, listeners=ears, **SMALL)
    if (way := folder / f"{other}.url").exists():
        box.peers.add(other, way.read_text(encoding="ascii"))
    return box


def sender(folder: Path, _name: str) -> None:
    """Send what is missing of the orders, and listen for their outcomes."""
    with open_box(folder, ANN, listens=True) as box:
        send_missing(box, int((folder / "total").read_text(encoding="ascii")))
        Event().wait()


def believing_sender(folder: Path, name: str) -> None:
    """Send, and believe every answer: the mistake that has to be found."""
    HttpTransport._prove = lambda *_: None  # type: ignore[method-assign]
    sender(folder, name)


def listening_worker(folder: Path, _name: str) -> None:
    """Carry out orders, and listen."""
    with open_box(folder, fulfilling(), listens=True):
        Event().wait()


def worker(folder: Path, _name: str) -> None:
    """Carry out orders."""
    with open_box(folder, fulfilling()):
        Event().wait()


ROLES: Final[dict[str, Role]] = {
    "sender": sender, "worker-1": listening_worker, "worker-2": worker,
}  # fmt: skip


def tried(kills: int, seconds: float, seed: int) -> Verdict:
    """Make a trial with as many orders as the kills need, in a folder of its own."""
    orders = orders_for(kills, seconds)
    with TemporaryDirectory(prefix="onceward-http-") as made:
        return trial(Path(made), orders=orders, kills=kills, seed=seed, seconds=seconds)


def trial(
    folder: Path,
    *,
    orders: int,
    kills: int,
    seed: int,
    seconds: float = 86_400.0,
    plant: tuple[Role, tuple[str, ...]] = (sender, FAULTS),
    patience: float = 300,
    of_homes: bool = False,
) -> Verdict:
    """
    Send orders while processes are killed, no longer than *seconds*; then let all come to rest.

    *plant* is the sender, and what the proxies do. With *of_homes* no agent has a peer or a key:
    the homes sign, and find each other's agent by its name. Every order has exactly one effect, in
    the order of its lane; every one is acknowledged within *patience* seconds after the last kill;
    both files keep every invariant.
    """
    begun, (sending, faults) = time.monotonic(), plant
    _prepare(folder, orders)
    if not of_homes:
        Keys(folder / BOB).add(ANN, Keys(folder / ANN).create(BOB))
    roles, rng = ROLES | {"sender": sending}, random.Random(seed)
    with ExitStack() as stack:
        for name in (ANN, BOB):
            port = int((folder / f"{name}.port").read_text(encoding="ascii"))
            url, _ = stack.enter_context(spoiling(port, seed, faults))
            if of_homes:
                other = ANN if name == BOB else BOB
                introduce(folder / name, folder / other, url, [name])
            else:
                (folder / f"{name}.url").write_text(url, encoding="ascii")
        people = stack.enter_context(crew(folder, roles, rng))
        people.torment(kills, seconds=seconds)
        count = people.kills
        with open_box(folder, ANN, start=False) as ann:
            calm = people.wait_until(lambda: _acked(ann) == orders, seconds=patience)
        wrong = people.fallen()
    wrong += judged_by(open_box, folder, orders)
    wrong += [] if calm else ["messages are still under way"]
    told = tuple(f"seed {seed}: {each}" for each in wrong)
    return Verdict(count, told, time.monotonic() - begun, orders)


def _prepare(folder: Path, orders: int) -> None:
    (folder / "total").write_text(str(orders), encoding="ascii")
    for name in (ANN, BOB):
        (folder / name).mkdir()
        (folder / f"{name}.port").write_text(str(free_port()), encoding="ascii")
    for name in (ANN, BOB):
        with open_box(folder, name, start=False) as box, box.begin() as tx:
            tx.execute(TABLE)


def introduce(home: Path, other: Path, url: str, served: Sequence[str]) -> None:
    """Let another home know a home, and which agents it serves."""
    mark = Homes(home).show().fingerprint
    with HomeKeys(other) as keys:
        known = known_homes.add(keys.directory, f"home-{home.name}", url, mark)
        told = [{"name": name, "description": "", "accepts": []} for name in served]
        known_homes.tell(keys.directory, known, told)


def _acked(box: Postbox) -> int:
    with suppress(OncewardError):
        return box.file.stats()["acked"]
    return 0


if __name__ == "__main__":
    sys.stdout.write(f"{tried(int(sys.argv[1]), 3600.0, int(sys.argv[2]))}\n")
