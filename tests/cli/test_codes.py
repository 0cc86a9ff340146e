"""Exit codes: each one shown, and each error's place in the table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Postbox, errors
from onceward.ops.cli import exit_codes

Cli = Callable[..., Any]


@pytest.mark.usefixtures("shop")
def test_0_done(cli: Cli) -> None:
    """The command did what was asked."""
    assert exit_codes.DONE == cli("stats").code


@pytest.mark.broken("a row is taken out by hand")
def test_1_failed(cli: Cli, shop: Postbox) -> None:
    """Here: an invariant does not hold."""
    with shop.begin() as tx:
        tx.execute("UPDATE _onceward_counters SET value = value + 1 WHERE name = 'ended_pending'")

    assert exit_codes.FAILED == cli("check").code


def test_1_failed_where_the_system_refuses(cli: Cli, tmp_path: Path) -> None:
    """A folder that cannot be made is a line that names it, not a traceback."""
    (tmp_path / "taken").write_text("a file")
    ran = cli("init", "alice", "--home", str(tmp_path / "taken" / "home"))

    assert (exit_codes.FAILED, "") == (ran.code, ran.out)
    assert f"onceward: {tmp_path / 'taken' / 'home'}: Not a directory\n" == ran.err


@pytest.mark.parametrize(
    "tokens",
    [
        "nonsense",
        "sned",
        "dead nonsense",
        "send",
        "ls --limit many",
        "ls --no-such-option",
        "ls outbox --state sened",
        "stats word",
        "check a.db --db b.db",
        "relay a.db --agent b",
        "recv --wait soon",
        "send billing {broken",
        "send billing 1 --priority none",
        "send billing 1 --delay=-1",
        "stats --db a.db --agent b",
        "sql SELEC",
        "init no/slash",
        "dead replay",
        "dead replay x --all",
        "dead discard --all",
        "peers add far carrier-pigeon:x",
        "work a.db app:agent --processes 0",
        "work a.db app:agent --home .",
        "stats --db shop.db --home .",
        "check shop.db --home .",
    ],
)
@pytest.mark.usefixtures("shop", "billing", "buried")
def test_2_usage(cli: Cli, tokens: str) -> None:
    """The command line does not say what to do, or says what cannot be; stdout stays empty."""
    ran = cli(*tokens.split())

    assert (exit_codes.USAGE, "") == (ran.code, ran.out)


def test_2_usage_where_nothing_says_which_agent(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither flag nor environment: no file is guessed."""
    monkeypatch.delenv("ONCEWARD_AGENT")

    assert exit_codes.USAGE == cli("stats").code


@pytest.mark.parametrize(
    "tokens",
    [
        "receive",
        "receive --keep",
        "show 0000",
        "dead replay 0000",
        "dead replay --all --yes",
        "peers remove nobody",
        "peers reset nobody",
        "send nobody 1",
        "stats --db none.db",
        "check none.db",
        "relay none.db",
        "migrate none.db",
        "sql --agent nobody SELECT",
    ],
)
@pytest.mark.usefixtures("shop")
def test_3_nothing_there(cli: Cli, tokens: str) -> None:
    """Empty inbox, unknown id, unknown peer, no such file."""
    assert exit_codes.NOTHING_THERE == cli(*tokens.split()).code


@pytest.mark.parametrize("how", ["--ack", "--keep"])
@pytest.mark.usefixtures("shop")
def test_4_timed_out(cli: Cli, how: str) -> None:
    """Nothing came in the time that was given."""
    assert exit_codes.TIMED_OUT == cli("receive", "--wait", "5ms", how).code


@pytest.mark.usefixtures("shop", "billing")
def test_5_conflict(cli: Cli) -> None:
    """The key was used with another body."""
    cli("send", "billing", "1", "--key", "k")

    assert exit_codes.CONFLICT == cli("send", "billing", "2", "--key", "k").code


