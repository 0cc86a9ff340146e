"""Claims of many messages: what they will find is read and decoded before the lock is taken."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any, Self

import pytest
from pydantic import model_validator

from onceward import Agent, Msg, Postbox
from onceward.core.handle import claim, commit_batch, worker
from onceward.core.handle.claim import SAME_ROW, ClaimRequest
from onceward.core.handle.commit_batch import HandlerCommitBatch
from onceward.core.rows import inbox, lanes

WANTED = ClaimRequest(messages=5)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """A postbox with five messages in one lane of its inbox."""
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent="b", start=False) as recipient,
    ):
        sender.send_many([("b", number) for number in range(5)])
        sender.run_until_idle()
        yield recipient


def ahead(box: Postbox) -> ClaimRequest:
    """Return a request for five messages, and what was read ahead of it."""
    rows = claim.read_ahead(box._db.read, WANTED)
    return ClaimRequest(messages=5, ahead={SAME_ROW(row): row for row in rows})


def claimed(box: Postbox, request: ClaimRequest) -> list[int]:
    """Claim, and return the sequences of the messages."""
    found = box._db.write(lambda tx: claim.claim(tx, request, owner="w", until=tx.now + 9000))
    return [each.seq for lane in found for each in lane]


def test_a_claim_takes_what_was_read_ahead(box: Postbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that were read ahead of a claim are not read again under the lock."""
    request = ahead(box)
    monkeypatch.setattr(inbox, "NEXT", "SELECT no_row_is_read_again")

    assert [1, 2, 3, 4, 5] == claimed(box, request)


def test_a_message_that_ended_meanwhile_is_not_claimed(box: Postbox) -> None:
    """A message that was handled after it was read ahead is not handed out a second time."""
    request = ahead(box)
    taken = box.receive(timeout=0)
    assert taken is not None
    taken.ack()

    assert [2, 3, 4, 5] == claimed(box, request)


def test_a_message_that_was_tried_meanwhile_has_its_number_of_attempts(box: Postbox) -> None:
    """A message whose attempts changed after it was read ahead is read again."""
    request = ahead(box)
    box._db.write(lambda tx: inbox.count_attempts(tx, 1, 1))
    found = box._db.write(lambda tx: claim.claim(tx, request, owner="w", until=tx.now + 9000))

    assert [2, 1, 1, 1, 1] == [each.attempt for each in found[0]]


def test_messages_that_came_later_wait_for_the_next_claim(box: Postbox) -> None:
    """A claim that finds more than was read ahead takes the messages that were."""
    rows = claim.read_ahead(box._db.read, ClaimRequest(messages=3))
    request = ClaimRequest(messages=5, ahead={SAME_ROW(row): row for row in rows})

    assert [1, 2, 3] == claimed(box, request)


def test_messages_that_are_claimed_alone_are_not_read_ahead(box: Postbox) -> None:
    """A message that a process may have died of is not decoded before its attempt is counted."""
    box._db.write(lambda tx: tx.run(lanes.CAREFUL, (3, 1)))

    assert [] == claim.read_ahead(box._db.read, WANTED)


def test_bodies_are_decoded_before_the_lock_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker decodes the bodies of a backlog before it takes the lock of the file."""
    for module in (commit_batch, worker):
        monkeypatch.setattr(module, "CLAIM_WAITS", 60.0)
    for limit in ("QUICK", "SLOW"):  # a busy machine changes no size of a claim
        monkeypatch.setattr(worker, limit, 60.0)
    locked, ended = list[bool](), Event()
    batches = list[HandlerCommitBatch]()

    class Listed(HandlerCommitBatch):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            batches.append(self)

    monkeypatch.setattr(worker, "HandlerCommitBatch", Listed)

    class Probe(Msg, type="probe"):
        number: int

        @model_validator(mode="after")
        def look(self) -> Self:
            locked.append(any(each._tx is not None for each in batches))
            return self

    agent = Agent("b")

    @agent.on(Probe)
    def handle(body: Probe) -> None:
        if body.number == 199:
            ended.set()

    bodies: list[tuple[str, Any]] = [("b", {"number": number}) for number in range(200)]
    with Postbox(tmp_path / "b.db", agent="b", start=False):
        pass
    with Postbox(tmp_path / "a.db", agent="a", start=False) as sender:
        sender.send_many(bodies, type="probe")
        sender.run_until_idle()
    with Postbox(tmp_path / "b.db", agent=agent):
        assert ended.wait(60)

    assert 200 == len(locked)
    assert sum(locked) <= 4 + 16  # the claims before the first of many messages
