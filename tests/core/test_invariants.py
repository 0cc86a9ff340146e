"""Invariants: each holds in a file that was used, and notices when its rule is broken."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from onceward import Postbox
from onceward.api.features import rules
from onceward.features.checks.invariants import FRAMES, Violation, check, look

Open = Callable[..., Postbox]
COPY_OUT = """
INSERT INTO _onceward_dead_letters (origin, id, peer, session, lane, type, rank, reason,
    attempts, frame, digest, created_at, dead_at)
SELECT 'outbox', id, recipient, session, lane, type, rank, 'planted', 0, frame,
    digest, created_at, 9
  FROM _onceward_outbox WHERE seq = 1
"""
COPY_IN = """
INSERT INTO _onceward_dead_letters (origin, id, peer, session, lane, type, rank, reason,
    attempts, frame, digest, created_at, dead_at)
SELECT 'inbox', id, sender, session, session, type, rank, 'planted', 0, frame, digest,
    received_at, 9999999999999
  FROM _onceward_inbox WHERE state = '{0}' LIMIT 1
"""
UNGUARD = "".join(
    f"DROP TRIGGER _onceward_{box}_{name}; "
    for box in ("outbox", "inbox")
    for name in ("guard", "delete_guard", "frame_guard")
)
MARK_IT = """
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
SELECT sender, id, session, 'processed', 1 FROM _onceward_inbox WHERE state = 'pending'
"""
END_RUN = """
; UPDATE _onceward_runs SET state = 'failed', ended_at = 1;
INSERT INTO _onceward_drops (id, peer, session, scope, name, policy, line, run_seq, dropped_at)
    VALUES ('m', 'b', 's', 'queue', 's', 'summarize', 'l', 1, 1)
"""
OPEN_RUN = """
INSERT INTO _onceward_runs (id, session, mode, lane_id, token, owner, bound, event_ids,
                            began_with, started_at)
SELECT 'r', 's', 'queue', lane_id, 1, 'o', json_array(max(seq)), json_array(max(id)), 1, 1
    FROM _onceward_inbox WHERE state = 'pending'
"""
LOST_PLACE = """
INSERT INTO _onceward_mailbox_readers (reader_id, mailbox, mode, name, critical, urgent,
    normal, low, background, read_at)
VALUES (1, 'm', 'lease', 'g', 9, 9, 2, 9, 9, 1);
INSERT INTO _onceward_mailbox_leases (reader_id, seq, rank) VALUES (1, 3, 2)
"""
POST = """
INSERT INTO _onceward_retained_posts (channel, session, lane, type, rank, head, tail, body_id,
    size, created_at)
