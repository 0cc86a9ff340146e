"""
Power cuts: what a ``safe`` file promises survives every one of them.

What promises less is found out.

The seed is fixed and printed; ``ONCEWARD_SEED`` chooses another.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from tests.proof.power_cut.explorer import explore
from tests.proof.power_cut.workload import LiveTown, Town
from tests.proof.seed import proof_seed, size

STATES = size(8_000, 200)
STATES_TWO_DEEP = size(2_700, 80)
FOUND_WITHIN = 60.0
SEED = proof_seed()
TRANSPORTS = ("memory", "file")
Transport = Literal["memory", "file"]

pytestmark = pytest.mark.timeout(1200)  # more than a hang; how long it takes depends on the machine
"""
Weak profiles are looked for under a seed of their own.

Whether a sample finds them must not depend on it.
"""


@pytest.mark.parametrize(
    ("transport", "engines"), [("memory", True), ("file", True), ("memory", False)]
)
def test_safe_files_survive(
    transport: Transport, engines: bool, tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """
    Cut anywhere, in any way, with engines that share commits and without.

    Nothing acknowledged is lost, nothing happens twice or out of order, and life goes on.
    """
    town = Town(SEED, transport=transport, engines=engines)
    verdict = explore(town, states=STATES, keep=tmp_path)
    aloud(verdict)

    assert () == verdict.violations
    assert (
        verdict.count >= STATES * 0.95
    )  # neighbours may have drawn the same image in two processes


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_that_are_handled_as_they_arrive_survive(
    transport: Transport, tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """One commit stores, handles and settles them, and the answer has the receipt."""
    verdict = explore(
        Town(SEED, transport=transport, steps=30, brisk=True), states=STATES, keep=tmp_path
    )
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= STATES * 0.95


def test_batches_survive(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """Messages that share one call have their effects, verdicts and replies together, once."""
    states = size(2_000, 100)
    verdict = explore(Town(SEED, batch=True), states=states, keep=tmp_path)
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= states * 0.95


@pytest.mark.parametrize("depth", [1, 2])
def test_groups_survive(depth: int, tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """Lanes that wait for the turn or the rate of their group are served after each cut."""
    states = size(2_000, 100, "ONCEWARD_STATES") // depth
    verdict = explore(Town(SEED, keyed=True), states=states, depth=depth, keep=tmp_path)
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= states * 0.95


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_safe_files_survive_two_deep(
    transport: Transport, tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """
    Cut or killed, started again, and cut while it recovers and goes on.

    Still nothing is lost.
    """
    verdict = explore(
        Town(SEED, transport=transport), states=STATES_TWO_DEEP, depth=2, keep=tmp_path
    )
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= STATES_TWO_DEEP * 0.95


@pytest.mark.parametrize(
    ("weak", "kinds"),
    [
        (Town(7, near="fast", far="fast"), {"LOST_ACK", "LOST_IN_TRANSIT"}),
        (Town(7, far="fast", accept_weaker=True), {"LOST_CUSTODY"}),
        (Town(7, mutants=("delete-journal",)), {"LOST_ACK", "LOST_IN_TRANSIT"}),
        (Town(7, mutants=("attach",), engines=False), {"LOST_IN_TRANSIT"}),
        (Town(7, mutants=("effects-first",)), {"DUP_EFFECT"}),
        (Town(7, mutants=("half",)), {"HALF"}),
        (Town(7, mutants=("half-at-once",)), {"HALF"}),
        (Town(7, mutants=("told-late",)), {"INVARIANT"}),
        (Town(7, mutants=("arrivals-unsynced",), brisk=True), {"LOST_EFFECT"}),
        (Town(7, mutants=("copied-unsynced",)), {"LOST_ACK"}),
        (Town(7, mutants=("turn-late",), keyed=True), {"INVARIANT"}),
    ],
    ids=(
        *("fast", "weaker-receiver", "delete-journal", "attach", "effects-first"),
        *("half", "half-at-once", "late", "arrivals-unsynced", "copied-unsynced", "turn-late"),
    ),
)
def test_weak_profiles_are_found(
    weak: Town, kinds: set[str], aloud: Callable[[object], None]
) -> None:
    """
    An explorer that finds nothing proves nothing.

    Each of these is known to lose mail, and is seen to.
    """
    verdict = explore(weak, states=3_000, until=kinds, seconds=FOUND_WITHIN)
    aloud(verdict)

    assert kinds & set(verdict.kinds)


def test_aimed_states_find_a_missing_barrier(aloud: Callable[[object], None]) -> None:
    """Kill before each sync, cut before the next one: without the barrier, effects are lost."""
    weak = Town(7, mutants=("no-barrier",), engines=False)  # started ones write when they begin
    verdict = explore(weak, states=1_000, depth=2, until={"LOST_EFFECT"}, aimed=True)
    aloud(verdict)

    assert "LOST_EFFECT" in verdict.kinds


@pytest.mark.parametrize("engines", [False, True])
def test_safe_files_survive_aimed_cuts(
    engines: bool, tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """With the barrier the same states lose nothing."""
    town, states = Town(SEED, engines=engines), size(1_000, 50)
    verdict = explore(town, states=states, depth=2, aimed=True, keep=tmp_path)
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= min(states * 0.9, 100)


def test_live_engines_survive(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """Cut anywhere while threads send, carry and handle: what callers were told holds."""
    states = size(2_000, 60)
    verdict = explore(LiveTown(SEED, transport="file"), states=states, keep=tmp_path)
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= states * 0.9


def test_a_live_life_that_loses_mail_is_seen_to(aloud: Callable[[object], None]) -> None:
    """Files that sync at checkpoints only lose what their callers were told."""
    kinds = {"LOST_ACK", "LOST_ANSWER", "LOST_EFFECT", "LOST_IN_TRANSIT"}
    weak = LiveTown(7, transport="file", near="fast", far="fast")
    verdict = explore(weak, states=2_000, until=kinds, seconds=FOUND_WITHIN)
    aloud(verdict)

    assert kinds & set(verdict.kinds)


def test_a_message_outlives_a_weaker_receiver(aloud: Callable[[object], None]) -> None:
    """
    A receipt of a fast file does not end a message.

    The file may lose its tail, the mail comes again.
    """
    verdict = explore(Town(7, far="fast"), states=size(200, 50))
    aloud(verdict)

    assert set() == set(verdict.kinds) & {
        "LOST_ACK",
        "LOST_IN_TRANSIT",
        "LOST_CUSTODY",
        "INVARIANT",
        "BROKE",
    }


@pytest.mark.broken("the files of a violation are kept")
def test_a_violation_can_be_had_again(tmp_path: Path) -> None:
    """
    Seed, operation and model name a state.

    Asked for alone it is the same state, and breaks in the same way.
    """
    weak = Town(7, near="fast", far="fast")
    found = explore(weak, states=400, enough=1, keep=tmp_path).violations[0]
    named = re.match(r"state (?P<state>\S+): (?P<words>.*) \(files in (?P<folder>.*)\)$", found)
    assert named is not None

    again = explore(weak, only=named["state"])

    assert (f"state {named['state']}: {named['words']}",) == again.violations
    assert {"far.db", "near.db"} <= {path.name for path in Path(named["folder"]).iterdir()}
