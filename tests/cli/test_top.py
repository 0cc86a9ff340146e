"""``onceward top``: on a terminal with keys, in a pipe once, and for many agents."""

import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.terminals import terminal

from onceward import Agent, Postbox, Reject
from onceward.ops.cli.keyboard import keys_of
from onceward.ops.cli.top import Looks, frame, live
from onceward.ops.cli.top_state import COLUMNS, AgentRow, TopState, row_of
from onceward.ops.cli.top_view import Size, columns_for, screen
from onceward.ops.observe.rates import Rates
from onceward.ops.observe.snapshots import read_snapshot

AGENTS = 200
Cli = Callable[..., Any]
HOSTILE = "\x1b]0;owned\x07\x9b31m\x7f\u202e\x1b[7mowned\r\x85\u2066"
RAW = ("\x1b]0;", "\x07", "\x9b", "\x7f", "\u202e", "\x1b[7mowned", "\x85", "\u2066")
"""What must not reach a terminal of the hostile text."""
SPELLED = HOSTILE.encode("unicode_escape").decode()
TEXTS = {
    "_onceward_outbox": "type recipient",
    "_onceward_dead_letters": "type peer reason last_error",
    "_onceward_schedules": "name last_error",
    "_onceward_peers": "name last_error",
    "_onceward_file_info": "agent",
}
TRIGGERS = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
ALT_SCREEN, MAIN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


def rows(**pending: int) -> list[AgentRow]:
    """Return rows of agents with so many messages pending each."""
    return [
        AgentRow(path=Path(f"{name}.db"), agent=name, state="ok", pending=count)
        for name, count in pending.items()
    ]


ROWS = rows(billing=2, shop=9, audit=2)


def names(state: TopState) -> list[str]:
    """Return the agents that are shown, in order."""
    return [row.agent for row in state.arranged(ROWS)]


def pressed(state: TopState, *keys: str) -> TopState:
    """Return what is chosen after some keys."""
    for key in keys:
        state = state.pressed(key, state.arranged(ROWS))
    return state


def test_numbers_sort_from_the_largest_and_names_from_a() -> None:
    """Agents of one value stand by name; one key turns the order round."""
    by_count = TopState(sort="pending")

    by_name = TopState(sort="agent")

    assert ["audit", "billing", "shop"] == names(by_name)
    assert ["shop", "billing", "audit"] == names(pressed(by_name, "r"))
    assert ["shop", "audit", "billing"] == names(by_count)
    assert ["audit", "billing", "shop"] == names(pressed(by_count, "r"))


def test_agents_in_trouble_come_first() -> None:
    """What needs a person stands above what goes on by itself, whatever their names are."""
    states = ("ok", "dead letters", "not read", "unreadable", "failing", "paused")
    found = [AgentRow(path=Path(each), agent=each, state=each) for each in states]

    assert ["unreadable", "paused", "dead letters", "failing", "ok", "not read"] == [
        row.agent for row in TopState().arranged(found)
    ]


def test_keys_go_through_the_columns() -> None:
    """To both sides, and round at the end; a new column begins in its own order."""
    by_name = TopState(sort="agent")

    assert "state" == pressed(by_name, "right").sort
    assert COLUMNS[-1] == pressed(by_name, "left").sort
    assert "agent" == pressed(by_name, *["s"] * len(COLUMNS)).sort
    assert not pressed(TopState(), "r", ">").reverse


def test_a_filter_is_typed() -> None:
    """Each letter narrows the rows; enter keeps it, escape clears it, q is a letter in it."""
    typing = pressed(TopState(), "/", "B", "i", "q", "backspace")

    assert (["billing"], True) == (names(typing), typing.typing)
    assert (["billing"], False) == (names(kept := pressed(typing, "enter")), kept.typing)
    assert ["audit", "billing", "shop"] == names(pressed(kept, "escape"))
    assert ["audit", "billing", "shop"] == names(pressed(typing, "escape"))
    assert "q" == pressed(TopState(), "/", "q").filter
    assert ["audit", "billing", "shop"] == names(pressed(TopState(), "/", "o", "k"))


def test_the_selection_follows_its_agent() -> None:
    """It stays with an agent whose place changes, and stops at both ends."""
    second = pressed(TopState(), "down")

    assert Path("billing.db") == second.selected
    assert 1 == second.at(second.arranged(ROWS))
    turned = replace(second, sort="pending")
    assert 2 == turned.at(turned.arranged(ROWS))
    assert Path("shop.db") == pressed(second, "page down").selected
    assert Path("audit.db") == pressed(second, "k", "up", "home").selected
    assert Path("shop.db") == pressed(second, "end").selected
    assert TopState() == TopState().pressed("down", [])


