"""
The protocol, searched to its last state.

Nothing twice, nothing forgotten, and always a way to finish.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proof.model.folded import folded
from tests.proof.model.model import steps
from tests.proof.model.replay import replay
from tests.proof.model.search import explore
from tests.proof.model.values import Rules, State, renamed
from tests.proof.seed import sampled

LONG = pytest.mark.skipif(sampled(), reason="a minute: not in a sample")
LARGE = os.environ.get("ONCEWARD_MODEL") == "large"
BROKEN = {
    "known": "twice",
    "horizon": "twice",
    "stream": "twice",
    "custody": "forgot",
    "retention": "twice",
    "mark": "withdrawn",
    "shrunk": "withdrawn",
}
"""Rules that are left out, and what the search says then."""
BACK = Rules(messages=2, frames=1, late=False, prunes=False, backups=1)
"""A recipient that may be put back to any earlier state of its file, once."""
RIDES = Rules(messages=2, relies=False, cancels=True, rides=True)
"""Answers whose settlement waits for a later commit of the sender, which may crash before it."""
EVERY = {
    "send",
    "pack",
    "push",
    "push_lost",
    "leave",
    "arrive",
    "refused",
    "too_large",
    "handle",
    "ask",
    "cancel",
    "tell",
    "prune",
    "repack",
}
"""Without a file that is put back no parcel is a fork."""


@pytest.mark.timeout(600)
def test_every_state_is_safe_and_can_finish(aloud: Callable[[object], None]) -> None:
    """
    Three messages, two to a parcel, with a copy that may arrive at any later time.

    Every kind of step is taken.
    """
    found = explore(Rules(relies=False, cancels=True))
    aloud(f"model: {found.count} states in {found.seconds:.0f} s")

    assert ((), EVERY) == (found.violations, set(found.taken))


@pytest.mark.parametrize(
    "rules",
    [
        Rules(messages=2, relies=False, cancels=True),
        Rules(messages=1, relies=False, replays=True),
        RIDES._replace(messages=1),
    ],
    ids=repr,
)
def test_what_is_folded_makes_no_difference(rules: Rules) -> None:
    """
    Every state of a search that folds nothing, folded, is a state of the search that folds.

    No other one is there.
    """
    whole, small = reached(rules._replace(folds=False)), reached(rules)

    assert small == {renamed(folded(state, state)) for state in whole}
    assert len(small) < len(whole) / 2


def reached(rules: Rules) -> set[State]:
    """Return every state, by a search of our own."""
    found, waiting = {State()}, [State()]
    while waiting:
        new = {after for _, after in steps(waiting.pop(), rules)} - found
        found |= new
        waiting += new
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rules", [RIDES, RIDES._replace(relies=True, late=False)], ids=repr)
def test_a_settlement_may_ride_on_a_later_commit(
    rules: Rules, aloud: Callable[[object], None]
) -> None:
    """Outcomes that are told meanwhile, and a crash before that commit, do no harm."""
    found = explore(rules)
    aloud(f"model, answers that wait: {found.count} states in {found.seconds:.0f} s")

    assert ((), {"answered", "settle", "crash"}) == (
        found.violations,
        {"answered", "settle", "crash"} & set(found.taken),
    )


@LONG
@pytest.mark.timeout(600)
def test_three_messages_with_answers_that_wait(aloud: Callable[[object], None]) -> None:
    """The same with three messages."""
    found = explore(RIDES._replace(messages=3))
    aloud(f"model, answers that wait: {found.count} states in {found.seconds:.0f} s")

    assert () == found.violations


@pytest.mark.timeout(600)
def test_a_fork_may_wait_for_a_later_commit() -> None:
    """The answer of a recipient that was put back is forgotten by a crash, and given again."""
    assert () == explore(BACK._replace(rides=True)).violations


@pytest.mark.parametrize(
    ("rule", "harm"), [("forgotten", "withdrawn"), ("half", "withdrawn"), ("unsent", "never sent")]
)
def test_a_short_way_that_is_too_short_does_harm(rule: str, harm: str) -> None:
    """
    A crash that forgets the parcel whose answer waits, with its lease, is found.

    So is a settlement in two commits, and a parcel of a send that was rolled back.
    """
    found = explore(RIDES._replace(broken=rule))

    assert found.path
    assert harm in found.violations[0]


def test_one_message_may_be_replayed_for_ever() -> None:
    """A dead letter that is put back again and again takes effect once."""
    found = explore(Rules(messages=1, replays=True, relies=False))

    assert ((), EVERY - {"cancel", "too_large"} | {"replay"}) == (
        found.violations,
        set(found.taken),
    )


def test_a_recipient_that_is_put_back_is_noticed() -> None:
    """A recipient that lost completed messages takes nothing new, and all can finish."""
    found = explore(BACK)

    steps_of_it = {"backup", "restore", "forked"}
    assert ((), steps_of_it) == (found.violations, steps_of_it & set(found.taken))


def test_nothing_else_is_taken_for_it() -> None:
    """
    Where no file is put back, no parcel is a fork, however late a copy of one comes.

    What epochs build on is always there.
    """
    assert "forked" not in explore(Rules(messages=2, prunes=False, frames=1)).taken


RUNNING = Rules(messages=2, relies=False, cancels=True, asks=True, claims=True)
"""Messages that are cancelled where they are, also while their handlers run."""


@pytest.mark.timeout(600)
def test_a_message_is_cancelled_while_its_handler_runs(aloud: Callable[[object], None]) -> None:
    """What was said to be cancelled takes no effect, and the sender learns one of both."""
    found = explore(RUNNING)
    aloud(f"model, handlers that take time: {found.count} states in {found.seconds:.0f} s")

    assert ((), {"claim", "decide", "handle"}) == (
        found.violations,
        {"claim", "decide", "handle"} & set(found.taken),
    )


@pytest.mark.parametrize(
    ("rule", "harm"),
    [
        ("after", "cancelled, and took effect"),
        ("unfenced", "cancelled, and took effect"),
        ("unmarked", "withdrawn"),
    ],
)
def test_cancelling_without_its_rule_does_harm(rule: str, harm: str) -> None:
    """
    A recipient that says so after the effect is found, and one that goes on with the handler.

    So is one that keeps no record of a message that may still come.
    """
    found = explore(RUNNING._replace(broken=rule))

    assert found.path
    assert harm in found.violations[0]


STEPS = RUNNING._replace(steps=True, waits=True)
"""Handlers that call a step and wait for a message, and die or lose their lease anywhere."""
ALONE = STEPS._replace(late=False)
PATHS = {"found", "expire", "store_late", "suspend", "take", "time_out", "decide"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "rules", [STEPS, pytest.param(ALONE._replace(waits=False), marks=LONG)], ids=repr
)
def test_a_handler_goes_on_after_its_steps(rules: Rules, aloud: Callable[[object], None]) -> None:
    """
    A step writes once, and its function is not called again after its result was used.

    A wait gets its message in each order of arrival, crash and pruning.
    """
    found = explore(rules)
    aloud(f"model, steps and waits: {found.count} states in {found.seconds:.0f} s")

    expected = PATHS if rules.waits else PATHS - {"suspend", "take", "time_out"}
    assert ((), expected) == (found.violations, PATHS & set(found.taken))


@pytest.mark.parametrize(
    ("rule", "rules", "harm"),
    [
        ("early", ALONE, "its function never gave"),
        ("deleted", ALONE, "called after its result was used"),
        ("unfenced_step", ALONE, "under a message that had ended"),
        ("unfenced_step", ALONE._replace(asks=False), "written twice"),
        ("looked", ALONE, "no way to finish"),
        ("taken", ALONE, "no way to finish"),
    ],
)
def test_steps_without_their_rule_do_harm(rule: str, rules: Rules, harm: str) -> None:
    """
    A result that is stored before its function ended, or deleted before the mark, is found.

    So are one that no lease fences, a wait that looks in a commit before it ends the call, and
    one that takes its message in a commit before its result.
    """
    found = explore(rules._replace(broken=rule))

    assert found.path
    assert harm in found.violations[0]


LATER = Rules(messages=2, late=False, cancels=True, delays=True)
"""Messages that leave after later ones, so that the recipient's horizon has passed them."""


