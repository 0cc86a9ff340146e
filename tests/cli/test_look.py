"""``ls``, ``show``, ``stats`` and ``sql``: they look, and change nothing."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox

Cli = Callable[..., Any]

QUEUE = ["box", "peer", "session", "state", "messages", "oldest_at"]
LANE = [
    "sender",
    "lane",
    "session",
    "priority",
    "state",
    "head_id",
    "attempts",
    "due_at",
    "leased",
    "owner",
    "reason",
]
STORED = [
    "box", "seq", "id", "origin", "sender", "recipient", "session", "lane", "type", "topic",
    "priority", "state", "attempts", "key", "created_at", "received_at", "due_at", "expires_at",
    "sent_at", "ended_at", "dead_at", "reason", "last_error", "late_outcome", "late_at", "held_by",
    "channel", "kind", "correlation_id", "mailbox", "queue", "replays",
]  # fmt: skip


@pytest.fixture
def sent(shop: Postbox, billing: Postbox) -> str:
    """Return the id of a message that shop sent and billing holds."""
    message_id = shop.send("billing", {"n": 1}, type="hello")
    shop.run_until_idle()
    assert billing.file.stats()["inbox_pending"] == 1
    return message_id


@pytest.mark.parametrize(
    ("what", "agent", "keys"),
    [
        ("queues", "shop", QUEUE),
        ("lanes", "billing", LANE),
        ("outbox", "shop", STORED),
        ("inbox", "billing", STORED),
    ],
)
@pytest.mark.usefixtures("sent")
def test_ls_has_stable_keys(cli: Cli, what: str, agent: str, keys: list[str]) -> None:
    """Programs read these keys; they are only ever added to."""
    [row] = cli("ls", what, "--agent", agent, "--json").json

    assert keys == list(row)


def test_ls_counts_by_state(cli: Cli, shop: Postbox, sent: str, buried: list[str]) -> None:
    """A line per box, peer, session and state; dead letters are among them."""
    assert sent
    shop.send("billing", 2)

    rows = [line[:5] for line in cli("ls").lines]

    assert [
        ["outbox", "billing", "default", "pending", "1"],
        ["outbox", "billing", "default", "sent", "1"],
        ["dead", "billing", "default", "dead", str(len(buried))],
    ] == rows


def test_ls_filters(cli: Cli, shop: Postbox, sent: str) -> None:
    """State, peer, session and limit filter the list; no match is an empty list, no error."""
    waiting = shop.session("run-1").send("billing", 2)

    assert [waiting] == [line[0] for line in cli("ls", "outbox", "--state", "pending").lines]
    assert [waiting] == [line[0] for line in cli("ls", "outbox", "--session", "run-1").lines]
    assert [waiting] == [line[0] for line in cli("ls", "outbox", "--limit", "1").lines]
    assert [sent] == [
        line[0] for line in cli("ls", "outbox", "--state", "sent", "--peer", "billing").lines
    ]
    assert (0, []) == ((ran := cli("ls", "outbox", "--peer", "nobody", "--json")).code, ran.json)


def test_show_has_the_whole_message(cli: Cli, sent: str) -> None:
    """A unique beginning of the id is enough, and the frame comes with it."""
    shown = cli("show", sent[:-2], "--json").json

    assert ["id", "rows", "steps", "streams", "results", "transitions", "children"] == list(shown)
    [row] = shown["rows"]
    keys = [
        "box", "seq", "id", "sender", "recipient", "session", "lane", "type", "priority", "state",
        "attempts", "created_at", "due_at", "sent_at", "replays",
    ]  # fmt: skip
    assert [*keys, "frame"] == list(row)
    assert (sent, "outbox", "sent", {"n": 1}) == (
        shown["id"],
        row["box"],
        row["state"],
        row["frame"]["data"],
    )


def test_show_has_dedup_record_and_transitions(cli: Cli, billing: Postbox, home: Path) -> None:
    """A processed message shows its row, its dedup record, and its transitions if recorded."""
    with Postbox(home / "shop.db", agent="shop", start=False, transitions=True) as shop:
        sent = billing.send("shop", 1)
        billing.run_until_idle()
        assert 0 == cli("receive").code

        shown = cli("show", sent, "--json").json

        assert shop.agent == "shop"
    assert ["inbox", "processed"] == [row["box"] for row in shown["rows"]]
    assert [(None, "pending"), ("pending", "processed")] == [
        (step["from_state"], step["to_state"]) for step in shown["transitions"]
    ]
    keys = ["seq", "at", "agent", "box", "id", "peer", "from_state", "to_state", "reason"]
    assert keys == list(shown["transitions"][0])


def test_show_draws_what_a_message_caused(cli: Cli, billing: Postbox, home: Path) -> None:
    """From the files of the home, as a tree in JSON, and as lines."""
    with Postbox(home / "shop.db", agent="shop", start=False) as shop:
        sent = shop.send("billing", None, type="ask")
        shop.run_until_idle()
        with billing.receive() as message:  # type: ignore[union-attr]  # it is there
            reply = message.reply("no")
        billing.run_until_idle()
    billing.close()

    [child] = cli("show", sent, "--json").json["children"]

    assert (reply, "reply", "pending", []) == (
        child["id"], child["way"], child["state"], child["children"],
    )  # fmt: skip
    assert f"└─ text {reply} (reply), billing to shop, pending" in cli("show", sent).out


def test_show_as_lines(cli: Cli, sent: str) -> None:
    """In a pipe every field is a line, the frame as JSON."""
    fields = dict(cli("show", sent).lines)

    assert (sent, "billing", {"n": 1}) == (
        fields["id"],
        fields["recipient"],
        json.loads(fields["frame"])["data"],
    )


def test_show_has_a_kept_result(cli: Cli, home: Path) -> None:
    """As a value in JSON, and as a line."""
    agent = Agent("jobs")
    agent.on("job", keep_result=True)(lambda body: {"is": body})
    with Postbox(home / "jobs.db", agent=agent, start=False) as box:
        sent = box.send("jobs", 5, type="job")
        box.run_until_idle()
    [found] = cli("show", sent, "--agent", "jobs", "--json").json["results"]

    assert ("jobs", '{"is":5}', 8) == (found["sender"], found["body"], found["bytes"])
    assert '{"is":5}' in cli("show", sent, "--agent", "jobs").out


def test_an_ambiguous_beginning_is_refused(cli: Cli, shop: Postbox, sent: str) -> None:
    """Two candidates are no answer."""
    shop.send("billing", 2)

    ran = cli("show", sent[:4])

    assert (2, "") == (ran.code, ran.out)
    assert "give more of it" in ran.err


def test_stats_are_the_postbox_s_numbers(cli: Cli, shop: Postbox, sent: str) -> None:
    """The same names and numbers as in ``AgentFile.stats``."""
    assert sent
    numbers = shop.file.stats()

    assert numbers == cli("stats", "--json").json
    assert [[name, str(number)] for name, number in numbers.items()] == cli("stats", "--all").lines


def test_stats_omit_what_is_zero(cli: Cli, shop: Postbox, sent: str) -> None:
    """A reader of a pipe sees the few numbers that say something; --all prints the rest."""
    assert sent
    numbers = {name: str(value) for name, value in shop.file.stats().items()}

    assert {name: value for name, value in numbers.items() if value != "0"} == dict(
        cli("stats").lines
    )
    assert numbers == dict(cli("stats", "--all").lines)


def test_stats_of_an_unused_file_say_so(cli: Cli) -> None:
    """No line on stdout is not mistaken for a failure."""
    assert cli("init", "idle").code == 0
    ran = cli("stats", "--agent", "idle")

    assert (0, "", "every number is 0: --all\n") == (ran.code, ran.out, ran.err)


@pytest.mark.usefixtures("shop")
def test_sql_reads(cli: Cli) -> None:
    """Values come as they are: times as numbers, blobs in hexadecimal, names told apart."""
    ran = cli(
        "sql",
        "SELECT 1 AS at, x'00ff' AS blob, NULL AS gone, 1700000000000 AS sent_at, 2 AS at",
        "--json",
    )

    assert [
        {"at": 1, "blob": "00ff", "gone": None, "sent_at": 1700000000000, "at:2": 2}
    ] == ran.json
    assert [["1700000000000", "a\\tb"]] == cli(
        "sql", "SELECT 1700000000000 AS sent_at, 'a' || char(9) || 'b' AS text"
    ).lines
    assert [["1"]] == cli("sql", "-", stdin="SELECT count(*) FROM onceward_stats").lines
    assert [["1"]] == cli("sql", "SELECT 1;\n-- that is all\n").lines


@pytest.mark.usefixtures("shop")
def test_sql_runs_one_statement(cli: Cli) -> None:
    """Rows of several statements have no common columns; the error says what to do."""
    found = cli("sql", "SELECT 1; SELECT 2, 3")

    assert 2 == found.code
    assert "run one at a time" in found.err


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM _onceward_outbox",
        "UPDATE _onceward_file_info SET agent = 'x'",
        "CREATE TABLE x (y)",
        "VACUUM INTO 'copy.db'",
        "INSERT INTO onceward_send (recipient, type) VALUES ('a', 'b')",
        "SELECT 1; DELETE FROM _onceward_peers",
        "PRAGMA user_version = 3",
    ],
)
@pytest.mark.usefixtures("shop")
def test_sql_refuses_to_write(cli: Cli, home: Path, statement: str) -> None:
    """The file stays as it is, and no other file appears."""
    before = sorted(path.name for path in home.iterdir())

    ran = cli("sql", statement, "--json")

    assert (7, "ReadOnlyStore") == (ran.code, ran.problem["type"].rpartition(":")[2])
    assert before == sorted(path.name for path in home.iterdir())


def test_sql_knows_the_views_without_their_prefix(cli: Cli, shop: Postbox, sent: str) -> None:
    """Short names hold in the command's own connection; an application's table keeps its name."""
    assert [[sent]] == cli("sql", "SELECT id FROM outbox", "--db", str(shop.file.path)).lines
    shop._db.write(lambda tx: tx.rows("CREATE TABLE inbox (theirs)"))

    ran = cli("sql", "SELECT count(theirs) FROM inbox", "--db", str(shop.file.path))

    assert [["0"]] == ran.lines
    assert [] == shop._db.read("SELECT name FROM sqlite_schema WHERE name = 'outbox'")


def test_looking_leaves_no_trace(cli: Cli, home: Path) -> None:
    """The file's bytes are the same after every reading command, also without another opener."""
    cli("init", "shop")
    path = home / "shop.db"
    before = path.read_bytes()

    codes = [
        cli(*command.split()).code
        for command in (
            "ls",
            "ls lanes",
            "stats",
            "peers ls",
            "dead ls",
            "receive --keep",
            "migrate --dry-run",
        )
    ]

    assert [0, 0, 0, 0, 0, 3, 0] == codes
    assert before == path.read_bytes()