def test_enter_shows_an_agent_and_escape_goes_back() -> None:
    """The first is meant where none is selected; where there is none the key does nothing."""
    shown = pressed(TopState(), "enter")

    assert (True, Path("audit.db")) == (shown.detail, shown.selected)
    assert not pressed(shown, "escape").detail
    assert not pressed(shown, "backspace").detail
    assert not TopState().pressed("enter", []).detail
    assert [True, True, False] == [
        pressed(TopState(), "q").ended,
        pressed(TopState(), "p").paused,
        pressed(TopState(), "p", " ").paused,
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"q", ["q"]),
        (b"\x1b[A", ["up"]),
        (b"\x1b[B\x1b[B", ["down", "down"]),
        (b"\x1b", ["escape"]),
        (b"\x1b>", ["escape", ">"]),
        (b"\x1b[99~", []),
        (b"\x1b[99~\x1bOC", ["right"]),
        (b"\r", ["enter"]),
        (b"ab", ["a", "b"]),
        ("\u00e4\x7f".encode(), ["\u00e4", "backspace"]),
        (b"\xff", []),
        (b"", ["q"]),
    ],
)
def test_keys_are_told_apart(data: bytes, expected: list[str]) -> None:
    """Letters, escape sequences, several at once; a terminal that has gone ends it."""
    assert expected == keys_of(data)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_narrow_terminal_has_fewer_columns(width: int) -> None:
    """The order's own column stays; what fits is shown in the same sequence."""
    rows = [AgentRow(path=Path("a.db"), agent="a" * 20, state="ok")]
    for sort in COLUMNS:
        found = columns_for(width, sort, rows)
        assert {"agent", "pending", sort} <= set(found)
        assert found == [name for name in COLUMNS if name in found]
    assert (list(COLUMNS) == columns_for(width, "agent", rows)) == (width == 200)


@pytest.mark.parametrize(("name", "shown"), [("shop", "inbox"), ("s" * 60, "ssss\u2026  ok")])
def test_a_column_is_as_wide_as_the_names_need(name: str, shown: str) -> None:
    """Short names leave room for more columns; long ones give way to the state."""
    row = AgentRow(path=Path("a.db"), agent=name, state="ok", pending=12345)
    console = Console(file=io.StringIO(), width=40)
    console.print(screen("top", [row], 1, TopState(), Size(40, 10)))
    printed = console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO

    assert shown in printed
    assert {"state", "pending", "12345"} <= set(printed.split())


def test_a_row_is_made_of_a_snapshot(shop: Postbox, home: Path) -> None:
    """What fails, died or is paused is said; a file that cannot be read is a row, too."""
    (home / "bad.db").write_bytes(b"no database" * 1000)
    shop.send("shop", 1)
    whole, bad = read_snapshot(shop.file.path, 1), read_snapshot(home / "bad.db", 1)
    row = row_of(whole, Rates(), shop._db.now())
    assert whole.overview is not None
    stats = {**whole.overview.stats, "dead_letters": 67}
    dead = replace(whole, overview=replace(whole.overview, stats=stats))
    shop.file.pause()
    paused = row_of(read_snapshot(shop.file.path, 1), Rates(), 0)

    assert ("shop", "ok", None) == (row.agent, row.state, row.sent_rate)
    assert ("bad", "unreadable") == (row_of(bad, Rates(), 0).agent, row_of(bad, Rates(), 0).state)
    assert "paused" == paused.state
    assert "dead letters" == row_of(dead, Rates(), 0).state


@pytest.mark.parametrize("size", [(120, 24), (80, 24), (40, 10), (20, 5), (5, 2)])
@pytest.mark.parametrize("detail", [False, True])
def test_a_frame_fits_every_terminal(
    shop: Postbox, billing: Postbox, size: tuple[int, int], *, detail: bool
) -> None:
    """No line is longer than the terminal is wide, with names as long as they may be."""
    for path in (shop.file.path.parent / f"{'n' * 100}{index}.db" for index in range(50)):
        os.link(billing.file.path, path)
    shop.send("billing", 1, type="t" * 200)
    looks, console = Looks([shop.file.path.parent]), Console(file=io.StringIO(), width=size[0])
    looks.look(within=None)
    looks.look_closer(shop.file.path)
    console.print(frame(looks, TopState(selected=shop.file.path, detail=detail), size))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is a StringIO

    assert [] == [line for line in lines if len(line.rstrip()) > size[0]]
    assert detail or len(lines) <= max(size[1], 5)


