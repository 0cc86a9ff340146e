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


def rows(folder: Path, agent: str, statement: str) -> list[Any]:
    """Return rows of an agent's file."""
    with Postbox(folder / f"{agent}.db", agent=agent, start=False) as box:
        return box.query(statement)


def heard(folder: Path, agent: str) -> list[Any]:
    """Return the lines that an agent has heard, in the order in which it heard them."""
    return rows(folder, agent, "SELECT number, speaker, text FROM lines ORDER BY rowid")


def shown(folder: Path) -> list[Any]:
    """Return the lines of the screen, put together from their words."""
    words = rows(folder, "screen", "SELECT line, speaker, text FROM words ORDER BY line, position")
    return [
        (number, speaker, " ".join(text for _, _, text in each))
        for (number, speaker), each in groupby(words, key=itemgetter(0, 1))
    ]


def story(chat: ModuleType, opening: str) -> list[Any]:
    """Return the lines of the chat, as they are if no process dies."""
    lines = [chat.Line(number=1, speaker="user", text=opening)]
    while (seat := chat.answer("manager", lines)) != "FINISH":
        text = chat.answer(seat, lines)
        lines.append(chat.Line(number=len(lines) + 1, speaker=seat, text=text))
    return [(line.number, line.speaker, line.text) for line in lines]


def test_a_chat_whose_workers_are_killed_is_the_chat_that_nothing_disturbed(
    chat: ModuleType, tmp_path: Path
) -> None:
    """Every line and word is there once, in one order for all members; no file lacks a message."""
    dice = random.Random(3)
    run([*PYTHON, EXAMPLE / "chat.py", "a", "lighthouse"], cwd=tmp_path)
    with ExitStack() as stack:
        workers = Workers(tmp_path, stack)
        for kill in range(KILLS):
            until(partial(_called, tmp_path, 2 * kill + 1))
            workers.kill(dice.randrange(len(TEAMS)))
        until(lambda: all(len(heard(tmp_path, each)) > chat.LINES for each in MEMBERS))
        until(lambda: shown(tmp_path)[-1:] == [(chat.LINES + 2, "manager", chat.THE_END)])
        workers.stop()

    expected = story(chat, "Write about a lighthouse.")
    assert [expected] * 3 == [heard(tmp_path, each) for each in MEMBERS]
    assert expected[1:] == shown(tmp_path)[:-1]
    assert 2 * chat.LINES + 1 == len(set(calls(tmp_path)))