@pytest.mark.broken("the damage is planted")
@pytest.mark.parametrize("command", ["poll", "tail", "receive", "receive --keep"])
def test_a_lost_body_is_told(cli: Cli, shop: Postbox, billing: Postbox, command: str) -> None:
    """The output says what is missing, and so does the exit code: 1, or 6 beside sound ones."""
    for body in ("long " * 1000, None):
        billing.send("shop", body)
    billing._db.write(lambda tx: tx.run("DELETE FROM _onceward_bodies"))
    billing.run_until_idle()

    several = command in {"poll", "tail"}
    ran = cli(*command.split(), *([] if several else ["--json"]))
    first = json.loads(ran.out.splitlines()[0]) if several else ran.json

    assert (6 if several else 1, None) == (ran.code, first["body"])
    assert "the body is missing" in first["body_error"]
    assert "the body is missing" in ran.err
    assert "bodyerror" not in {*first}
    assert (0, 2) == ((past := cli("history", "--json")).code, len(past.json["messages"]))
    assert ["the body is missing"] == [
        row["body_error"][:19] for row in past.json["messages"] if "body_error" in row
    ]
    assert shop.agent


@pytest.mark.broken("the damage is planted")
@pytest.mark.parametrize("mode", ["lease", "cursor", "scan"])
def test_a_lost_body_of_a_mailbox_is_told(
    cli: Cli, shop: Postbox, billing: Postbox, mode: str
) -> None:
    """However it is read: alone it is a failure."""
    shop.mailboxes.ensure("box", public=True)
    billing.mailboxes.get("box").send("long " * 1000)
    billing._db.write(lambda tx: tx.run("DELETE FROM _onceward_bodies"))
    billing.run_until_idle()

    ran = cli("mailbox", "read", "box", mode)

    assert (1, True) == (ran.code, "the body is missing" in json.loads(ran.out)["body_error"])


READING = [
    ["stats"], ["why"], ["ls"], ["dead", "ls"], ["history"], ["check"], ["doctor"], ["peers", "ls"],
    ["sql", "SELECT 1"], ["backup", "copy.db"], ["fleet", "reconcile", "."],
    ["metrics", "web.db"], ["top", "web.db", "--once"],
]  # fmt: skip


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_each_command_knows_a_file_that_another_program_has_marked(
    cli: Cli, home: Path, words: list[str]
) -> None:
    """A file that an ORM made, with a mark of its own, is an agent's file to every command."""
    with closing(sqlite3.connect(home / "web.db")) as host:
        host.executescript("PRAGMA application_id = 77; CREATE TABLE book (id INTEGER)")
    assert 0 == cli("init", "web", "--home", str(home)).code

    (home / "web.db").chmod(0o600)

    ran = cli(*words, *([] if words[0] in {"fleet", "metrics", "top"} else ["--agent", "web"]))

    assert (0, "") == (ran.code, ran.err if ran.code else "")
