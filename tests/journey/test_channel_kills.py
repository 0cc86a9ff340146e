"""
A channel whose owner, members and late comer are killed again and again.

Fan-out, staged words, retained messages and the end of the channel stay whole.
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
    a late comer's backlog, the release of what a pause held back, and the end of each message
    that waits for the closed channel, unread or not yet due.
    """
    channel_kill_test.prepare(tmp_path)
    listeners, said = channel_kill_test.LISTENERS, channel_kill_test.SAID
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
                lambda: len(channel_kill_test.told(boxes[channel_kill_test.BOSS])) > said,
                seconds=PATIENCE,
            ), "the channel is never closed"
            people.torment(KILLS // 2)
            assert people.wait_until(
                lambda: channel_kill_test.ended(boxes.values()), seconds=PATIENCE
            ), "it never comes to an end"
            assert [] == people.fallen()

        told = channel_kill_test.told(boxes[channel_kill_test.BOSS])
        assert 0 < before, "a message came before the late one came"
        late = channel_kill_test.DELAYED
        assert list(range(1, said + late + 1)) == [n for n, _ in told]
        assert dict.fromkeys(listeners, told[:said]) == {
            name: channel_kill_test.done(boxes[name]) for name in listeners
        }
        copies = channel_kill_test.copies(boxes[channel_kill_test.BOSS])
        read = {(name, "acked"): said for name in listeners}
        lost = {(name, "dead"): late for name in (*listeners, channel_kill_test.SILENT)}
        assert read | lost | {(channel_kill_test.SILENT, "failed"): said} == copies
        assert {name: {} for name in listeners} | {
            channel_kill_test.BOSS: {"outbox": late * (len(listeners) + 1)},
            channel_kill_test.SILENT: {"inbox": said},
        } == {name: channel_kill_test.buried(box) for name, box in boxes.items()}
        assert [] == [broken for box in boxes.values() for broken in box.file.check()]
