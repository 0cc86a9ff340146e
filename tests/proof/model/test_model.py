"""The protocol, searched to its last state: nothing twice, nothing forgotten, and always a way to finish."""

import os
from pathlib import Path

import pytest

from onceward.testing.protocol import Rules, explore, replay

LARGE = os.environ.get("ONCEWARD_MODEL") == "large"
BROKEN = {
    "known": "twice",
    "horizon": "twice",
    "stream": "twice",
    "custody": "forgot",
    "retention": "twice",
}
"""Rules that are left out, and what the search says then."""
EVERY = {"send", "pack", "push", "push_lost", "leave", "arrive", "refused", "handle", "ask", "tell", "prune", "repack"}


def test_every_state_is_safe_and_can_finish() -> None:
    """Two messages with a parcel that may arrive at any later time; every kind of step is taken."""
    found = explore(Rules(messages=2))

    assert ((), EVERY) == (found.violations, set(found.taken))


def test_three_messages_in_parcels_of_two() -> None:
    """Three messages, two to a parcel; answers are lost, but no copy arrives later: that takes minutes, by command."""
    assert () == explore(Rules(late=False)).violations


def test_one_message_may_be_replayed_for_ever() -> None:
    """A dead letter that is put back again and again takes effect once."""
    found = explore(Rules(messages=1, replays=True))

    assert ((), EVERY | {"replay"}) == (found.violations, set(found.taken))


@pytest.mark.skipif(not LARGE, reason="minutes to hours: ONCEWARD_MODEL=large")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("messages", [3, 4])
def test_more_messages(messages: int) -> None:
    """The same with more messages, by command."""
    assert () == explore(Rules(messages=messages, late=messages < 4), most=50_000_000).violations


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_that_is_left_out_is_missed(rule: str) -> None:
    """The search is not blind: without the rule it shows the shortest way to harm."""
    found = explore(Rules(messages=2, broken=rule))

    assert found.path
    assert BROKEN[rule] in found.violations[0]


@pytest.mark.parametrize("seed", range(16))
def test_files_do_what_the_model_says(seed: int, tmp_path: Path) -> None:
    """Random walks of the model, taken by the real functions on two files, agree after every step."""
    rules = Rules(messages=1, replays=True) if seed % 4 == 0 else Rules()

    assert [] == replay(tmp_path, seed=seed, length=60, rules=rules)
