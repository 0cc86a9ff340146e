"""``work``, ``relay``, ``migrate`` and ``check``: the engines and the house-keeping."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Postbox
from onceward.errors import InvalidArgument

Cli = Callable[..., Any]

APP = """
from onceward import Agent, Reject

class team:
    billing = Agent("billing")

@team.billing.on("hello")
def hello(body: dict) -> dict:
    return {"seen": body["n"]}

@team.billing.on("bad")
def bad(body: dict) -> None:
    raise Reject("no such thing")

other = "no agent"
"""


@pytest.fixture
def app(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how to name the agent that the module in the current folder declares."""
    (home / "billing_app.py").write_text(APP, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "billing_app", raising=False)
    return "billing_app:team.billing"


def test_work_once_handles_what_is_due(cli: Cli, shop: Postbox, app: str) -> None:
    """The file is created, the mail handled, the reply delivered; what fails is said on stderr."""
    assert 0 == cli("work", "billing.db", app, "--once").code
    sent = shop.send("billing", {"n": 7}, type="hello", reply_to="shop")
    shop.send("billing", {}, type="bad")
    shop.run_until_idle()

    ran = cli("work", "billing.db", app, "--once", "--json")

    assert ["agent", "path", "moved", "signal"] == list(ran.json)
    assert ran.json["moved"] > 0
    assert "ERROR dead_lettered agent=billing" in ran.err
    assert "acked" == shop.state(sent)
    assert {"seen": 7} == cli("receive", "--json").json["body"]


def test_work_with_several_processes(cli: Cli, shop: Postbox, app: str) -> None:
    """Two processes share the mail of one agent, and each message is handled once."""
    cli("init", "billing")
    sent = shop.send_many([("billing", {"n": n}) for n in range(20)], type="hello")
    shop.run_until_idle()

    ran = cli("work", "billing.db", app, "--once", "--processes", "2")

    assert 0 == ran.code
    assert {"acked"} == {shop.state(message_id) for message_id in sent}


def test_a_worker_that_fails_ends_the_team(cli: Cli, app: str) -> None:
    """Each worker refuses another agent's file, and the team reports the failure."""
    cli("init", "shop")

    assert 1 == cli("work", "shop.db", app, "--processes", "2").code


@pytest.mark.parametrize(
    "target",
    ["billing_app", "billing_app:", "nowhere.to:be", "billing_app:other", "billing_app:missing"],
)
@pytest.mark.usefixtures("app")
def test_an_agent_that_is_none_is_a_usage_error(cli: Cli, home: Path, target: str) -> None:
    """Nothing is created for it."""
    assert 2 == cli("work", "new.db", target).code
    assert not (home / "new.db").exists()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ([], "write module:agent, as in onceward work app:agent"),
        (["greeter:greeter"], "change to the folder (cd greeter), or write greeter.FILE:greeter"),
        (["billing_app:other"], "declare other = Agent(...) in billing_app"),
        (["billing_app"], "the module billing_app has no variable that is an Agent"),
        (["./billing_app.py:team"], "write billing_app:team"),
        (["shop.db"], "write module:agent, as in onceward work app:agent"),
    ],
)
@pytest.mark.usefixtures("app")
def test_a_target_without_an_agent_says_what_to_type(
    cli: Cli, home: Path, target: list[str], expected: str
) -> None:
    """Neither a missing target nor a folder that was taken for the module stays a riddle."""
    (home / "greeter").mkdir()

    ran = cli("work", *target)

    assert (2, True) == (ran.code, expected in ran.err), ran.err


def test_an_error_inside_the_module_is_the_module_s(cli: Cli, home: Path) -> None:
    """Its traceback is what its author needs."""
    (home / "broken_app.py").write_text("import no_such_library_at_all\n", encoding="utf-8")

    with pytest.raises(ModuleNotFoundError, match="no_such_library_at_all"):
        cli("work", "new.db", "broken_app:agent")


def test_a_wrong_declaration_is_shown_with_its_line(cli: Cli, home: Path) -> None:
    """Its error is not told in the words of the shell: the option is in the module."""
    lines = ["from onceward import Agent", "late = Agent('late')", "@late.every('soon')"]
    code = "\n".join([*lines, "def ping(tick): ...", ""])
    (home / "late_app.py").write_text(code, encoding="utf-8")

    with pytest.raises(ImportError, match="late_app is not importable: every 'soon'") as raised:
        cli("work", "late_app:late")

    assert isinstance(raised.value.__cause__, InvalidArgument)


