"""An error is never its own cause: a tool that walks the chain comes to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from onceward import Postbox
from onceward.file import read_only
from onceward.message.record import Ticket

LONGEST = 10


def in_a_block(box: Postbox, work: Callable[..., object]) -> None:
    """Do something in a transaction."""
    with box.begin() as tx:
        work(tx)


def read(box: Postbox, sql: str) -> None:
    """Read the file as another program does."""
    with read_only.opened(box.file.path) as reader:
        reader.rows(sql)


FAILS: dict[str, Callable[[Postbox], object]] = {
    "query": lambda box: box.query("SELECT nothing"),
    "read": lambda box: read(box, "SELECT nothing"),
    "execute": lambda box: in_a_block(box, lambda tx: tx.execute("SELECT nothing")),
    "executemany": lambda box: in_a_block(box, lambda tx: tx.executemany("NOTHING", [()])),
    "send": lambda box: in_a_block(box, lambda tx: tx.send("b", 2, key="k")),
    "request": lambda box: in_a_block(box, lambda tx: tx.request("b", 2, key="k")),
    "publish": lambda box: in_a_block(box, lambda tx: tx.publish("news", 2, key="k")),
    "send alone": lambda box: box.send("b", 2, key="k"),
    "publish alone": lambda box: box.publish("news", 2, key="k"),
    "result": lambda box: box.result(Ticket("none", "b"), reply=int),
}


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, as tools that report errors do."""
    while error is not None:
        yield error
        error = error.__cause__


@pytest.mark.parametrize("name", FAILS)
def test_the_chain_of_causes_ends(tmp_path: Path, name: str) -> None:
    """It has each error once."""
    with (
        Postbox(tmp_path / "b.db", agent="b", start=False) as b,
        Postbox(tmp_path / "a.db", agent="a", start=False) as box,
    ):
        b.agents.subscribe("news")
        box.send("b", 1, key="k")
        with pytest.raises(Exception) as failed:  # noqa: PT011 - any
            FAILS[name](box)
        chain = list(islice(causes(failed.value), LONGEST))

    assert len(chain) == len(set(map(id, chain)))