def test_what_never_left_is_never_taken_for_old() -> None:
    """A message that was in no parcel is accepted, whatever was pruned, in every epoch."""
    found = explore(LATER)

    assert ((), {"pack_later", "prune", "repack", "cancel"}) == (
        found.violations,
        {"pack_later", "prune", "repack", "cancel"} & set(found.taken),
    )


@pytest.mark.parametrize(
    ("rule", "harm"), [("every", "never left was refused"), ("mark", "withdrawn")]
)
def test_marks_that_are_not_exact_do_harm(rule: str, harm: str) -> None:
    """Too many marks refuse what is new; too few withdraw what the recipient has."""
    found = explore(LATER._replace(broken=rule))

    assert found.path
    assert harm in found.violations[0]


@pytest.mark.parametrize(("rule", "harm"), [("mark", "order"), ("older", "twice")])
def test_a_message_that_passes_for_new_does_harm(rule: str, harm: str) -> None:
    """
    It passes for new without its mark, or after a late copy of an older epoch was taken.

    The recipient has pruned its own mark of it, so it happens again, behind later ones.
    """
    found = explore(Rules(messages=2, broken=rule))

    assert found.path
    assert harm in found.violations[0]


@pytest.mark.skipif(not LARGE, reason="minutes to hours: ONCEWARD_MODEL=large")
@pytest.mark.timeout(0)
def test_four_messages(aloud: Callable[[object], None]) -> None:
    """The same with one more, by command."""
    found = explore(Rules(messages=4, relies=False), most=50_000_000)
    aloud(f"model: {found.count} states in {found.seconds:.0f} s")

    assert () == found.violations


