"""``onceward runs`` and ``onceward queue``: list, show and change sessions with runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox, Run

Cli = Any


@pytest.fixture
def ids(home: Path, billing: Postbox) -> Iterator[list[str]]:
    """Return the ids of three messages that wait in a paused session, after one done run."""
    agent = Agent("shop")

    @agent.runs(mode="followup", cap=7)
    def turn(run: Run) -> str:
        run.checkpoint({"half": True})
        return f"did {run.message.body}"

    with Postbox(home / "shop.db", agent=agent, start=False) as box:
        chat = billing.session("chat")
        chat.send("shop", "first")
        billing.run_until_idle()
        box.run_until_idle()
        box.runs.pause("chat")
        found = chat.send_many([("shop", n) for n in range(3)])
        billing.run_until_idle()
        box.run_until_idle()
        yield found


def test_runs_are_listed_and_shown(cli: Cli, ids: list[str]) -> None:
    """A run tells its session, its messages, its partial output and its result."""
    assert ids
    [row] = cli("runs", "ls", "--json").json
    shown = cli("runs", "show", row["id"][:20], "--json").json

    assert ("chat", "followup", "done", 1) == (
        row["session"],
        row["mode"],
        row["state"],
        row["messages"],
    )
    assert ({"half": True}, "did first", 1) == (
        shown["partial"],
        shown["result"],
        len(shown["event_ids"]),
    )
    assert [] == cli("runs", "ls", "--state", "open", "--json").json
    assert 3 == cli("runs", "show", "nothing").code


def test_a_run_is_ended_from_a_terminal(cli: Cli, home: Path, billing: Postbox) -> None:
    """An aborted run stores its cause; one that has ended, or is unknown, is exit code 3."""
    agent, codes = Agent("shop"), list[int]()

    @agent.runs(mode="followup")
    def turn(run: Run) -> None:
        codes.append(cli("runs", "abort", run.id, "--cause", "the user pressed stop").code)
        codes.append(cli("runs", "abort", run.id).code)
        box.runs.pause(run.session)

    with Postbox(home / "shop.db", agent=agent, start=False) as box:
        billing.session("chat").send("shop", "count")
        billing.run_until_idle()
        box.run_until_idle()
    [row] = cli("runs", "ls", "--json").json

    assert [0, 3, 3] == [*codes, cli("runs", "abort", "nothing").code]
    assert ("aborted", "the user pressed stop") == (row["state"], row["cause"])


def test_a_pattern_is_dissolved(cli: Cli, ids: list[str]) -> None:
    """Sessions without a handler in the code are served by readers again after dissolve."""
    before = cli("receive", "--session", "chat", "--json").code

    assert 0 == cli("runs", "remove", "*").code
    assert (3, ids[0]) == (before, cli("receive", "--session", "chat", "--json").json["id"])


def test_a_queue_is_in_the_operators_hands(cli: Cli, ids: list[str]) -> None:
    """What waits is listed in its order, reordered and removed; the numbers follow."""
    assert ids == [row["id"] for row in cli("runs", "queues", "chat", "--json").json]

    assert 0 == cli("runs", "reorder", "chat", ids[2]).code
    assert [ids[2], ids[0], ids[1]] == [
        row["id"] for row in cli("runs", "queues", "chat", "--json").json
    ]
    assert [[ids[0]]] == cli("runs", "discard", "chat", ids[0]).lines
    assert 3 == cli("runs", "discard", "chat", ids[0]).code
    [row] = cli("runs", "queues", "--json").json
    assert ("chat", "paused", 2) == (row["session"], row["state"], row["waiting"])


def test_a_mode_is_set_and_taken_back(cli: Cli, ids: list[str]) -> None:
    """A session's own settings replace the handler's, and leaving them out gives these back."""
    assert ids
    row = cli(
        "runs",
        "set",
        "chat",
        "--mode",
        "collect",
        "--debounce",
        "250ms",
        "--cap",
        "9.8",
        "--json",
    ).json
    assert ("collect", 0.25, 9) == (row["mode"], row["debounce"], row["cap"])
    assert ("followup", 7) == tuple(
        cli("runs", "set", "chat", "--json").json[name] for name in ("mode", "cap")
    )
    assert 2 == cli("runs", "set", "chat", "--mode", "loud").code
    assert 0 != cli("runs", "set", "chat", "--cap", "0").code


def test_pause_and_resume(cli: Cli, ids: list[str]) -> None:
    """A pause is durable and visible; resuming lets the next run begin."""
    assert ids
    assert "ready" == cli("runs", "resume", "chat", "--json").json["state"]
    assert "paused" == cli("runs", "pause", "chat", "--json").json["state"]