def test_6_partly(cli: Cli, buried: list[str], shop: Postbox) -> None:
    """Some were done, some could not be; which is said."""
    ran = cli("dead", "replay", buried[0], "0000", "--json")

    assert exit_codes.PARTLY == ran.code
    assert ([buried[0]], ["0000"]) == (
        ran.json["done"],
        [failure["id"] for failure in ran.json["failed"]],
    )
    assert exit_codes.PARTLY == cli("check", str(shop.file.path), "none.db").code


@pytest.mark.parametrize("tokens", ["send billing 1", "receive"])
@pytest.mark.usefixtures("billing")
def test_7_refused_while_frozen(
    cli: Cli, shop: Postbox, tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for readers: an inbox that may not be read is not empty."""
    shop.file.pause()
    assert exit_codes.REFUSED == cli(*tokens.split()).code

    shop.file.resume()
    monkeypatch.setenv("ONCEWARD_DISABLED", "1")
    assert exit_codes.REFUSED == cli(*tokens.split()).code


@pytest.mark.usefixtures("billing", "shop")
def test_7_refused_where_the_queue_is_full(cli: Cli, home: Any) -> None:
    """A full outbox takes nothing more."""
    with Postbox(home / "full.db", agent="full", start=False, max_pending=1) as box:
        box.send("shop", 1)

    assert exit_codes.REFUSED == cli("send", "shop", "2", "--agent", "full").code


def test_7_refused_for_a_newer_schema(cli: Cli, shop: Postbox) -> None:
    """A file of a newer version is looked at by that version only."""
    with shop.begin() as tx:
        tx.execute(
            "INSERT INTO _onceward_migrations (version, name, digest, applied_at)"
            " VALUES (9999, 'later', x'00', 0)"
        )

    assert exit_codes.REFUSED == cli("ls").code


@pytest.mark.parametrize("command", ["check", "doctor", "migrate", "stats --db"])
def test_7_refused_for_what_is_no_path(cli: Cli, command: str) -> None:
    """No file of any system has such a name, and the system raises an error of its own."""
    ran = cli(*command.split(), "a\0b")

    assert exit_codes.REFUSED == ran.code
    assert "'a\\x00b' is not a path" in ran.out + ran.err


def test_130_interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt outside of work and relay ends the command with the shell's own number."""

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onceward.ops.cli.app.check_command", interrupt)

    assert 130 == cli("stats").code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidMessage("x"), 2),
        (errors.TooLarge("x"), 2),
        (errors.UnknownRecipient("x"), 3),
        (errors.Busy("x"), 4),
        (errors.AnswerTimeout("x"), 4),
        (errors.Conflict("x"), 5),
        (errors.LeaseLost("x"), 5),
        (exit_codes.Conflicting("x"), 5),
        (errors.Paused("x"), 7),
        (errors.OutboxLimit("x"), 7),
        (errors.DiskFull("x"), 7),
        (errors.WrongAgent("x"), 7),
        (errors.ReadOnlyStore("x"), 7),
        (errors.Refused("x"), 7),
        (errors.StoreCorrupt("x"), 1),
        (errors.OutcomeUnknown("x"), 1),
        (errors.StoreFault("x"), 1),
    ],
)
def test_every_error_has_its_code(error: errors.OncewardError, code: int) -> None:
    """By class, so that a new subclass ends like its parent."""
    assert code == exit_codes.code_of(error)


@pytest.mark.parametrize(
    "tokens", [["receive"], ["nonsense"], ["ls", "--limit", "many"], ["stats", "--db", "none.db"]]
)
@pytest.mark.usefixtures("shop")
def test_errors_are_objects_in_json_mode(cli: Cli, tokens: list[str]) -> None:
    """One problem object on stderr, nothing on stdout; the exit code is in it."""
    ran = cli(*tokens, "--json")

    assert ["type", "title", "detail", "exit_code", "retryable"] == list(json.loads(ran.err))
    assert (ran.code, "") == (ran.problem["exit_code"], ran.out)


def test_errors_are_one_line_for_people(cli: Cli) -> None:
    """What happened and what to do, without a traceback."""
    ran = cli("stats")

    assert ("", 1) == (ran.out, len(ran.err.splitlines()))
    assert "onceward init" in ran.err
