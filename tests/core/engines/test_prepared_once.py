"""Statements: SQLite prepares those of a warm path once, whatever is bound to them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw
import pytest

from onceward import Agent, Context, Postbox, Run

MESSAGES: Final = 300
"""More than handlers commit together."""
UNITS: Final = (apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT)
"""Actions of BEGIN, COMMIT and SAVEPOINT, which are as quick to prepare as to find."""

SYNC: Final = (apsw.SQLITE_PRAGMA, "synchronous")
"""Whether the next commits are synced: that runs as it is prepared."""


@pytest.fixture
def prepared() -> Iterator[set[str]]:
    """Return the tables that were named by statements that SQLite has prepared so far."""
    found: set[str] = set()

    def note(action: int, first: str | None, *_: str | None) -> int:
        if action not in UNITS and (action, first) != SYNC:
            found.add(str(first))
        return apsw.SQLITE_OK

    def watch(connection: apsw.Connection) -> None:
        connection.authorizer = note

    apsw.connection_hooks.append(watch)
    yield found
    apsw.connection_hooks.remove(watch)


def settle(*boxes: Postbox) -> None:
    """Deliver and handle all that is on its way."""
    while sum(box.run_until_idle() for box in boxes):
        pass


def test_a_batch_of_handled_messages_prepares_nothing(tmp_path: Path, prepared: set[str]) -> None:
    """Sending, delivering and handling a batch prepares no statement a second time."""
    agent = Agent("b")

    @agent.on("json")
    def work(body: object, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO work (body) VALUES (?)", (str(body),))

    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as recipient,
    ):
        with recipient.begin() as tx:
            tx.execute("CREATE TABLE work (body TEXT NOT NULL)")
        for _ in range(8):  # a busy machine meets a rare statement late
            prepared.clear()
            sender.send_many([("b", {"number": number}) for number in range(MESSAGES)])
            settle(sender, recipient)
            if not prepared:
                break

        assert set() == prepared


def test_runs_prepare_nothing(tmp_path: Path, prepared: set[str]) -> None:
    """Enqueuing messages of sessions with runs, beginning and ending runs prepares nothing."""
    agent = Agent("b")

    @agent.runs(mode="followup")
    def turn(run: Run) -> None:
        del run

    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as recipient,
    ):
        for _ in range(3):
            prepared.clear()
            for number in range(2):
                sender.session(f"s{number}").send_many([("b", {"number": number})] * 2)
            settle(sender, recipient)

        assert set() == prepared


def test_members_of_a_group_prepare_nothing(tmp_path: Path, prepared: set[str]) -> None:
    """Leasing and acknowledging messages of a mailbox prepares nothing."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        jobs = box.mailboxes.ensure("jobs", public=True, ttl=None)
        for _ in range(3):
            jobs.send({"number": 1})
            box.run_until_idle()
            prepared.clear()
            for message in jobs.lease("crew", limit=10):
                message.ack()

        assert set() == prepared
