"""A channel whose owner, members and late comer are killed again and again: fan-out, staged words and what is retained stay whole."""

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from onceward.testing import talk
from onceward.testing.kills import crew

KILLS = 80
PATIENCE = 60.0


@pytest.mark.timeout(300)
def test_a_channel_keeps_its_word_under_fire(tmp_path: Path) -> None:
    """
    Every command is done once by everybody, in order, also by who came late; the owner knows of each that it is completed.

    What a killed process was in the middle of happened whole or not at all:
    the copies of one command, an effect with its word, a late comer's backlog,
    and the release of what a pause held back.
    """
    talk.prepare(tmp_path)
    listeners = sorted(set(talk.ROLES) - {talk.BOSS})
    with ExitStack() as stack:
        boxes = {name: stack.enter_context(talk.open_box(tmp_path, name, run=False)) for name in talk.ROLES}
        with crew(tmp_path, talk.ROLES, random.Random(11)) as people:
            people.torment(KILLS // 2)
            before = len(talk.told(boxes[talk.BOSS]))
            (tmp_path / "late").touch()
            people.torment(KILLS)
            assert people.wait_until(lambda: talk.completed(boxes[talk.BOSS]), seconds=PATIENCE), "it never comes to an end"
            assert [] == people.fallen()

        told = talk.told(boxes[talk.BOSS])
        assert 0 < before, "somebody spoke before the late one came"
        assert list(range(1, talk.SAID + 1)) == [n for n, _ in told]
        assert dict.fromkeys(listeners, told) == {name: talk.done(boxes[name]) for name in listeners}
        assert {name: [] for name in boxes} == {name: box.dead_letters.list() for name, box in boxes.items()}
        assert [] == [broken for box in boxes.values() for broken in box.check()]
