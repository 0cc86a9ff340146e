"""Values that the library returns: a field whose values are a closed set has it as its type."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

import onceward
import onceward.types
from onceward.api.peers import PeerInfo
from onceward.core.rows.dead_letters import DeadLetter
from onceward.features.channels.directory import ChannelInfo
from onceward.features.limits.api import LimitInfo
from onceward.features.limits.stored import DropRecord
from onceward.features.runs.api import RunInfo
from onceward.message import events
from onceward.message.handler_work import Acknowledgment
from onceward.message.names import Member
from onceward.message.queue_modes import QueueInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOSED: Final = frozenset({
    "aborted", "box", "breaker", "durability", "kind", "mode", "origin", "outcome", "overflow",
    "policy", "priority", "role", "scope", "state", "status",
})  # fmt: skip
"""Names of fields whose values are closed sets."""
OPEN: Final = {
    ("Dropped", "policy"): "may be a word of the recipient's own",
    ("Start", "kind"): "an argument, which is checked",
    ("MessageRecord", "kind"): "comes from the frame of a peer",
    ("DeadLetter", "kind"): "as above",
    ("Cancellation", "state"): "is told by the recipient",
    ("Ended", "state"): "is the recipient's state of the message, or its outcome at the sender",
    ("Dropped", "scope"): "names a session or lane, or says what the recipient said",
}
"""Fields of such a name that hold any text, and why."""
MORE: Final = (
    Acknowledgment, ChannelInfo, DeadLetter, DropRecord, LimitInfo, Member, PeerInfo,
    QueueInfo, RunInfo,
)  # fmt: skip
"""Returned classes that need no import of their own."""


class Sample:
    """Fields that the search has to judge."""

    state: str
    mode: Literal["a", "b"] | None
    role: str | None
    scope: Any
    name: str


def test_a_closed_set_is_a_literal() -> None:
    """No field with a name of a closed set is any text; a checker knows each value."""
    found = {(kind.__name__, name) for kind in _returned() for name in _any_text(kind)}

    assert set(OPEN) == found


@pytest.mark.parametrize("expected", [["state", "role"]])
def test_the_search_finds_any_text(expected: list[str]) -> None:
    """It sees ``str``, alone or beside None, and no Literal."""
    assert expected == list(_any_text(Sample))


def _returned() -> Iterator[type]:
    public = [
        getattr(module, name) for module in (onceward, onceward.types) for name in module.__all__
    ]
    for kind in (*public, *vars(events).values(), *MORE):
        if inspect.isclass(kind) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
            yield kind


def _any_text(kind: type) -> Iterator[str]:
    for base in reversed(kind.__mro__):
        for name, said in inspect.get_annotations(base).items():
            text = getattr(said, "__forward_arg__", str(said))  # of a named tuple
            if name in CLOSED and re.fullmatch(r"str( \| None)?", text):
                yield name
