"""Half a surrogate pair is not a character: every call that takes text refuses it as invalid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward import Msg, Postbox
from onceward.errors import InvalidArgument, InvalidMessage, StoreError

HALF: Any = "a\ud800"


class Note(Msg):
    """A message with text that pydantic does not look at."""

    body: dict[str, Any] | str


def _statement(box: Postbox, sql: str, *values: object) -> object:
    with box.begin() as tx:
        return tx.execute(sql, values)


SENDS: dict[str, Callable[[Postbox], object]] = {
    "text": lambda box: box.send("b", HALF),
    "dict": lambda box: box.send("b", {"a": [HALF]}),
    "key of a dict": lambda box: box.send("b", {HALF: 1}),
    "model": lambda box: box.send("b", Note(body={"a": HALF})),
    "recipient": lambda box: box.send(HALF, 1),
    "session": lambda box: box.session(HALF),
    "type": lambda box: box.send("b", 1, type=HALF),
    "topic": lambda box: box.publish(HALF, 1),
    "key": lambda box: box.send("b", 1, key=HALF),
    "message_id": lambda box: box.send("b", 1, message_id=HALF),
    "ordering_key": lambda box: box.send("b", 1, ordering_key=HALF),
    "header": lambda box: box.send("b", 1, headers={"tenant": HALF}),
}
CALLS: dict[str, Callable[[Postbox], object]] = {
    "state": lambda box: box.state(HALF),
    "cancel": lambda box: box.cancel(HALF),
    "thread": lambda box: box.thread(HALF),
    "result": lambda box: box.result(HALF, reply=str),
    "history": lambda box: box.history(sender=HALF),
    "history content": lambda box: box.history(content=HALF),
    "history session": lambda box: box.session("s").history(correlation_id=HALF),
    "tail": lambda box: box.sessions.tail(HALF),
    "expire": lambda box: box.file.expire(HALF),
    "status": lambda box: box.sessions.stats(HALF),
    "poll": lambda box: box.sessions.poll(HALF),
    "receive": lambda box: box.receive(HALF),
    "query": lambda box: box.query("SELECT ?", (HALF,)),
    "statement": lambda box: _statement(box, HALF),
    "binding": lambda box: _statement(box, "SELECT ?", HALF),
    "dead letter": lambda box: box.dead_letters.replay(HALF),
    "peer": lambda box: box.peers.remove(HALF),
    "limit": lambda box: box.limits.remove(HALF),
    "queue": lambda box: box.runs.reorder("s", [HALF]),
    "mailbox": lambda box: box.mailboxes.create(HALF),
}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """Return a postbox that knows every recipient."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as made:
        yield made


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_message_with_half_a_pair_is_invalid(
    box: Postbox, send: Callable[[Postbox], object]
) -> None:
    """Nothing is written, and the error can be printed."""
    with pytest.raises(InvalidMessage) as caught:
        send(box)

    assert str(caught.value) == str(caught.value).encode().decode()
    assert (0, []) == (box.file.stats()["enqueued"], box.file.check())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_argument_with_half_a_pair_is_invalid(
    box: Postbox, call: Callable[[Postbox], object]
) -> None:
    """No call raises an error of the encoder, or takes the file for damaged."""
    with pytest.raises(InvalidArgument) as caught:
        call(box)

    assert str(caught.value) == str(caught.value).encode().decode()
    assert [] == box.file.check()


def test_a_path_with_half_a_pair_is_refused(tmp_path: Path) -> None:
    """A name that the file system cannot hold is an error of ours, too."""
    with pytest.raises(StoreError) as caught:
        Postbox(f"{tmp_path}/{HALF}.db", agent="a", start=False)

    assert str(caught.value) == str(caught.value).encode().decode()
