"""One word, one number: every place that shows an agent's file says the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.inspector.homes import lively

from onceward.metrics import FileMetrics, new_registry
from onceward.ops.cli import main
from onceward.ops.cli.output import LEVELS
from onceward.ops.inspector import app, words
from onceward.ops.views import vocabulary
from onceward.testing import ManualClock

NUMBERS = {
    "pending": "onceward_outbox_pending",
    "dead": "onceward_dead_letters",
    "failing": "onceward_lanes_failing",
    "leased": "onceward_lanes_leased",
    "breakers": "onceward_breakers_open",
    "queue": "onceward_run_queue",
}
"""Metrics by column of ``top``."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a home with every kind of trouble once."""
    path = tmp_path_factory.mktemp("agreed") / "home"
    lively(path, ManualClock())
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> object:
    """Return what a command prints as JSON."""
    assert 0 == main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_top_stats_metrics_and_tiles_agree(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By agent: what is to be sent, to be handled, dead, failing, leased, open and queued."""
    rows = printed(capsys, "top", str(home), "--once")
    assert isinstance(rows, list)
    registry = new_registry()
    registry.register(FileMetrics([home]))
    made = app([home])
    made.state.site.refresher.refresh()
    page = TestClient(made, base_url="http://localhost").get("/").text
    tiles = {each.agent: each.overview for each in made.state.site.refresher.snapshots.values()}
    made.state.site.refresher.stop()

    assert 5 == len(rows)
    for row in rows:
        stats = printed(capsys, "stats", "--db", row["path"])
        assert isinstance(stats, dict)
        tile = tiles[row["agent"]]
        waits = stats["inbox_pending"] + stats["inbox_processing"]
        assert (stats["pending"], waits, stats["dead_letters"]) == (
            row["pending"],
            row["inbox"],
            row["dead"],
        )
        assert (row["pending"], row["inbox"], row["dead"]) == (
            tile.outgoing,
            tile.incoming,
            tile.dead_letters,
        )
        assert {name: row[name] for name in NUMBERS} == {
            name: registry.get_sample_value(metric, {"agent": row["agent"]})
            for name, metric in NUMBERS.items()
        }
        assert (row["failing"], row["breakers"]) == (tile.lanes.failing, tile.breakers_open)
        idle = row["state"] if row["state"] in vocabulary.IDLE else "ok"
        assert row["state"] == next(iter(tile.trouble), idle)
    total = sum(row["pending"] for row in rows)
    assert f'<dt>to send</dt><dd><a href="/?sort=out">{total}</a></dd>' in page


def test_every_state_of_an_agent_has_its_place() -> None:
    """A trouble is red, but for lanes that fail: those are tried again; what is well is quiet."""
    levels = {state: vocabulary.level(state) for state in vocabulary.SEVERITY}

    assert {"failing"} == {state for state in vocabulary.TROUBLES if levels[state] != "act"}
    assert ("wait", "act", "ok", "ok") == tuple(
        levels[each] for each in ("failing", "unreadable", "ok", "not read")
    )
    ranks = [("act", "wait", "ok").index(levels[state]) for state in vocabulary.SEVERITY]
    assert sorted(ranks) == ranks


@pytest.mark.parametrize(
    ("word", "level"),
    [("breaker open", "act"), ("open", "ok"), ("breaker closed", "ok"), ("processed", "ok"),
     ("pending", "wait"), ("breaker half_open", "wait"), ("failed", "act"), ("expired", "ok")],
)  # fmt: skip
def test_a_state_has_one_colour_everywhere(word: str, level: str) -> None:
    """Red is for what a person acts on now, amber for what waits, else none."""
    styles = {"act": ("bad", "red"), "wait": ("wait", "yellow"), "ok": ("", "")}
    assert (words.tone(word), LEVELS[vocabulary.level(word)]) == styles[level]


def test_a_message_in_a_parcel_is_counted_once(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``sending`` is a part of ``pending``: what is to be sent is not a sum of both."""
    stats = printed(capsys, "stats", "--db", str(home / "shop.db"))
    counts = printed(capsys, "ls", "queues", "--db", str(home / "shop.db"))
    assert isinstance(stats, dict)
    assert isinstance(counts, list)
    by_state = {
        state: sum(each["messages"] for each in counts if each["state"] == state)
        for state in ("pending", "sending")
    }

    assert stats["sending"] == by_state["sending"] > 0
    assert stats["pending"] == by_state["pending"] + by_state["sending"]
