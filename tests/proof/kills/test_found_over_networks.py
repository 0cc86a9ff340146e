"""
A restored sender finds what it had sent at a peer of another home, over each network.

Pages go as far as the bodies of messages: one that is larger than what the way carries is left out.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.proof.kills.test_lost_disks import comes_true, is_quiet, lose, opened, prepared
from tests.transports.nats_server import nats_server

from onceward import Agent, Postbox, Reject
from onceward.errors import Conflict
from onceward.file.backup import copy_file

if TYPE_CHECKING:
    from pathlib import Path

LARGE = 400_000
"""Characters of a body, each of which takes eight in a page of a parcel."""
BODIES: dict[str, Any] = {
    "plain": 1,
    "refused": 2,
    "large": "x" * LARGE,
    "quotes": '"' * (LARGE // 2),
}


def billing() -> Agent:
    """Return an agent that refuses one type and does all others."""
    agent = Agent("billing")

    @agent.on("*")
    def work(_: object) -> None: ...

    @agent.on("refused")
    def refuse(_: object) -> None:
        raise Reject("no")

    return agent


@pytest.mark.proof
@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["http", "poll", "nats"])
def test_what_was_sent_is_found_over_a_network(tmp_path: Path, way: str) -> None:
    """Each message has its outcome again, by id and by key, and none is sent a second time."""
    with ExitStack() as stack:
        server = stack.enter_context(nats_server(tmp_path)).url() if way == "nats" else ""
        files = prepared(tmp_path, way, server)
        stack.enter_context(opened(tmp_path, billing(), way))
        copy_file(files["shop"], tmp_path / "backup")
        with opened(tmp_path, "shop", way) as shop:
            ids = {
                kind: shop.send("billing", body, type=kind, key=kind)
                for kind, body in BODIES.items()
            }
            ids |= {str(n): shop.send("billing", n, type="job") for n in range(300)}
            assert comes_true(partial(is_quiet, {"shop": files["shop"]}))
            before = states(shop, ids)
        lose(files["shop"], tmp_path / "backup")
        shop = stack.enter_context(opened(tmp_path, "shop", way))

        assert comes_true(lambda: states(shop, ids) == before), states(shop, ids)
        assert "failed" == before.pop("refused")
        assert {"acked"} == set(before.values())
        assert ids["plain"] == shop.send("billing", 1, type="plain", key="plain")
        with pytest.raises(Conflict):
            shop.send("billing", 2, type="plain", key="plain")
        assert [] == shop.query(
            "SELECT id FROM onceward_outbox WHERE attempts > 0 AND type = 'job'"
        )


def states(box: Postbox, ids: dict[str, str]) -> dict[str, str]:
    """Return what the file says of each message."""
    return {name: box.state(each) for name, each in ids.items()}
