"""What holds between two files in use, and that each rule notices when it is broken."""

from collections.abc import Callable

import pytest

from onceward import Postbox
from onceward.features.checks.invariants import PAIR_RULES, check_pair

Open = Callable[..., Postbox]
UNGUARD = "".join(
    f"DROP TRIGGER {name}; "
    for name in (
        "_onceward_outbox_guard",
        "_onceward_outbox_frame_guard",
        "_onceward_inbox_guard",
        "_onceward_inbox_delete_guard",
    )
)
ACK_ALL = "UPDATE _onceward_outbox SET state = 'acked', sent_at = 1, ended_at = 1, due_at = NULL"
PLANTED: dict[str, list[tuple[str, str]]] = {
    "X1": [
        ("bob", f"{UNGUARD}DELETE FROM _onceward_inbox WHERE state = 'pending'"),
        (
            "bob",
            (
                "DELETE FROM _onceward_inbox WHERE state = 'processed';"
                " DELETE FROM _onceward_processed_messages"
            ),
        ),
        ("ann", ACK_ALL),
    ],
    "X2": [
        ("bob", "UPDATE _onceward_sender_streams SET number = number - 1"),
        ("ann", "UPDATE _onceward_peers SET number = number + 1"),
    ],
    "X3": [
        ("bob", "UPDATE _onceward_sender_streams SET number = number + 1"),
        ("ann", "UPDATE _onceward_peers SET number = number - 1"),
    ],
    "X4": [
        ("bob", "UPDATE _onceward_inbox SET digest = zeroblob(16)"),
        ("ann", "UPDATE _onceward_outbox SET digest = zeroblob(16) WHERE state = 'sent'"),
    ],
}


@pytest.fixture
def pair(opened: Open) -> tuple[Postbox, Postbox]:
    """Return two postboxes whose mail is handled, waits at the peer, died there, and waits here."""
    bob, ann = opened("bob"), opened("ann")
    for body in range(4):
        ann.send("bob", body)
    ann.run_until_idle()
    for settle in ("ack", "reject"):
        message = bob.receive()
        assert message is not None
        getattr(message, settle)()
    bob.run_until_idle()
    ann.send("bob", "not yet")
    return ann, bob


def test_files_in_use_break_no_rule(pair: tuple[Postbox, Postbox]) -> None:
    """Acked, dead, waiting and unsent messages break no rule, nor do two agents without any."""
    ann, bob = pair

    assert [] == ann.file.check(bob.file)
    assert [] == check_pair(bob._db, ann._db)


def test_every_rule_has_its_violations() -> None:
    """The table of planted violations names every rule."""
    assert set(PAIR_RULES) == set(PLANTED)


@pytest.mark.broken("the violation is planted")
@pytest.mark.parametrize(
    ("rule", "where", "sql"),
    [(rule, *planted) for rule, both in PLANTED.items() for planted in both],
)
def test_a_planted_violation_is_found(
    pair: tuple[Postbox, Postbox], rule: str, where: str, sql: str
) -> None:
    """Each rule names itself when one of the two files is changed behind the other's back."""
    ann, bob = pair
    (ann if where == "ann" else bob)._db.write(lambda tx: tx.rows(sql))

    assert rule in {found.invariant for found in ann.file.check(bob.file)}


def test_a_pruned_mark_breaks_no_rule(pair: tuple[Postbox, Postbox]) -> None:
    """What the recipient has forgotten by rule lies below its horizon, and is not missed."""
    ann, bob = pair
    bob._db.write(lambda tx: tx.rows("DELETE FROM _onceward_inbox WHERE state = 'processed'"))
    bob._db.write(
        lambda tx: tx.rows("DELETE FROM _onceward_processed_messages WHERE outcome = 'processed'")
    )
    assert ["X1"] == [found.invariant for found in ann.file.check(bob.file)]

    [(newest,)] = ann._db.read("SELECT max(id) FROM _onceward_outbox WHERE state = 'acked'")
    bob._db.write(
        lambda tx: tx.rows("UPDATE _onceward_sender_streams SET horizon_id = ?", (newest,))
    )

    assert [] == ann.file.check(bob.file)


def test_a_recipient_restored_from_a_backup_is_seen(
    pair: tuple[Postbox, Postbox], opened: Open
) -> None:
    """
    A backup that forgets accepted parcels breaks rules until the sender has sent again.

    The sender sends what it retains.
    """
    ann, bob = pair
    for box in pair:
        box.close()
    kept = bob.file.path.read_bytes()
    ann, bob = opened("ann"), opened("bob")
    ann.run_until_idle()
    for box in (ann, bob):
        box.close()
    bob.file.path.write_bytes(kept)
    ann, bob = opened("ann"), opened("bob")

    assert {"X1", "X2"} == {found.invariant for found in ann.file.check(bob.file)}

    ann.send("bob", "anything")
    ann.run_until_idle()

    assert [] == ann.file.check(bob.file)
