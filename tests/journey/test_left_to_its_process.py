"""A file that sqlite3 has open in a process: its own agent's process fetches what is for it."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.children import ONCEWARD, Child, run
from tests.waiting import until

from onceward import Postbox
from onceward.errors import ForeignHandle
from onceward.file import foreign_library
from onceward.file.read_only import opened
from onceward.message.parcel import Answer, Parcel
from onceward.ops.views.why import agent_whys
from onceward.transports import file

pytestmark = pytest.mark.skipif(
    foreign_library.ends_threads(), reason="a hook would end threads of this traced process"
)
JOBS = 10
STATES = "SELECT state, count(*) FROM onceward_outbox GROUP BY state"
HANDLER = """
import sqlite3
from contextlib import closing
from onceward import Agent, Context
tasks = Agent("tasks")

@tasks.on("mark")
def mark(number: int{answer}) -> None:
    with closing({connection}) as web, web:
        web.execute("UPDATE book SET done = done + 1 WHERE id = ?", (number,))
    {give}
"""


def place(home: Path, *numbers: int) -> None:
    """Do what requests of a web app do: a row and a message in one transaction of sqlite3."""
    with closing(sqlite3.connect(home / "web.db", isolation_level=None)) as web:
        web.execute("PRAGMA busy_timeout = 30000")
        web.execute("CREATE TABLE IF NOT EXISTS book (id INTEGER PRIMARY KEY, done DEFAULT 0)")
        for number in numbers:
            web.execute("BEGIN IMMEDIATE")
            web.execute("INSERT INTO book (id) VALUES (?)", (number,))
            web.execute(
                "INSERT INTO onceward_send (recipient, type, body, ordering_key)"
                " VALUES ('tasks', 'mark', ?1, ?1)",
                (str(number),),
            )
            web.execute("COMMIT")


def asked(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Ask a file as an operator does, from another connection of this process's sqlite3."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as con:
        return con.execute(sql).fetchall()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with the files of a web app and of its worker."""
    for name in ("web", "tasks"):
        run([*ONCEWARD, "init", name, "--home", tmp_path])
    return tmp_path


@pytest.mark.parametrize(
    "answer", [("", "return"), (", ctx: Context", 'ctx.reply(f"done {number}")')]
)
def test_handlers_use_the_senders_file_with_sqlite3(home: Path, answer: tuple[str, str]) -> None:
    """Each job is done once, and its outcome and answer are fetched by the relay."""
    (home / "job.py").write_text(
        HANDLER.format(
            connection='sqlite3.connect("web.db", timeout=30)', answer=answer[0], give=answer[1]
        ),
        encoding="utf-8",
    )  # fmt: skip
    place(home, *range(JOBS))
    with ExitStack() as stack:
        for words in (["relay", "--db", "web.db"], ["work", "tasks.db", "job:tasks"]):
            child = stack.enter_context(Child([*ONCEWARD, *words], "stderr", cwd=home))
            child.said("interrupt to stop")
        until(lambda: asked(home / "web.db", STATES) == [("acked", JOBS)])
        place(home, *range(JOBS, 2 * JOBS))
        until(lambda: asked(home / "web.db", STATES) == [("acked", 2 * JOBS)])

    assert [(2 * JOBS, 1, 1)] == asked(
        home / "web.db", "SELECT count(*), min(done), max(done) FROM book"
    )
    assert [(0,)] == asked(home / "tasks.db", "SELECT count(*) FROM onceward_dead_letters")
    answers = 2 * JOBS if answer[0] else 0
    assert [(answers,)] == asked(home / "web.db", "SELECT count(*) FROM onceward_inbox")


@pytest.fixture
def pair(home: Path) -> Iterator[tuple[Postbox, Path]]:
    """Return the open worker, whose deliveries keep the web app's file open, and that file."""
    with Postbox(home / "tasks.db", agent="tasks", start=False) as tasks:
        tasks.send("web", 0, type="hello")
        tasks.run_until_idle()
        yield tasks, home / "web.db"


