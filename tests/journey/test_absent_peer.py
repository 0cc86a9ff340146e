"""What an operator sees of messages for a peer that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceward import Tuning
from onceward.metrics import FileMetrics, new_registry, text_of

if TYPE_CHECKING:
    from tests.journey.conftest import World

DOCS = Path(__file__).resolve().parents[2] / "docs" / "how-to"
GAUGE = re.compile(r'^(\w+)\{agent="shop"\} (\S+)$', re.MULTILINE)
MANY = 101


def test_the_gauges_show_what_an_absent_peer_has_not_stored(world: World) -> None:
    """Pending are all messages that the peer has not stored, those of its stored parcel, too."""
    shop = world.open("shop", hold_unknown=True, tuning=Tuning(parcel_max_messages=40))
    for n in range(MANY):
        shop.send("billing", n)
    for _ in range(4):
        world.wait(200)
    registry = new_registry()
    registry.register(FileMetrics([world.path("shop")]))
    found = dict(GAUGE.findall(text_of(registry)[1].decode()))

    assert (MANY, MANY, f"{MANY}.0") == (
        shop.file.stats()["pending"],
        shop.file.health().pending,
        found["onceward_outbox_pending"],
    )
    assert 40 == shop.file.stats()["sending"]
    assert "1.0" == found["onceward_peers_failing"]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_no_page_asks_for_pending_rows_alone(page: Path) -> None:
    """A documented query or command for what has not arrived names the rows being pushed, too."""
    text = page.read_text(encoding="utf-8")
    alone = re.findall(r"FROM onceward_outbox[^;`\"]*?state = 'pending'", text)

    assert [] == alone + re.findall(r"--state pending", text)
