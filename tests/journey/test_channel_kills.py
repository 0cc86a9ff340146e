"""
A channel whose owner, members and late comer are killed again and again.

Fan-out, staged words and retained messages stay whole.
"""

import random
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.proof.kills import channel_kill_test

from onceward.testing.kills import crew

KILLS = 80
PATIENCE = 60.0

pytestmark = pytest.mark.proof


@pytest.mark.timeout(300)
def test_a_channel_keeps_its_word_under_fire(tmp_path: Path) -> None:
    """
    Each member does every command once, in order, and so does the late comer.

    The owner knows of each command that it is completed. What a killed process was in the
    middle of happened whole or not at all: the copies of one command, an effect with its word,
    a late comer's backlog, and the release of what a pause held back.
    """
    channel_kill_test.prepare(tmp_path)
    listeners = sorted(set(channel_kill_test.ROLES) - {channel_kill_test.BOSS})
    with ExitStack() as stack:
        boxes = {
            name: stack.enter_context(channel_kill_test.open_box(tmp_path, name, start=False))
            for name in channel_kill_test.ROLES
        }
        with crew(tmp_path, channel_kill_test.ROLES, random.Random(11)) as people:
            people.torment(KILLS // 2)
            before = len(channel_kill_test.told(boxes[channel_kill_test.BOSS]))
            (tmp_path / "late").touch()
            people.torment(KILLS)
            assert people.wait_until(
                lambda: channel_kill_test.completed(boxes[channel_kill_test.BOSS]), seconds=PATIENCE
            ), "it never comes to an end"
            assert [] == people.fallen()

        told = channel_kill_test.told(boxes[channel_kill_test.BOSS])
        assert 0 < before, "a message came before the late one came"
        assert list(range(1, channel_kill_test.SAID + 1)) == [n for n, _ in told]
        assert dict.fromkeys(listeners, told) == {
            name: channel_kill_test.done(boxes[name]) for name in listeners
        }
        assert {name: [] for name in boxes} == {
            name: box.dead_letters.list() for name, box in boxes.items()
        }
        assert [] == [broken for box in boxes.values() for broken in box.file.check()]
