"""Every fleet command from its words to its files, on one fleet, in one process and one Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

import pyarrow.dataset as ds

from onceward import Postbox
from onceward.fleet import ship
from onceward.fleet.ship import prune
from onceward.ops.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[..., Any]


@pytest.fixture
def fleet(mail: Path, tmp_path: Path) -> str:
    """Return a copy of the small fleet, as commands may change it."""
    shutil.copytree(mail, tmp_path / "agents")
    return str(tmp_path / "agents")


@pytest.fixture
def say(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Say:
    """
    Return a function that runs one command and returns its answer.

    It checks that the exit code is as expected; Spark goes on.
    """

    def run(*tokens: object, code: int = 0) -> Any:
        assert code == main(["fleet", *map(str, tokens), "--json"])
        assert spark.range(1).count() == 1
        return json.loads(capsys.readouterr().out)

    return run


def _stored(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(path).to_table().to_pylist()
    return rows


def test_reconcile_and_graph(say: Say, fleet: str, tmp_path: Path) -> None:
    """Each message gets its verdict, and who talks to whom is drawn from them."""
    out = tmp_path / "out"
    said = say("reconcile", fleet, "--out", out, "--grace", "0s", "--engine", "spark")
    drawn = say("graph", out)

    assert {"delivered_once": 3, "dead_lettered": 1, "in_flight": 1} == said["verdicts"]
    assert Path(said["report"]).is_file()
    assert [("alice", "bob", 5)] == [
        (row["sender"], row["recipient"], row["messages"]) for row in drawn["edges"]
    ]
    assert '"alice" -> "bob"' in (out / "graph.dot").read_text(encoding="utf-8")
    assert {"alice", "bob"} == {row["agent"] for row in drawn["nodes"]}


def test_reconcile_with_a_log(say: Say, fleet: str, tmp_path: Path) -> None:
    """Messages that a file forgot are judged by the log that it was shipped to."""
    log = str(tmp_path / "log")
    ship.files([fleet], log)
    assert {""} == {done.error for done in prune.files([fleet], log, keep=0)}
    spark = ("--engine", "spark", "--grace", "0s")

    said = say("reconcile", fleet, "--out", tmp_path / "out", "--log", log, *spark)

    assert {"delivered_once": 3, "dead_lettered": 1, "in_flight": 1} == said["verdicts"]


def test_metrics(say: Say, fleet: str, tmp_path: Path) -> None:
    """
    Figures by hour are printed and stored.

    They tell why messages died and for how long mail waited.
    """
    said = say("metrics", fleet, "--out", tmp_path / "out")

    assert (5, 4) == (
        sum(row["sent"] for row in said["hours"]),
        sum(row["received"] for row in said["hours"]),
    )
    assert [("bob", "rejected", 1)] == [
        (row["agent"], row["reason"], row["messages"]) for row in said["reasons"]
    ]
    assert [] == said["breakers"]
    assert {("alice", "bob")} == {
        (row["agent"], row["peer"]) for row in _stored(tmp_path / "out" / "waits")
    }


def test_threads(say: Say, fleet: str, tmp_path: Path) -> None:
    """Conversations are printed, their messages stored in order."""
    said = say("threads", fleet, "--out", tmp_path / "out")

    assert (
        5
        == sum(row["messages"] for row in said["conversations"])
        == len(_stored(tmp_path / "out" / "threads"))
    )


def test_export(say: Say, fleet: str, tmp_path: Path) -> None:
    """One line for each conversation, without what a pointer names."""
    said = say("export", fleet, "--out", tmp_path / "out", "--redact", "/number")
    lines = Path(said["file"]).read_text(encoding="utf-8").splitlines()
    bodies = [
        message["body"]
        for line in lines
        for message in json.loads(line)["messages"]
        if isinstance(message["body"], dict)
    ]

    assert said["conversations"] == len(lines)
    assert {"[redacted]"} == {body["number"] for body in bodies if "number" in body}


def test_replay(say: Say, fleet: str, tmp_path: Path) -> None:
    """A plan changes nothing; carried out, exactly its letters are back in the inbox."""
    planned = say("replay", fleet, "--out", tmp_path / "out", "--where", "reason = 'rejected'")
    with Postbox(f"{fleet}/bob.db", start=False) as bob:
        [letter] = bob.dead_letters.list()
    done = say("replay", fleet, "--out", tmp_path / "out", "--where", "reason = 'rejected'", "--go")

    assert [letter.id] == [row["id"] for row in planned["planned"]]
    assert [(letter.id, "replayed")] == [(row["id"], row["outcome"]) for row in done["done"]]
    with Postbox(f"{fleet}/bob.db", start=False) as bob:
        assert [] == bob.dead_letters.list()


@pytest.mark.broken("everything that can go wrong went wrong in these files")
def test_the_demo_finds_all_it_made_and_reconciling_says_that_it_is_broken(
    say: Say, tmp_path: Path
) -> None:
    """One command shows all; the other ends with 1 on the same files."""
    home, out = tmp_path / "home", tmp_path / "out"
    shown = say("demo", "--engine", "spark", "--home", home)
    given = ("--engine", "spark", home / "agents", "--out", out, "--grace", "0s")
    found = say("reconcile", *given, code=1)

    assert shown["ok"] is True
    assert {"lost": 3, "orphan": 5, "double_processed": 7}.items() <= found["verdicts"].items()
    assert Path(found["report"]).is_file()