def test_one_agent_says_why_its_messages_wait(shop: Postbox) -> None:
    """The sentence that the web pages show, with the command that mends it."""
    shop.file.pause()
    looks, console = Looks([shop.file.path]), Console(file=io.StringIO(), width=120)
    looks.look(within=None)
    looks.look_closer(shop.file.path)
    console.print(frame(looks, TopState(selected=shop.file.path, detail=True), (120, 24)))

    shown = console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    assert re.search(r"shop was paused \d+ s ago: it handles and sends no message", shown)
    assert "onceward resume --agent shop" in shown


def test_mail_cannot_move_the_cursor(shop: Postbox, billing: Postbox) -> None:
    """Control characters in types, reasons and errors are spelled out."""
    agent = Agent("billing")

    @agent.on("json")
    def refuse(_: object) -> None:
        raise Reject("\x1b[2Jbroken")

    shop.send("billing", 1)
    shop.run_until_idle()
    with Postbox(billing.file.path, agent=agent, start=False) as box:
        box.run_until_idle()
    shop.run_until_idle()
    looks, console = Looks([shop.file.path.parent]), Console(file=io.StringIO(), width=200)
    looks.look(within=None)
    looks.look_closer(shop.file.path)
    console.print(frame(looks, TopState(selected=shop.file.path, detail=True), (200, 40)))

    assert "\x1b[2J" not in console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO


