"""
A value of another type in any column of ours: every verb ends, and every error is ours.

A bit that flips in the header of a row can change the type of its value.
"""

import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.proof.seed import sampled
from tests.wrong_values import NOT_UTF8, Column, columns, fill, put

from onceward import Agent, Context, Postbox
from onceward.errors import OncewardError
from onceward.file.read_only import opened

VALUES = {"text": "soon", "blob": b"\xff\x00", "null": None, "real": 1.5, "not UTF-8": NOT_UTF8}
EVERY = 15
"""Of a sampled proof, every fifteenth column with each value."""

pytestmark = [
    pytest.mark.timeout(1200),  # more than a hang; how long it takes depends on the machine
    pytest.mark.broken("a value that its column cannot hold"),
]


def _agent() -> Agent:
    agent = Agent("a")

    @agent.on("note")
    def note(body: object, ctx: Context) -> None:
        ctx.send("b", body, type="note")

    @agent.on("fails")
    def fails(body: object) -> None:
        raise RuntimeError(body)

    return agent


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home whose agent a has a row in most tables, all of them sound."""
    home = tmp_path_factory.mktemp("home")
    with Postbox(home / "b.db", agent="b", start=False) as other:
        other.agents.register()
    with Postbox(home / "a.db", agent=_agent(), start=False) as box:
        for number in range(3):
            box.send("a", number, type="note")
            box.session(f"s{number}").send("a", number, type="unhandled", ttl=3600)
        box.send("a", "no", type="fails")
        box.request("b", 1, type="note")
        box.channels.create("news").join()
        box.schedules.add("daily", every=3600, to="b", body=1)
        box.run_until_idle()
        box.send("b", 1, type="note", delay=3600)
    with Postbox(home / "a.db", agent="a", start=False) as box:
        for number in range(3):
            box.session("read").send("a", number, type="received")
        box.run_until_idle()
        message = box.session("read").receive()
        assert message is not None
        message.reject("not wanted")
        box.send("b", 1, type="note")
    fill(home / "a.db")
    with opened(home / "a.db") as found:
        assert found.damage() is None
    return home


def _verbs(box: Postbox) -> Iterator[Callable[[], object]]:
    yield from (box.file.stats, box.file.health, box.peers.list, box.dead_letters.list)
    yield from (box.history, box.schedules.list, box.channels.list, box.limits.list)
    yield from (
        lambda: box.thread("x"),
        lambda: [box.journey(found) for (found,) in box.query("SELECT id FROM onceward_inbox")],
        lambda: box.send("b", 1, type="note"),
        lambda: box.send("a", 1, type="note"),
        box.receive,
    )
    yield from (box.run_until_idle, box.file.run_maintenance, box.file.check, box.file.health)


def _bare(path: Path, agent: Agent | str) -> Iterator[str]:
    """Use a file; yield the errors that are not ours."""
    try:
        with Postbox(path, agent=agent, start=False) as box:
            for verb in _verbs(box):
                yield from _tried(verb)
    except OncewardError:
        pass
    except Exception:  # noqa: BLE001 - that is what is looked for
        yield traceback.format_exc(limit=-2)


def _tried(verb: Callable[[], object]) -> Iterator[str]:
    try:
        verb()
    except OncewardError:
        pass
    except Exception:  # noqa: BLE001 - as above
        yield traceback.format_exc(limit=-2)


def _chosen(home: Path) -> list[Column]:
    return columns(home / "a.db")[:: EVERY if sampled() else 1]


@pytest.mark.parametrize("kind", VALUES)
def test_every_error_is_ours(home: Path, tmp_path: Path, kind: str) -> None:
    """Opening, reading, working and judging raise OncewardError, whichever column is wrong."""
    found, spoilt = list[str](), 0
    for at, (table, column, _) in enumerate(_chosen(home)):
        folder = tmp_path / str(at)
        shutil.copytree(home, folder)
        if put(folder / "a.db", table, column, VALUES[kind]):
            spoilt += 1
            agent = _agent() if at % 2 else "a"
            found += [f"{table}.{column}: {said}" for said in _bare(folder / "a.db", agent)]
        shutil.rmtree(folder)

    assert [] == found
    assert spoilt > len(_chosen(home)) // 2