def test_relay_once_delivers(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Without handlers: the mail of shop reaches billing, and stays there."""
    sent = shop.send("billing", 1)

    ran = cli("relay", "shop.db", "--once", "--json")

    assert (0, "shop", 1) == (ran.code, ran.json["agent"], ran.json["moved"])
    assert ("sent", 1) == (shop.state(sent), billing.file.stats()["inbox_pending"])


def test_relay_without_a_file_relays_our_own(cli: Cli, shop: Postbox) -> None:
    """The environment says whose mail."""
    assert shop.agent == cli("relay", "--once", "--json").json["agent"]


def test_migrate_of_a_current_file_takes_no_step(cli: Cli, home: Path) -> None:
    """It says so, and may be repeated."""
    cli("init", "shop")
    path = str(home / "shop.db")

    assert {"path": path, "steps": [], "dry_run": False} == cli("migrate", "--json").json
    assert "is up to date" in cli("migrate", path).err


def test_migrate_names_the_steps(cli: Cli, home: Path) -> None:
    """An empty file lacks every step; a dry run takes none, and needs no agent."""
    empty = home / "empty.db"
    empty.touch()

    ran = cli("migrate", "empty.db", "--dry-run")

    assert ["1", "0001_initial"] == ran.lines[0]
    assert 0 == empty.stat().st_size
    assert 7 == cli("ls", "--db", "empty.db").code


def test_check_finds_nothing_in_sound_files(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Any number of files at once."""
    ran = cli("check", str(shop.file.path), str(billing.file.path), "--json")

    assert 0 == ran.code
    assert {
        "checked": [str(shop.file.path), str(billing.file.path)],
        "offenders": [],
        "unread": [],
    } == ran.json


@pytest.mark.broken("a row is taken out by hand")
def test_check_names_the_offenders(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """A counter that lies is found, with the rule that it breaks."""
    assert billing.agent
    with shop.begin() as tx:
        tx.execute("UPDATE _onceward_counters SET value = value + 1 WHERE name = 'ended_pending'")

    ran = cli("check", "--json")

    assert 1 == ran.code
    assert [["path", "invariant", "offender", "rule"]] == [
        list(offender) for offender in ran.json["offenders"]
    ]
    assert "S2" == cli("check").lines[0][1]


def test_work_builds_no_event_that_it_does_not_print(
    cli: Cli, shop: Postbox, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hook takes the event of a handled message, so no frame is read for it."""
    cli("init", "billing")
    sent = shop.send("billing", {"n": 7}, type="hello")
    shop.run_until_idle()
    read: list[str] = []
    monkeypatch.setattr("onceward.core.run.event_emitter.session_and_type", read.append)

    assert 0 == cli("work", "billing.db", app, "--once").code
    assert ("acked", []) == (shop.state(sent), read)


def test_work_gives_the_collector_its_thresholds_back(cli: Cli, app: str) -> None:
    """The cyclic collector is tuned while the engines run; what it does not look at stays so."""
    gc.freeze()
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    cli("work", "billing.db", app, "--once")

    assert (before, True) == (gc.get_threshold(), gc.get_freeze_count() > frozen // 2)


CHAT = """
from onceward import Agent, Context

writer, editor = Agent("writer"), Agent("editor")
both, by_name, mixed = [writer, editor], {"w": writer, "e": editor}, [writer, "editor"]
also_writer = writer
twins = (writer, Agent("writer"))

@writer.on("write")
def write(body: str, ctx: Context) -> None:
    ctx.send("editor", body + " written", type="edit")

@editor.on("edit")
def edit(body: str, ctx: Context) -> None:
    ctx.send("writer", body + " edited", type="done")

@writer.on("done")
def done(body: str, ctx: Context) -> None:
    ctx.tx.execute("CREATE TABLE told AS SELECT ? AS text", (body,))
"""


@pytest.fixture
def chat(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home whose module chat declares two agents that write to each other."""
    (home / "chat.py").write_text(CHAT, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "chat", raising=False)
    return home


@pytest.mark.parametrize(
    "words", [["chat:writer", "chat:editor"], ["chat"], ["chat:both"], ["chat:by_name"]]
)
def test_several_agents_work_in_one_process(cli: Cli, chat: Path, words: list[str]) -> None:
    """Named one by one, by a module or by a collection: each on its file, until all are idle."""
    with Postbox(chat / "writer.db", agent="writer", start=False) as box:
        box.send("writer", "a story", type="write")

    ran = cli("work", *words, "--once", "--json")

    assert ["writer", "editor"] == [each["agent"] for each in ran.json["agents"]]
    assert not [path for path in chat.iterdir() if ":" in path.name]
    with Postbox(chat / "writer.db", start=False) as box:
        assert [("a story written edited",)] == box.query("SELECT text FROM told")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x.db", "chat"], "x.db is one agent's file, and 2 are named: omit the file"),
        (["chat:twins"], "two agents are named 'writer'"),
        (["chat:mixed"], "chat:mixed is not an Agent, nor a list, tuple or dict of agents"),
        (["chat:writer", "chat:nobody"], "declare nobody = Agent(...) in chat"),
    ],
)
def test_agents_that_cannot_share_a_command_are_refused(
    cli: Cli, chat: Path, words: list[str], expected: str
) -> None:
    """Nothing is created."""
    ran = cli("work", *words)

    assert (2, True) == (ran.code, expected in ran.err), ran.err
    assert [] == [*chat.glob("*.db")]


@pytest.mark.parametrize(
    "words",
    [
        "relay chat:editor",
        "check chat:editor",
        "doctor chat:editor",
        "migrate chat:editor",
        "stats --db chat:editor",
        "backup shop.db chat:editor",
        "restore chat:editor shop.backup",
        "ls --agent shop --home chat:editor",
        "init shop --home chat:editor",
        "serve chat:editor --listen http://127.0.0.1:0",
        "new chat:editor",
    ],
)
def test_a_word_that_names_an_agent_is_no_path(cli: Cli, chat: Path, words: str) -> None:
    """A command that works on a file says what to give, and creates nothing of that name."""
    ran = cli(*words.split())

    assert (2, True) == (ran.code, "give the agent's file, NAME.db, or --agent NAME" in ran.err)
    assert not (chat / "chat:editor").exists()


def test_dead_edit_chooses_the_agent_of_its_file(cli: Cli, chat: Path) -> None:
    """``--handlers`` may name several agents, as ``work`` does."""
    with Postbox(chat / "editor.db", agent="editor", start=False) as box:
        sent = box.send("editor", 7, type="edit")
        box.run_until_idle()
        message = box.receive()
        assert message is not None
        message.reject("not a text")

    wrong = cli("dead", "edit", "editor.db", sent, "--body", "7", "--handlers", "chat")
    right = cli("dead", "edit", "editor.db", sent, "--body", '"text"', "--handlers", "chat")

    assert (2, 0) == (wrong.code, right.code), wrong.err + right.err