@pytest.mark.timeout(600)
def test_all_that_is_said() -> None:
    """The same with the bases of epochs, late copies, retention and backups."""
    assert () == explore(Rules(messages=1, backups=1), most=50_000_000).violations


@pytest.mark.skipif(sampled(), reason="five minutes: not in a sample")
@pytest.mark.timeout(1800)
def test_all_that_is_said_of_two_messages() -> None:
    """The same with a second message, and cancelled ones instead of backups."""
    assert () == explore(Rules(messages=2, cancels=True), most=50_000_000).violations


@pytest.mark.skipif(not LARGE, reason="minutes: ONCEWARD_MODEL=large")
@pytest.mark.timeout(0)
def test_all_that_is_said_with_longer_parcels() -> None:
    """A recipient that is put back and forgets, two messages to a parcel, by command."""
    rules = BACK._replace(frames=2, prunes=True, cancels=True)

    assert () == explore(rules, most=50_000_000).violations


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_that_is_left_out_is_missed(rule: str) -> None:
    """The search is not blind: without the rule it shows the shortest way to harm."""
    found = explore(Rules(messages=2, relies=False, cancels=True, broken=rule))

    assert found.path
    assert BROKEN[rule] in found.violations[0]


@pytest.mark.parametrize(
    ("rule", "harm"), [("relied", "no peer noticed"), ("fork", "no way to finish")]
)
def test_a_rollback_without_its_rule_does_harm(rule: str, harm: str) -> None:
    """
    A recipient that was put back goes unnoticed where epochs build on nothing.

    Its sender waits for ever where no fork is heard.
    """
    found = explore(BACK._replace(broken=rule))

    assert found.path
    assert harm in found.violations[0]


@pytest.mark.parametrize("seed", range(12))
def test_files_cancel_what_the_model_cancels(seed: int, tmp_path: Path) -> None:
    """The same with requests to cancel what has left."""
    rules = Rules(prunes=False, cancels=True, asks=True)

    assert [] == replay(tmp_path, seed=seed, length=60, rules=rules)


@pytest.mark.parametrize("seed", range(24))
def test_files_do_what_the_model_says(seed: int, tmp_path: Path) -> None:
    """Random walks of the model, taken by the real functions on two files, agree at each step."""
    rules = (
        Rules(messages=1, replays=True)
        if seed % 4 == 0
        else Rules(backups=seed % 3, cancels=seed % 2 == 1)
    )

    assert [] == replay(tmp_path, seed=seed, length=60, rules=rules)