VALUES ('c', 's', 's', 't', 2, '', '', 999, 1, 1)
"""
PLANTED: dict[str, tuple[str, ...]] = {
    "S1": (COPY_OUT,),
    "S2": (
        f"{UNGUARD}DELETE FROM _onceward_outbox WHERE seq = 1",
        "UPDATE _onceward_counters SET value = value + 1 WHERE name = 'ended_pending'",
    ),
    "S3": (
        "UPDATE _onceward_outbox SET state = 'sent', sent_at = 1, due_at = 9 WHERE seq = 1",
        "UPDATE _onceward_counters SET value = 5 WHERE name = 'sent'",
    ),
    "S4": (
        (
            "INSERT INTO _onceward_peers (name, epoch, in_flight_seqs)"
            " SELECT 'z', 'e', json_array(max(seq)) FROM _onceward_outbox"
        ),
    ),
    "S5": ("UPDATE _onceward_outbox SET state = 'sent', sent_at = 1 WHERE seq = 1",),
    "S6": (
        "UPDATE _onceward_outbox SET state = 'acked', ended_at = 2, sent_at = NULL WHERE seq = 1",
    ),
    "S7": (f"{UNGUARD}UPDATE _onceward_outbox SET recipient = 'a', state = 'sent', sent_at = 1",),
    "R1": (
        (
            "DELETE FROM _onceward_processed_messages WHERE seq ="
            " (SELECT max(seq) FROM _onceward_processed_messages)"
        ),
    ),
    "R2": (MARK_IT,),
    "R3": (
        f"{UNGUARD}DELETE FROM _onceward_inbox WHERE state = 'pending'",
        "UPDATE _onceward_counters SET value = value + 1 WHERE name = 'ended'",
    ),
    "R4": ("UPDATE _onceward_lanes SET head_seq = NULL", "UPDATE _onceward_lanes SET head_seq = 1"),
    "R5": ("DELETE FROM _onceward_lanes",),
    "R6": (COPY_IN.format("pending") + "; DELETE FROM _onceward_processed_messages",),
    "R7": (COPY_IN.format("pending"),),
    "Q1": ("UPDATE _onceward_inbox SET run_seq = 9 WHERE state = 'pending'",),
    "Q2": (OPEN_RUN,),
    "Q3": (OPEN_RUN + END_RUN,),
    "M1": ("UPDATE _onceward_inbox SET mailbox = 'm' WHERE state = 'pending'",),
    "M2": (
        "INSERT INTO _onceward_mailbox_leases (reader_id, seq, rank) VALUES (99, 1, 2)",
        LOST_PLACE,
    ),
    "H1": (
        "UPDATE _onceward_lanes SET due_at = 9000000000000000 WHERE head_seq IS NOT NULL",
        (
            "UPDATE _onceward_lanes SET due_at = 9000000000000000, group_name = 'job'"
            " WHERE head_seq IS NOT NULL;"
            " INSERT INTO _onceward_turns (group_name, rank) VALUES ('job', 9)"
        ),
    ),
    "T1": ("UPDATE _onceward_pending_replies SET state = 'answered', ended_at = 1",),
    "S8": (
        f"{UNGUARD}UPDATE _onceward_outbox SET frame = replace(frame, '1', '2') WHERE seq = 1",
        "UPDATE _onceward_outbox SET digest = x'00' WHERE seq = 1",
        "UPDATE _onceward_outbox SET digest = x'00' WHERE body_id > 0",
    ),
    "S9": (
        "UPDATE _onceward_bodies SET text = text || ' '",
        "UPDATE _onceward_bodies SET digest = zeroblob(16)",
    ),
    "S10": ("DELETE FROM _onceward_bodies",),
    "S12": (POST,),
    "S11": ("INSERT INTO _onceward_bodies (text, digest) VALUES ('1', x'00')",),
    "R8": (
        f"{UNGUARD}UPDATE _onceward_inbox SET frame = frame || ' '",
        "UPDATE _onceward_inbox SET digest = zeroblob(16)",
    ),
    "R9": (
        "UPDATE _onceward_dead_letters SET digest = zeroblob(16)",
        "UPDATE _onceward_dead_letters SET frame = frame || ' '",
    ),
}


@pytest.fixture
def used(opened: Open) -> Postbox:
    """
    Return a postbox that has sent, received, handled, rejected and asked.

    Something is waiting on both sides.
    """
    peer, box = opened("b"), opened("a")
    box.send("b", 1)
    box.send("c", 2)
    box.request("d", 3)
    box.send("c", "long" * 1000)
    for body in range(4):
        peer.send("a", body)
    peer.run_until_idle()
    for settle in ("ack", "reject", "ack"):
        message = box.receive()
        assert message is not None
        getattr(message, settle)()
    return box


def test_a_used_file_breaks_no_rule(used: Postbox) -> None:
    """After ordinary work all invariants hold."""
    assert [] == used.file.check()


def test_every_invariant_has_its_violations() -> None:
    """
    The table of planted violations names every invariant but the file's own soundness.

    That one has a test of its own.
    """
    assert {*rules(), *FRAMES} - {"D1"} == set(PLANTED)


@pytest.mark.broken("the violation is planted")
@pytest.mark.parametrize(
    ("name", "sql"), [(name, sql) for name, all_of_it in PLANTED.items() for sql in all_of_it]
)
def test_a_planted_violation_is_found(used: Postbox, name: str, sql: str) -> None:
    """
    Each invariant names itself, its rule and an offender when its rule is broken.

    It does so also where simulated worlds ask all at once.
    """
    used._db.write(lambda tx: tx.rows(sql))

    found = {violation.invariant: violation for violation in check(used._db, rules())}

    assert name in found
    assert name in {*FRAMES, *(invariant for invariant, _ in look(used._db, rules()))}
    assert ((rules() | FRAMES)[name][0], True) == (found[name].rule, bool(found[name].offender))


@pytest.mark.broken("the violation is planted")
def test_a_damaged_index_is_found(opened: Open) -> None:
    """
    A page that no longer agrees with its table is found by the last rule.

    Otherwise the file says that it is unreadable.
    """
    box = opened()
    box.send_many([("b", "x" * 200) for _ in range(300)])
    [(page,)] = box._db.read(
        "SELECT rootpage FROM sqlite_schema WHERE name = '_onceward_outbox_ready'"
    )
    path, size = box.file.path, 4096
    box.close()
    raw = bytearray(path.read_bytes())
    raw[(page - 1) * size + 40 : page * size] = b"\x07" * (size - 40)
    path.write_bytes(raw)

    found = {violation.invariant for violation in opened().file.check()}

    assert "D1" in found


@pytest.mark.broken("the violation is planted")
def test_single_bits_are_found(opened: Open, tmp_path: Path) -> None:
    """A flipped bit inside a stored frame, which SQLite cannot see, is found by the digest."""
    box = opened()
    box.send_many([("b", f"needle {k}") for k in range(50)])
    box.close()
    path = tmp_path / "a.db"
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"needle 7", b"needle 6"))

    assert {"S8"} == {violation.invariant for violation in opened().file.check()}


def test_the_hosts_own_keys_are_not_ours_to_judge(opened: Open, tmp_path: Path) -> None:
    """
    Foreign keys of a host that keeps them off are neither a violation nor an error.

    Neither are malformed ones.
    """
    con = sqlite3.connect(tmp_path / "host.db")
    con.executescript(
        "CREATE TABLE p (x); CREATE TABLE c (y REFERENCES p (x)); INSERT INTO c VALUES (1)"
    )
    con.close()

    assert [] == opened(at=tmp_path / "host.db").file.check()


def test_a_search_index_that_grows_is_not_damaged(opened: Open) -> None:
    """A check does not miss parts of the index that were merged since an earlier check."""
    box = opened("a", search=True)
    found: list[Violation] = []
    for word in range(20):
        box.send("a", f"word{word}")
        box.file.run_maintenance()
        found += box.file.check()

    assert [] == found
