"""
The golden files of a release: all that it leaves, and a later one finds.

    python3 -m tests.release.home

packs them into ``VERSION.tar.xz`` beside this file: a home that goes on where it was left, a home
that has used every feature, a word of each kind that machines say to each other, and the shape of
the JSON of shell commands. They are made once for each release, and once more whenever the schema
changes before the first one; later versions must read them as they are. The same tree makes the
same bytes.
"""

from __future__ import annotations

import io
import json
import lzma
import shutil
import tarfile
import tempfile
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.release import exchanges, features, shapes
from tests.release.repeatable import controls, repeatable, smooth

from onceward import Agent, Context, Postbox, Reject, Retry
from onceward.testing import Controls, ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
PACKED = frozenset({".db", ".bin", ".json"})
ROWS = "CREATE TABLE IF NOT EXISTS paid (id INTEGER PRIMARY KEY, receipt TEXT NOT NULL) STRICT"
NAMES = ("billing", "clerk", "shop")


class Bank:
    """Counts the calls of a step that costs money."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def charge(self, number: int) -> str:
        """Return a receipt."""
        self.calls.append(number)
        return f"receipt {number}"


def billing(bank: Bank, *, fails: bool) -> Agent:
    """Return the agent that is called; a handler that fails has one step behind it."""
    agent = Agent("billing")

    @agent.on("invoice")
    def pay(body: dict[str, int], ctx: Context) -> None:
        if body["id"] < 0:
            msg = "the number is negative"
            raise Reject(msg)
        receipt: str = ctx.step(bank.charge, body["id"])
        if fails and body["id"] == 2:
            raise Retry(after=3600)
        ctx.tx.execute("INSERT INTO paid VALUES (?, ?)", (body["id"], receipt))
        ctx.reply(receipt)

    return agent


@contextmanager
def opened(
    home: Path, agent: Agent, clock: ManualClock, testing: Controls | None = None
) -> Iterator[dict[str, Postbox]]:
    """Open all files of a home, without threads."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Postbox(
                    home / f"{name}.db",
                    agent=agent if name == "billing" else name,
                    start=False,
                    testing=testing or Controls(clock=clock),
                )
            )
            for name in NAMES
        }


def settle(boxes: dict[str, Postbox]) -> None:
    """Carry and handle until nothing is due."""
    while sum(box.run_until_idle() for box in boxes.values()):
        pass


def write(home: Path, testing: Controls | None = None) -> None:
    """Write the home, and close its files."""
    with opened(home, billing(Bank(), fails=True), ManualClock(), testing) as boxes:
        shop, clerk = boxes["shop"], boxes["clerk"]
        with boxes["billing"].begin() as tx:
            tx.execute(ROWS)
        session = shop.session("orders")
        session.send("billing", {"id": 1}, type="invoice", key="invoice-1")
        session.send("billing", {"id": -1}, type="invoice", key="rejected")
        shop.session("waiting").send("billing", {"id": 2}, type="invoice", key="invoice-2")
        shop.request("clerk", "sign", type="form", timeout="30d")
        clerk.channels.create("news", "group")
        shop.channels.get("news").join()
        clerk.mailboxes.ensure("tasks", ttl=None, public=True)
        clerk.mailboxes.get("tasks").send("file it")
        shop.schedules.add("nightly", every="1d", to="clerk", body="count", type="count")
        shop.limits.set("send", rate="100/s")
        settle(boxes)
        clerk.channels.get("news").send("open")
        shop.send("billing", {"id": 3}, type="invoice", key="invoice-3")  # stays in the outbox


def pack(folder: Path, archive: Path) -> None:
    """Pack the files of a folder, the same each time for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(each for each in folder.rglob("*") if each.suffix in PACKED):
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(member, file)
    archive.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def unpack(archive: Path, home: Path) -> None:
    """Unpack an archive into an empty folder."""
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:  # extractall has no filter before Python 3.11.4
            file = tar.extractfile(member)
            assert file is not None
            assert ".." not in member.name
            path = home / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.read())


def write_all(folder: Path) -> None:
    """Write the golden files of this tree."""
    with repeatable() as rng:
        for name, fill in (("", write), ("features", features.write)):
            clock = ManualClock()
            (folder / name).mkdir(exist_ok=True)
            fill(folder / name, controls(clock, rng))
            for path in (folder / name).glob("*.db"):
                smooth(path)
        exchanges.write(folder / "wire")
    with tempfile.TemporaryDirectory() as copy:
        home = Path(copy, "home")
        shutil.copytree(folder / "features", home)
        told = json.dumps(shapes.documents(home), indent=1, sort_keys=True)
    (folder / "commands.json").write_text(f"{told}\n", encoding="utf-8")


def main() -> None:
    """Pack the golden files of this version."""
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder))
        pack(Path(folder), HERE / f"{version('onceward')}.tar.xz")


def left(boxes: dict[str, Postbox]) -> dict[str, Any]:
    """Return what each part of the files holds."""
    shop, clerk = boxes["shop"], boxes["clerk"]
    return {
        "paid": boxes["billing"].query("SELECT id, receipt FROM paid ORDER BY id"),
        "dead": [each.reason for each in boxes["billing"].dead_letters.list()],
        "steps": boxes["billing"].query("SELECT name, state FROM onceward_steps"),
        "outbox": shop.query("SELECT state, count(*) FROM onceward_outbox GROUP BY state"),
        "channels": [(each.name, each.type) for each in clerk.channels.list()],
        "mailboxes": [each.name for each in clerk.mailboxes.list()],
        "tasks": clerk.mailboxes.get("tasks").count(),
        "schedules": [each.name for each in shop.schedules.list()],
        "limits": [each.scope for each in shop.limits.list()],
    }


if __name__ == "__main__":
    main()
