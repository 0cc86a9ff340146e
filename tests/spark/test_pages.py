"""
The pages about fleets do what they say.

Their blocks that need Spark are run here, in the order in which they stand.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

import nats
from tests.transports.nats_server import nats_server

from onceward import Postbox
from onceward.fleet.spark import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: str) -> list[str]:
    """Return a page's blocks of Python, those of other libraries too."""
    return [text for _, text in BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))]


def _run(blocks: list[str], names: dict[str, Any]) -> None:
    for block in blocks:
        exec(compile(block, "page", "exec"), names)  # noqa: S102 - our own pages


@pytest.mark.broken("the bank's disk broke, and its backup knows less than the store")
def test_the_tutorial_ends_with_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After the fleet was made, broken and mended, Spark finds what the command has found."""
    monkeypatch.chdir(tmp_path)
    *others, on_spark = _blocks("tutorial/4-prove-your-fleet.md")
    names: dict[str, Any] = {"__name__": "page"}
    _run(others, names)
    capsys.readouterr()
    _run([on_spark], names)
    said = capsys.readouterr().out

    assert spark.range(1).count() == 1
    assert ("bank|delivered_once|" in said, "lost" in said) == (True, False)


def test_a_session_of_ones_own_reads_and_reconciles(
    spark: SparkSession, mail: Path, tmp_path: Path
) -> None:
    """
    What the page on clusters does with its session is done with ours.

    Lakes need more than the extra brings.
    """
    blocks = [
        block.replace("/mnt/fleet", str(mail)).replace(
            "/mnt/reports/today", str(tmp_path / "today")
        )
        for block in _blocks("how-to/run-on-a-cluster.md")
    ]
    lake = next(at for at, block in enumerate(blocks) if "write_to" in block)
    names: dict[str, Any] = {"spark": spark}
    _run([*blocks[:lake], blocks[-1].splitlines()[0]], names)

    assert {"delivered_once": 3} == {
        name: count for name, count in names["report"].verdicts.items() if name == "delivered_once"
    }
    assert ({"sender", "recipient", "verdict"} <= set(names["frames"].columns), 5) == (
        True,
        names["frames"].count(),
    )


def test_changes_are_streamed_to_nats_and_back_to_agents(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    The recipes of the page run: a change is published once, however often it is streamed.

    What is sent back is in the sender's outbox. Lakes and Kafka need more than the extra brings.
    """
    fleet, state = tmp_path / "fleet", tmp_path / "state"
    fleet.mkdir()
    for name in ("alice", "bob", "auditor"):
        Postbox(fleet / f"{name}.db", agent=name, start=False, transitions=True).close()
    with Postbox(fleet / "alice.db", start=False, transitions=True) as alice:
        alice.session().send_many([("bob", number) for number in range(3)], type="note")
        alice.run_until_idle()
    blocks = _blocks("how-to/stream-a-fleet.md")
    changes, to_nats, back = (
        next(block for block in blocks if word in block)
        for word in ("spark.readStream", "to_nats", "onceward.send(")
    )

    def run(block: str, server: str = "") -> None:
        text = block.replace("/mnt/fleet", str(fleet)).replace("/mnt/state", str(state))
        text = text.replace("nats://127.0.0.1:4222", server)
        _run([text.replace(".start()", ".trigger(availableNow=True).start()")], names)
        for query in spark.streams.active:
            assert query.awaitTermination(120)

    names: dict[str, Any] = {"spark": spark}
    run(changes)
    expected = read(spark, str(fleet), "transitions").count()
    with nats_server(tmp_path) as server:
        asyncio.run(_stream(server.url()))
        run(to_nats, server.url())
        run(to_nats.replace("changes/nats", "changes/again"), server.url())
        assert expected == asyncio.run(_published(server.url())) >= 3
    run(back)
    with Postbox(fleet / "auditor.db", start=False) as auditor:
        assert expected <= auditor.file.stats()["pending"]


async def _stream(url: str) -> None:
    connection = await nats.connect(url)
    await connection.jetstream().add_stream(name="changes", subjects=["changes.>"])
    await connection.close()


async def _published(url: str) -> int:
    connection = await nats.connect(url)
    found = await connection.jetstream().stream_info("changes")
    await connection.close()
    return found.state.messages
