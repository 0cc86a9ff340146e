"""Events are values: equal by kind and fields, shown with all of them, never changed."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from onceward.message.events import Acked, Event, Retried, Sent


def retried(**changed: object) -> Retried:
    """Return an event of one message."""
    given: dict[str, object] = {
        "agent": "shop",
        "at": 1,
        "message_id": "m",
        "peer": "billing",
        "attempt": 1,
        "error": "e",
        "due_at": 2,
    }
    return Retried(**(given | changed))  # type: ignore[arg-type]  # the test's own words


@pytest.mark.parametrize(
    "field", ["agent", "at", "message_id", "peer", "attempt", "error", "due_at"]
)
def test_facts_are_equal_by_every_field(field: str) -> None:
    """The same fact twice is one fact, and any field that differs makes another."""
    assert (True, 1) == (retried() == retried(), len({retried(), retried()}))
    assert (True, 2) == (
        retried() != retried(**{field: "other"}),
        len({retried(), retried(**{field: "other"})}),
    )


def test_kinds_are_told_apart() -> None:
    """What was sent is not what was acked, whatever else they share."""
    named: dict[str, Any] = {"agent": "shop", "message_id": "m", "peer": "billing"}
    sent: Event = Sent(at=1, **named)
    acked: Event = Acked(at=1, **named)

    assert sent != acked
    assert 2 == len({sent, acked})


def test_a_fact_is_shown_with_everything_that_is_known() -> None:
    """A printed event can be read, its own fields included."""
    assert (
        "Retried(agent='shop', at=1, message_id='m', peer='billing', session='', type='',"
        " attempt=1, error='e', due_at=2, took=None)"
    ) == repr(retried())


def test_a_fact_is_never_changed() -> None:
    """Hooks share what they hear."""
    fact = retried()
    with pytest.raises(FrozenInstanceError):
        fact.at = 2  # type: ignore[misc]