def test_a_delivery_makes_way_and_the_agent_itself_fetches(pair: tuple[Postbox, Path]) -> None:
    """After sqlite3 has connected this process pushes nothing more; an opening collects it."""
    tasks, path = pair
    with closing(sqlite3.connect(path)):
        sent = tasks.send("web", 1, type="hello")
        tasks.run_until_idle()
        before = tasks.state(sent)

    with Postbox(path, agent="web", start=False) as web:
        web.run_until_idle()
        there = web.query("SELECT id FROM onceward_inbox ORDER BY seq")

    assert ("pending", (sent,), "sent") == (before, there[-1], tasks.state(sent))


def test_sqlite3_waits_for_a_delivery_to_its_file(pair: tuple[Postbox, Path]) -> None:
    """The file is closed only after the delivery, and before sqlite3 opens it."""
    tasks, path = pair
    [slot] = file.slots._slots.values()
    inside, leave, order = Event(), Event(), list[str]()

    def slow(parcel: Parcel) -> Answer:
        inside.set()
        assert leave.wait(30)
        order.append("delivered")
        return accept(parcel)

    accept = slot.opened.accept
    slot.opened = slot.opened._replace(accept=slow)

    def connect() -> None:
        sqlite3.connect(path).close()
        order.append("connected")

    tasks.send("web", 1, type="hello")
    pushing, connecting = Thread(target=tasks.run_until_idle), Thread(target=connect)
    pushing.start()
    assert inside.wait(30)
    connecting.start()
    until(lambda: bool(foreign_library.theirs))
    leave.set()
    pushing.join(30)
    connecting.join(30)

    assert ["delivered", "connected"] == order
    assert [(2,)] == asked(path, "SELECT count(*) FROM onceward_inbox")


def test_a_delivery_that_hangs_is_not_overtaken(
    pair: tuple[Postbox, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it does not end in time, sqlite3 is refused, and deliveries go on."""
    tasks, path = pair
    monkeypatch.setattr(foreign_library, "PATIENCE", 0.05)
    [(key, slot)] = file.slots._slots.items()
    held = file.slots.lend(key, lambda: slot.opened)

    with pytest.raises(ForeignHandle):
        sqlite3.connect(path)
    file.slots.give_back(held)
    sent = tasks.send("web", 1, type="hello")
    tasks.run_until_idle()

    assert "sent" == tasks.state(sent)


def test_a_postbox_is_not_closed_for_sqlite3(pair: tuple[Postbox, Path]) -> None:
    """A file that the program itself opened as a postbox stays open, and sqlite3 is refused."""
    tasks, path = pair
    with Postbox(path, agent="web", start=False) as web:
        with pytest.raises(ForeignHandle):
            sqlite3.connect(path)
        sent = tasks.send("web", 1, type="hello")
        tasks.run_until_idle()

        there = web.query("SELECT id FROM onceward_inbox ORDER BY seq")
    assert ((sent,), "sent") == (there[-1], tasks.state(sent))


def test_why_says_who_must_fetch(pair: tuple[Postbox, Path]) -> None:
    """Once nothing has fetched for a while, the file says so; a fetch ends that."""
    tasks, path = pair
    with closing(sqlite3.connect(path)):
        tasks.send("web", 1, type="hello")
        tasks.run_until_idle()
        tasks._dispatcher._waiting["web"] = -10.0
        tasks.run_until_idle()
    with opened(tasks.file.path) as found:
        before = agent_whys(found, tasks._db.now())[0]
    with Postbox(path, agent="web", start=False) as web:
        web.run_until_idle()
    with opened(tasks.file.path) as found:
        after = [each.reason for each in agent_whys(found, tasks._db.now())]

    assert ("left to its process", "onceward relay --agent web") == (before.reason, before.cure)
    assert "left to its process" not in after
