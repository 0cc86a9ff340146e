"""
Forgetting: in slices, and only messages that ended well.

It never makes a message happen twice or pass for a duplicate.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench import fill

from onceward import Postbox, Tuning
from onceward.core import maintenance
from onceward.core.end import sent
from onceward.core.rows import inbox
from onceward.file.transaction import Rows
from onceward.message.clock import SystemClock
from onceward.testing import Controls
from onceward.testing.clock import ManualClock

Open = Callable[..., Postbox]
HOUR = 3600.0
NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) "
YOUNG = (
    f"""{NUMBERS} INSERT INTO _onceward_transitions (box, id, peer, to_state, at)
SELECT 'outbox', 'x' || i, 'bob', 'acked', :now FROM n""",
    f"""{NUMBERS} INSERT INTO _onceward_pending_replies (id, session, recipient, state, asked_at,
  ended_at) SELECT 'x' || i, 's', 'bob', 'failed', :now, :now FROM n""",
    f"""{NUMBERS} INSERT INTO _onceward_acknowledgments (message_id, participant, stage, first_at,
  at) SELECT 'x' || i, 'bob', 4, :now, :now FROM n""",
)


class Pair:
    """A sender and a receiver on one clock that keep things for an hour."""

    def __init__(self, opened: Open, clock: ManualClock) -> None:
        self.clock = clock
        options: dict[str, Any] = {
            "testing": Controls(clock=clock),
            "retention": HOUR,
            "tuning": Tuning(retention_slice=7),
        }
        self.receiver = opened("b", **options)
        self.sender = opened("a", **options)

    def journey(self, body: object = 1, **options: Any) -> str:
        """Send, deliver, handle and confirm one message; return its id."""
        message_id = self.sender.send("b", body, **options)
        self.sender.run_until_idle()
        message = self.receiver.receive()
        if message is not None:
            message.ack()
        self.receiver.run_until_idle()
        self.sender.run_until_idle()
        return message_id

    def rejected(self) -> None:
        """Send one message that the receiver rejects."""
        self.sender.send("b", 1)
        self.sender.run_until_idle()
        message = self.receiver.receive()
        assert message is not None
        message.reject("why")

    def later(self) -> None:
        """Let everything become old, and maintain both files."""
        self.clock.advance(2 * HOUR)
        self.sender.file.run_maintenance()
        self.receiver.file.run_maintenance()


@pytest.fixture
def pair(opened: Open, clock: ManualClock) -> Pair:
    """Return a sender and a receiver on one clock."""
    return Pair(opened, clock)


def rows(box: Postbox, table: str) -> int:
    """Return how many rows a table has."""
    return int(box._db.read(f"SELECT count(*) FROM _onceward_{table}")[0][0])


def test_what_ended_well_is_forgotten_and_still_counted(pair: Pair) -> None:
    """
    Acked and processed rows and their marks go after the retention.

    Totals and invariants stay.
    """
    for _ in range(20):
        pair.journey()
    pair.later()

    assert (0, 0, 0) == (
        rows(pair.sender, "outbox"),
        rows(pair.receiver, "inbox"),
        rows(pair.receiver, "processed_messages"),
    )
    assert (20, 20, 20) == (
        pair.sender.file.stats()["enqueued"],
        pair.sender.file.stats()["acked"],
        pair.receiver.file.stats()["processed"],
    )
    assert [] == pair.sender.file.check() + pair.receiver.file.check()


def test_what_is_young_stays(pair: Pair) -> None:
    """Nothing goes before its time."""
    pair.journey()
    pair.clock.advance(HOUR / 2)

    assert (0, 0) == (pair.sender.file.run_maintenance(), pair.receiver.file.run_maintenance())
    assert (1, 1, 1) == (
        rows(pair.sender, "outbox"),
        rows(pair.receiver, "inbox"),
        rows(pair.receiver, "processed_messages"),
    )


@pytest.mark.broken("rows are changed by hand")
def test_what_is_not_settled_stays_for_ever(pair: Pair, opened: Open) -> None:
    """
    Waiting, sent and dead messages are never forgotten.

    A message that the peer gave up, and keeps, is settled here.
    """
    pair.receiver.close()
    for _ in range(4):
        pair.sender.send("b", 1)
    change = pair.sender._db.write
    change(
        lambda tx: tx.run(
            (
                "UPDATE _onceward_outbox"
                " SET state = 'sent', sent_at = 1, due_at = ?, parcel_ordinal = 1 WHERE seq = 2"
            ),
            (1 << 50,),
        )
    )
    change(
        lambda tx: tx.run(
            "UPDATE _onceward_outbox"
            " SET state = 'failed', sent_at = 1, ended_at = 2, parcel_ordinal = 1"
            " WHERE seq = 3"
        )
    )
    change(lambda tx: sent.bury(tx, [4], reason="rejected"))
    pair.clock.advance(50 * HOUR)
    pair.sender.file.run_maintenance()

    assert [("pending",), ("sent",)] == pair.sender._db.read(
        "SELECT state FROM _onceward_outbox ORDER BY seq"
    )
    assert 1 == len(pair.sender.dead_letters.list())


def test_a_long_waiting_message_does_not_keep_the_others(pair: Pair) -> None:
    """An old message that still waits does not stop younger ones from being forgotten."""
    pair.sender.send("c", "waits")
    for _ in range(20):
        pair.journey()
    pair.later()

    assert [("pending",)] == pair.sender._db.read("SELECT state FROM _onceward_outbox")


def test_forgetting_goes_in_slices(pair: Pair) -> None:
    """No transaction deletes more rows than the slice allows."""
    for _ in range(20):
        pair.journey()
    con = pair.sender._db._con
    assert con is not None
    per_commit, deleted = [], [0]

    def trace(_: object, sql: str, __: object) -> bool:
        deleted[0] += sql.startswith("DELETE FROM _onceward_outbox")
        if sql == "COMMIT":
            per_commit.append(deleted[0])
            deleted[0] = 0
        return True

    con.exec_trace = trace
    pair.clock.advance(2 * HOUR)
    pair.sender.file.run_maintenance()

    assert [6, 7, 7] == sorted(per_commit)[-3:]


def test_the_horizon_moves_with_the_marks(pair: Pair) -> None:
    """The largest id whose mark is gone is remembered, and nothing else moves it."""
    last = max(pair.journey() for _ in range(3))
    assert [("",)] == pair.receiver._db.read("SELECT horizon_id FROM _onceward_sender_streams")
    pair.later()
    assert [(last,)] == pair.receiver._db.read("SELECT horizon_id FROM _onceward_sender_streams")
    pair.later()
    assert [(last,)] == pair.receiver._db.read("SELECT horizon_id FROM _onceward_sender_streams")


def test_two_views_say_up_to_where_records_are_complete(pair: Pair) -> None:
    """A reader of a file can tell what was pruned from what was deleted or never came."""
    last = [pair.journey() for _ in range(2)][-1]
    pruned = pair.sender.query("SELECT outbox_pruned_at FROM onceward_file")
    horizon = pair.receiver.query("SELECT sender, horizon_id FROM onceward_streams")
    pair.later()
    before = pair.clock.now() - round(1000 * HOUR)

    assert ([(None,)], [("a", "")]) == (pruned, horizon)
    assert [(before,)] == pair.sender.query("SELECT outbox_pruned_at FROM onceward_file")
    assert [("a", last)] == pair.receiver.query("SELECT sender, horizon_id FROM onceward_streams")


def test_a_forgotten_message_that_comes_again_is_stale_not_new(pair: Pair) -> None:
    """
    A frame whose mark was pruned cannot be told from a duplicate.

    It is refused, loudly, and never handled twice.
    """
    message_id = pair.journey()
    pair.clock.advance(2 * HOUR)
    pair.receiver.file.run_maintenance()
    change = pair.sender._db.write
    change(lambda tx: tx.run("UPDATE _onceward_outbox SET state = 'pending', ended_at = NULL"))
    change(
        lambda tx: tx.run(
            "UPDATE _onceward_counters SET value = value - 1"
            " WHERE name IN ('ended_pending', 'acked')"
        )
    )
    pair.sender.run_until_idle()

    assert (None, "dead", "stale") == (
        pair.receiver.receive(),
        pair.sender.state(message_id),
        pair.sender.dead_letters.list()[0].reason,
    )


def test_ids_of_the_callers_own_do_not_move_the_horizon(pair: Pair) -> None:
    """
    Ids that do not sort by time are remembered for ever.

    So neither they nor other ids are ever refused as stale.
    """
    pair.journey(message_id="invoice-999")
    pair.journey(message_id="zzzzzzzz")
    pair.later()

    following = [pair.journey(message_id="invoice-1000"), pair.journey()]
    pair.sender._db.write(
        lambda tx: tx.run("UPDATE _onceward_peers SET epoch = 'new', number = 0, last_id = ''")
    )
    following.append(pair.journey())

    assert ["acked"] * 3 == [pair.sender.state(each) for each in following]
    assert [("",)] == pair.receiver._db.read("SELECT horizon_id FROM _onceward_sender_streams")
    again = pair.sender.send("b", 1, message_id="invoice-999")
    pair.sender.run_until_idle()
    assert (None, "acked") == (pair.receiver.receive(), pair.sender.state(again))


def test_an_id_that_only_looks_minted_does_not_move_the_horizon(pair: Pair) -> None:
    """A caller's id of the right length that is not a UUIDv7 is a caller's id."""
    pair.journey(message_id="zzzzzzzz-zzzz-7zzz-zzzz-zzzzzzzzzzzz")
    pair.later()

    assert [("",)] == pair.receiver._db.read("SELECT horizon_id FROM _onceward_sender_streams")


def test_a_peer_from_the_future_makes_nobody_else_stale(pair: Pair, opened: Open) -> None:
    """The clock of one sender, or its malice, never dead-letters the mail of another."""
    pair.journey(message_id="ffffffff-ffff-7fff-bfff-ffffffffffff")
    pair.later()
    other = opened("c", testing=Controls(clock=pair.clock))
    for epoch in ("one", "two"):
        message_id = other.send("b", 1)
        other._db.write(
            lambda tx, epoch=epoch: tx.run(  # type: ignore[misc]
                "UPDATE _onceward_peers SET epoch = ?, number = 0, last_id = ''", (epoch,)
            )
        )
        other.run_until_idle()

    assert "sent" == other.state(message_id)


def test_a_dead_letter_outlives_its_mark_without_alarm(pair: Pair) -> None:
    """The invariants know that marks of old dead letters are pruned."""
    pair.rejected()
    pair.later()

    assert (1, 0, []) == (
        len(pair.receiver.dead_letters.list()),
        rows(pair.receiver, "processed_messages"),
        pair.receiver.file.check(),
    )


def test_a_dead_letter_beside_an_old_mark_is_no_alarm(pair: Pair) -> None:
    """Marks that are kept for ever do not make pruned ones look lost."""
    pair.journey(message_id="mine")
    pair.clock.advance(1)
    pair.rejected()
    pair.later()

    assert [] == pair.receiver.file.check()


def test_tickets_are_forgotten_too(pair: Pair) -> None:
    """A request that ended is gone after the retention; one that still waits stays."""
    pair.sender.request("b", 1, ttl=1)
    waits = pair.sender.request("b", 1, delay=1e6)
    pair.clock.advance(2)
    pair.sender.run_until_idle()
    pair.later()
    pair.later()

    assert [(waits.id,)] == pair.sender._db.read("SELECT id FROM _onceward_pending_replies")


def test_the_trail_says_when_a_receipt_was_asked_for(opened: Open) -> None:
    """Not when the message had been stored there: a trigger has the time of the system."""
    clock = ManualClock(SystemClock().now() - 86_400_000)
    box, _ = (
        opened("a", testing=Controls(clock=clock), transitions=True),
        opened("b", testing=Controls(clock=clock)),
    )
    box.send("b", 1)
    for _ in range(40):
        box.run_until_idle()
        clock.advance(1)

    [(asked_at,)] = box.query(
        "SELECT at FROM onceward_transitions WHERE from_state = 'sent' AND to_state = 'pending'"
    )
    assert asked_at > clock.now()


def test_the_trail_is_forgotten_too(opened: Open, clock: ManualClock) -> None:
    """Transitions are kept as long as the rest."""
    box = opened("a", testing=Controls(clock=clock), retention=HOUR, transitions=True)
    box.send("b", 1)
    assert 1 == rows(box, "transitions")
    clock.advance(2 * HOUR)
    box.file.run_maintenance()

    assert 0 == rows(box, "transitions")


def test_a_slice_tells_where_to_go_on(pair: Pair) -> None:
    """A walk in slices sees every row once and ends."""
    for _ in range(10):
        pair.journey()
    pair.clock.advance(2 * HOUR)
    walk, after = [], 0
    while after >= 0:
        after, count = pair.sender._db.write(
            lambda tx, seen=after: maintenance.slice_of(
                tx, "outbox", after=seen, before=tx.now, limit=4
            )  # type: ignore[misc]
        )
        walk.append(count)

    assert ([4, 4, 2], 0) == (walk, rows(pair.sender, "outbox"))


def test_a_round_without_old_rows_costs_the_same_in_a_large_file(tmp_path: Path) -> None:
    """Maintenance that finds nothing old reads one slice of each table, however many rows wait."""
    small, large = (instructions(tmp_path / str(count), count) for count in (1_000, 20_000))

    assert large < 1.1 * small


def instructions(folder: Path, messages: int) -> int:
    """Return about how many instructions of SQLite a round takes in a file of young messages."""
    folder.mkdir()
    fill.acked(folder / "alice.db", messages, size=fill.SHORT)
    fill.handled(folder / "alice.db", messages)
    hundreds: list[int] = []

    def count() -> bool:
        hundreds.append(100)
        return False

    with Postbox(folder / "alice.db", start=False, transitions=True) as box:
        for sql in YOUNG:
            box._db.write(lambda tx, sql=sql: tx.run(sql, {"count": messages, "now": tx.now}))  # type: ignore[misc]
        box.file.run_maintenance()
        assert box._db._con is not None
        box._db._con.set_progress_handler(count, 100)
        box.file.run_maintenance()
    return sum(hundreds)


def test_sequences_are_never_used_again(pair: Pair) -> None:
    """After everything was forgotten numbering goes on, so that an old cursor skips nothing."""
    pair.journey()
    pair.later()
    pair.sender.send("b", 2)

    assert [(2,)] == pair.sender._db.read("SELECT seq FROM _onceward_outbox")


def test_the_clock_of_a_file_never_runs_back(opened: Open, clock: ManualClock) -> None:
    """
    The latest time that a file has seen stays its earliest now.

    That holds through restarts under a clock that was set back.
    """
    box = opened("a", testing=Controls(clock=clock))
    box.file.run_maintenance()
    before = box._db.now()
    box.close()
    clock.step(-1_000_000)

    assert before == opened("a", testing=Controls(clock=clock))._db.now()


def test_a_fast_file_that_saw_a_reboot_opens_a_new_epoch(opened: Open) -> None:
    """
    A file that may have lost its tail speaks to its peers in a new stream.

    A safe one keeps its own.
    """
    for durability, kept in (("fast", False), ("safe", True)):
        box = opened(durability, durability=durability)
        box.peers.add("b", "memory:b")
        before = box._db.read("SELECT epoch FROM _onceward_peers")
        box._db.write(lambda tx: tx.run("UPDATE _onceward_file_info SET boot_id = 'another boot'"))
        box.close()

        assert kept == (before == opened(durability)._db.read("SELECT epoch FROM _onceward_peers"))


def test_a_file_at_rest_is_maintained_once_it_has_changed_or_a_message_expires(
    opened: Open, clock: ManualClock
) -> None:
    """Its rounds leave it at rest: they neither read it nor write it, except now and then."""
    box = opened("a", testing=Controls(clock=clock))
    keeps, rounds = box._maintenance, list[int]()
    run = keeps.run_once
    keeps.run_once = lambda: rounds.append(1) or run()  # type: ignore[method-assign,func-returns-value]

    def round_of(*, resting: bool) -> int:
        if resting:
            box._db.rest()
        rounds.clear()
        keeps._look()
        return len(rounds)

    box.send("a", 1, ttl=3 * HOUR)
    box.run_until_idle()
    first, rests = round_of(resting=True), box._db.rests
    second = round_of(resting=True)
    in_use = [round_of(resting=False) for _ in range(2) if box._db.read("SELECT 1") or True]
    clock.advance(2 * HOUR)
    before = round_of(resting=True)
    clock.advance(2 * HOUR)
    expired = round_of(resting=True), rows(box, "inbox WHERE state = 'expired'")
    box.send("a", 2)
    changed = [round_of(resting=True) for _ in range(2)]
    seldom = [round_of(resting=True) for _ in range(2 * maintenance.SKIPPED)]

    assert (1, True, 0) == (first, rests, second)
    assert ([1, 1], 0, (1, 1), [1, 0]) == (in_use, before, expired, changed)
    assert 1 == sum(seldom)


def test_a_message_that_comes_during_a_round_is_not_forgotten_at_rest(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the round had looked for the next expiry: the next round is not skipped."""
    box = opened("a")
    keeps, rounds, look = box._maintenance, list[int](), inbox.next_expiry
    run = keeps.run_once
    keeps.run_once = lambda: rounds.append(1) or run()  # type: ignore[method-assign,func-returns-value]

    def just_before(read: Rows) -> int | None:
        found = look(read)
        if len(rounds) == 1:
            box.send("a", 1, ttl=HOUR)
        return found

    monkeypatch.setattr(inbox, "next_expiry", just_before)
    for _ in range(3):
        box._db.rest()
        keeps._look()

    assert 2 == len(rounds)


def test_an_archived_transition_is_pruned_if_it_is_unchanged(
    opened: Callable[..., Postbox],
) -> None:
    """A row that the archive holds with another state stays."""
    box = opened("a", transitions=True)
    box.send_many([("b", 1), ("b", 2)])
    rows = box.query("SELECT seq, id, to_state, at FROM onceward_transitions ORDER BY seq")
    (seq, message, _, at), other = rows

    pruned = box._prune_archived("transitions", [(seq, message, "acked", at), other])

    assert (1, [(seq,)]) == (pruned, box.query("SELECT seq FROM onceward_transitions"))
