"""The commit that quick handlers share, seen at the moment when the heartbeat would make it."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from onceward import Postbox
from onceward.core.handle import inbox
from onceward.core.handle.commit_batch import HandlerCommitBatch
from onceward.core.handle.inbox import ClaimRequest, SettledMessage
from onceward.message.vocabulary import Done


class Meanwhile(list[SettledMessage]):
    """
    The ended messages; the first look at them is interrupted by another thread.

    It goes on when that thread is through.
    """

    def __init__(self, ended: list[SettledMessage], other: Callable[[], object]) -> None:
        super().__init__(ended)
        self._others = [Thread(target=other)]

    def __len__(self) -> int:
        while self._others:
            other = self._others.pop()
            other.start()
            other.join()
        return super().__len__()


def test_the_heartbeat_takes_nothing_from_under_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A worker that asks whether it is time to commit gets an answer.

    It does so also where the heartbeat comes in between; the message ends once.
    """
    with (
        Postbox(tmp_path / "bob.db", agent="bob", start=False) as bob,
        Postbox(tmp_path / "ann.db", agent="ann", start=False) as ann,
    ):
        sent = ann.send("bob", 1)
        ann.run_until_idle()
        wanted = ClaimRequest(messages=1, lanes=1, types=None)
        [[leased]] = bob._db.write(
            lambda tx: inbox.claim(tx, wanted, owner="w", until=tx.now + 9000)
        )
        group = HandlerCommitBatch(
            bob._db, share_for=0.0, rest_for=lambda _: 0, told=lambda _: None
        )
        monkeypatch.setattr(group, "_ended", Meanwhile([], group.heartbeat))

        assert group.end(leased, Done("processed"), rest=([leased], 1), events=[])
        group.commit()

        assert [(sent, "processed")] == bob._db.read("SELECT id, state FROM _onceward_inbox")
