"""The group chat, whose worker processes are killed while its members speak."""

import importlib.util
import os
import random
import signal
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.children import ONCEWARD, PYTHON, Child, run
from tests.waiting import until

from onceward import Postbox

EXAMPLE = Path(__file__).parents[2] / "examples" / "group_chat"
TEAMS = (("chat:writer", "chat:manager"), ("chat:editor", "chat:screen"))
MEMBERS = ("manager", "writer", "editor")
STORIES = ("a lighthouse", "a harbour")
KILLS = 6


@pytest.fixture(scope="module")
def chat() -> ModuleType:
    """Return the example, loaded by path."""
    spec = importlib.util.spec_from_file_location("group_chat", EXAMPLE / "chat.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Workers:
    """Two worker processes in a folder, with two agents each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.running = [self._start(team) for team in TEAMS]

    def kill(self, which: int) -> None:
        """Kill a worker in the middle of its work, and start it again."""
        os.kill(self.running[which].pid, signal.SIGKILL)
        self.running[which].wait()
        self.running[which] = self._start(TEAMS[which])

    def stop(self) -> None:
        """Let all workers end."""
        for worker in self.running:
            worker.stop()

    def _start(self, team: tuple[str, ...]) -> Child:
        environment = {**os.environ, "PYTHONPATH": str(EXAMPLE), "ONCEWARD_HOME": str(self.folder)}
        command = [*ONCEWARD, "work", *team]
        return self.stack.enter_context(Child(command, cwd=self.folder, env=environment))


def calls(folder: Path) -> list[str]:
    """Return the calls of the model, also those that a kill has interrupted."""
    ledger = folder / "calls.log"
    return ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []


def _called(folder: Path, times: int) -> bool:
    return len(calls(folder)) >= times


def rows(folder: Path, agent: str, statement: str, story: str) -> list[Any]:
    """Return rows of an agent's file."""
    with Postbox(folder / f"{agent}.db", agent=agent, start=False) as box:
        return box.query(statement, (story,))


def heard(folder: Path, agent: str, story: str) -> list[Any]:
    """Return the lines that an agent has heard, in the order in which it heard them."""
    statement = "SELECT number, speaker, text FROM lines WHERE story = ? ORDER BY rowid"
    return rows(folder, agent, statement, story)


def shown(folder: Path, story: str) -> list[Any]:
    """Return the lines of the screen, put together from their words."""
    statement = "SELECT line, speaker, text FROM words WHERE story = ? ORDER BY line, position"
    words = rows(folder, "screen", statement, story)
    return [
        (number, speaker, " ".join(text for _, _, text in each))
        for (number, speaker), each in groupby(words, key=itemgetter(0, 1))
    ]


def undisturbed(chat: ModuleType, story: str) -> list[Any]:
    """Return the lines of the chat, as they are if no process dies."""
    lines = [chat.Line(number=1, speaker="user", text=f"Write about {story}.")]
    while (seat := chat.answer("manager", lines)) != "FINISH":
        text = chat.answer(seat, lines)
        lines.append(chat.Line(number=len(lines) + 1, speaker=seat, text=text))
    return [(line.number, line.speaker, line.text) for line in lines]


def test_a_chat_whose_workers_are_killed_is_the_chat_that_nothing_disturbed(
    chat: ModuleType, tmp_path: Path
) -> None:
    """Each line and word of two stories is there once, in one order for all members."""
    dice = random.Random(3)
    for each in STORIES:
        run([*PYTHON, EXAMPLE / "chat.py", *each.split()], cwd=tmp_path)
    with ExitStack() as stack:
        workers = Workers(tmp_path, stack)
        for kill in range(KILLS):
            until(partial(_called, tmp_path, 4 * kill + 1))
            workers.kill(dice.randrange(len(TEAMS)))
        until(lambda: all(_ended(chat, tmp_path, each) for each in STORIES))
        workers.stop()

    for each in STORIES:
        expected = undisturbed(chat, each)
        assert [expected] * 3 == [heard(tmp_path, member, each) for member in MEMBERS]
        assert expected[1:] == shown(tmp_path, each)[:-1]
    assert 2 * chat.LINES + 1 == len(set(calls(tmp_path)))


def _ended(chat: ModuleType, folder: Path, story: str) -> bool:
    end = (chat.LINES + 2, "manager", chat.THE_END)
    return shown(folder, story)[-1:] == [end] and all(
        len(heard(folder, each, story)) > chat.LINES for each in MEMBERS
    )