def test_a_pipe_gets_one_look(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """A line for each agent, or JSON; sorted and filtered as asked."""
    shop.send("billing", 1)
    lines = cli("top", "--sort", "pending").lines
    found = cli("top", "--filter", "bill", "--json").json

    assert [["shop", "ok", "1"], ["billing", "ok", "0"]] == [line[:3] for line in lines]
    assert {len(COLUMNS)} == {len(line) for line in lines}
    assert [("billing", str(billing.file.path), 0)] == [
        (row["agent"], str(Path(row["path"]).resolve()), row["pending"]) for row in found
    ]
    assert [3, 2] == [cli("top", "none").code, cli("top", "--every", "0").code]


def test_a_terminal_shows_agents_until_q(shop: Postbox, billing: Postbox) -> None:
    """Live: a send appears by itself; keys filter, sort and show one agent; the screen is left."""
    home = shop.file.path.parent
    with terminal(home, "top", ".", "--every", "0.1") as screen:
        screen.until(lambda text: "2 agents, all ok" in text and "shop" in text)
        shop.send("billing", 1, type="invoice.made")
        screen.until(
            lambda text: any(line.split()[:3] == ["shop", "ok", "1"] for line in text.splitlines())
        )
        screen.type("/bil\r")
        screen.until(lambda text: "1 of 2 agents" in text and "shop " not in text)
        screen.type("\x1b")
        screen.until(lambda text: "top .  2 agents" in text)
        screen.type(">>")
        screen.until(lambda text: "pending v" in text)
        screen.type("\r")
        screen.until(lambda text: "invoice.made" in text and "Sent last" in text)
        screen.type("q")
        code = screen.end()

    assert 0 == code
    assert 1 == screen.seen.count(ALT_SCREEN)
    assert screen.seen.rstrip().endswith("\x1b[?25h") or MAIN_SCREEN in screen.seen[-40:]
    assert billing.agent


@pytest.mark.broken("names and types that no writer would store")
def test_no_text_reaches_the_terminal_raw(tmp_path: Path) -> None:
    """Live: names of folders, files and agents, types, errors and reasons are spelled out."""
    folder = tmp_path / f"home{HOSTILE}"
    plant(folder)
    (folder / f"broken{HOSTILE}.db").write_bytes(b"no database" * 1000)
    with terminal(tmp_path, "top", folder.name, "--every", "0.1", columns=300) as screen:
        screen.until(lambda text: "2 agents, 2 not ok" in text and SPELLED in text)
        screen.type("\r")
        screen.until(lambda text: "escape back" in text and "Sent last" not in text)
        screen.type("\x1bj\r")
        screen.until(lambda text: "Sent last" in text and f"last {SPELLED}" in text)
        screen.type("q")
        assert 0 == screen.end()

    assert [] == [each for each in RAW if each in screen.seen]


def plant(folder: Path) -> None:
    """Create an agent of which each name, type, error and reason would change the terminal."""
    folder.mkdir()
    agent = Agent("shop")

    @agent.on("job")
    def refuse(_: object) -> None:
        raise Reject(HOSTILE)

    with Postbox(folder / "shop.db", agent=agent, start=False) as box:
        box.peers.add("far", "memory:far")
        box.send("shop", {}, type="job")
        box.run_until_idle()
        box.send("far", {})
        box.schedules.add("nightly", every=3600, to="shop", body=1)
        box.run_until_idle()
    with sqlite3.connect(folder / "shop.db") as con:
        for (guard,) in con.execute(TRIGGERS).fetchall():
            con.execute(f"DROP TRIGGER {guard}")
        for table, columns in TEXTS.items():
            for name in columns.split():
                con.execute(f"UPDATE {table} SET {name} = ?", (f"last {HOSTILE}",))
    con.close()


def test_a_dumb_terminal_gets_one_look(shop: Postbox) -> None:
    """It could show nothing live."""
    with terminal(shop.file.path.parent, "top", ".", term="dumb") as shown:
        assert 0 == shown.end()

    assert "\x1b" not in shown.seen
    assert ["shop", "ok", "0"] in [line.split()[:3] for line in shown.seen.splitlines()]


def test_a_resized_terminal_is_filled_anew(shop: Postbox) -> None:
    """A narrower one has fewer columns at once, not at the next look."""
    with terminal(shop.file.path.parent, "top", ".", "--every", "1h", columns=200) as screen:
        screen.until(lambda text: "run queue" in text)
        screen.resize(60, 10)
        screen.until(lambda text: "pending" in text and "run queue" not in text)
        screen.type("q")
        assert 0 == screen.end()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_terminal_as_it_was(shop: Postbox, number: int, code: int) -> None:
    """The screen of before is back, and letters are echoed again."""
    with terminal(shop.file.path.parent, "top", ".") as screen:
        screen.until(lambda text: "1 agents" in text)
        screen.process.send_signal(number)
        assert code == screen.end()

    assert MAIN_SCREEN in screen.seen


def test_many_agents_are_read_once(tmp_path: Path) -> None:
    """Files that did not change are not opened again, and only rows that fit are drawn."""
    first = tmp_path / "a0000.db"
    Postbox(first, agent="a0000", start=False).close()
    os.utime(first, (1, 1))
    for index in range(1, AGENTS):
        os.link(first, tmp_path / f"a{index:04}.db")
    looks = Looks([tmp_path])
    looks.look(within=None)
    reads = looks._snapshots.reads
    looks.look(within=None)
    console = Console(file=io.StringIO(), width=100, height=20)
    console.print(frame(looks, TopState(), (100, 20)))

    assert (AGENTS, AGENTS) == (reads, looks._snapshots.reads)
    assert 20 >= len(console.file.getvalue().splitlines())  # type: ignore[attr-defined]  # it is a StringIO


def test_a_large_home_is_read_without_waiting(tmp_path: Path) -> None:
    """While files were never read the next look is due at once; they are not called trouble."""
    for name in ("a", "b"):
        Postbox(tmp_path / f"{name}.db", agent=name, start=False).close()
    looks, due = Looks([tmp_path]), []
    console = Console(file=io.StringIO(), width=200)
    for _ in range(2):
        looks.look(within=0.0)
        due.append(looks.unread)
        console.print(frame(looks, TopState(), (200, 10)))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is a StringIO
    told = [line.partition("2 agents, ")[2] for line in lines if "2 agents, " in line]

    assert [True, False] == due
    assert ["all ok, 1 not read", "all ok"] == told


def test_a_paused_screen_waits_though_files_are_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read while it is paused, so the next look is not due at once."""
    for name in ("a", "b"):
        Postbox(tmp_path / f"{name}.db", agent=name, start=False).close()
    waits: list[float] = []

    class Keys:
        def read(self, timeout: float) -> str | None:
            waits.append(timeout)
            return "pq"[len(waits) - 1]

    monkeypatch.setattr("onceward.ops.cli.keyboard.keyboard", lambda: nullcontext(Keys()))
    monkeypatch.setattr("onceward.ops.cli.top.LOOK_FOR", 0.0)
    live(Looks([tmp_path]), TopState(), 3600.0)

    assert [True, False] == [wait == 0.0 for wait in waits]


def test_a_pipe_loads_no_terminal_library(shop: Postbox) -> None:
    """One look in a pipe does without rich's screens."""
    code = (
        "import sys; from onceward.ops.cli import main; main(sys.argv[1:]);"
        " print('rich.live' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "top", str(shop.file.path), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "False" == ran.stdout.splitlines()[-1]
    assert "shop" == json.loads(ran.stdout.rpartition("\n]")[0] + "]")[0]["agent"]
