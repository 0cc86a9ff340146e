"""Keep the file's agent, durability and count of openings: one row, changed by every opening."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import apsw

from onceward.errors import StoreUnusable, TakenOver, WrongAgent
from onceward.file import file_checks, migrations
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis, MonotonicFileClock, iso
from onceward.message.error_text import Hint
from onceward.message.ids import new_token
from onceward.message.log import log
from onceward.message.parcel import ANSWER, RESTORED, Durability, Parcel, Takeover
from onceward.message.settings import Settings

IDENTITY: Final = "SELECT agent, file_id, durability, boot_id FROM _onceward_file_info"
INSERT: Final = """
INSERT INTO _onceward_file_info (one, agent, file_id, durability, max_pending, max_inbox, max_body,
                                 clock_at, opened_at, created_at)
VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?7)
"""
# The open barrier: one durable commit before acting on read data.
BARRIER: Final = """
UPDATE _onceward_file_info
   SET opened = opened + 1, opened_at = ?1, clock_at = max(clock_at, ?1), boot_id = ?2,
       durability = ?3,
       max_pending = coalesce(?4, max_pending), max_inbox = coalesce(?5, max_inbox),
       max_body = coalesce(?6, max_body), foreign_keys = coalesce(?7, foreign_keys)
RETURNING clock_at, max_inbox, max_body, foreign_keys, takeover, opened,
          coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_outbox'), 0),
          coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)
"""
RANDOM: Final = "lower(hex(randomblob(12)))"
"""SQL expression for a unique epoch, after the eight digits of its generation."""
# A 'fast' file may have lost its tail in a reboot: the messages sent since must be judged by id.
RENEW_ALL: Final = f"""
UPDATE _onceward_peers
   SET epoch = printf('%08x', generation + 1) || {RANDOM},
       generation = generation + 1, number = 0, last_id = '',
       in_flight_seqs = NULL,
       redelivered_upto_seq = coalesce((SELECT max(seq) FROM _onceward_outbox), 0),
       base_epoch = CASE WHEN number > 0 THEN epoch ELSE base_epoch END,
       base_parcel = CASE WHEN number > 0
                           AND (base_epoch <> epoch OR base_parcel < ((generation << 32) | number))
                          THEN (generation << 32) | number ELSE base_parcel END
"""  # noqa: S608 - a constant
KNOW_SENDERS: Final = f"""
INSERT INTO _onceward_peers (name, epoch)
SELECT sender, '00000001' || {RANDOM} FROM _onceward_sender_streams WHERE true
ON CONFLICT (name) DO NOTHING
"""  # noqa: S608 - a constant
# Its leases are those of processes that used it before, perhaps on another machine. A pool cannot
# be greeted: its members may know what waits for it here.
GREET: Final = """
UPDATE _onceward_peers
   SET greeting = CASE WHEN url IS NOT 'pool:' THEN ?1 END, due_at = NULL, owner = NULL,
       lease_at = NULL, lost_after = '',
       redelivered_upto_seq = CASE WHEN url IS NOT 'pool:' THEN redelivered_upto_seq
                                   ELSE (SELECT coalesce(max(seq), 0) FROM _onceward_outbox) END
 WHERE name <> (SELECT agent FROM _onceward_file_info)
"""
# max(seq) selects the row of the other column, too.
LOST_AFTER: Final = """
UPDATE _onceward_peers
   SET lost_after = last.id
  FROM (SELECT recipient, id, max(seq)
          FROM _onceward_outbox WHERE sent_at IS NOT NULL GROUP BY recipient) AS last
 WHERE name = last.recipient
"""
FIND_LOST_AFTER: Final = """
SELECT lost_after FROM _onceward_peers WHERE name = ? AND lost_after IS NOT NULL
"""
ASKED: Final = "UPDATE _onceward_peers SET lost_after = NULL WHERE name = ?"
MAX_BODY: Final = "SELECT max_body FROM _onceward_file_info"
# The answer to the parcel in flight may be from before the restore: that parcel is pushed again.
GREET_BACK: Final = f"""
UPDATE _onceward_peers
   SET greeting = CASE WHEN greeting GLOB '{RESTORED}*' THEN greeting ELSE ? END,
       due_at = NULL, owner = NULL, lease_at = NULL
 WHERE name = ?
"""  # noqa: S608 - a constant
DROP_GREETING: Final = """
UPDATE _onceward_peers SET greeting = NULL
 WHERE name = :name AND token = :token AND owner = :owner
"""
SUPERSEDE: Final = """
UPDATE _onceward_file_info
   SET superseded_by = ?1, paused_at = coalesce(paused_at, ?2)
 WHERE max(coalesce(superseded_by, ''), coalesce(takeover, '')) < ?1
"""
# A moved agent is followed on the network where it was reached, never to a path or a function.
NOTE_TAKEOVER: Final = f"""
INSERT INTO _onceward_peers (name, epoch, takeover)
VALUES (:name, '00000001' || {RANDOM}, :takeover)
ON CONFLICT (name) DO UPDATE
   SET takeover = excluded.takeover,
       url = CASE WHEN substr(url, 1, length(:scheme)) = :scheme THEN :url ELSE url END
"""  # noqa: S608 - a constant
TAKEOVERS: Final = "SELECT takeover, superseded_by FROM _onceward_file_info"
STAMP: Final = """
UPDATE _onceward_file_info
   SET takeover = ?1, superseded_by = ?2,
       paused_at = CASE WHEN superseded_by IS NULL OR ?2 IS NOT NULL THEN paused_at END
"""
LIMITS: Final = """
UPDATE _onceward_file_info
   SET max_pending = coalesce(?1, max_pending), max_inbox = coalesce(?2, max_inbox),
       max_body = coalesce(?3, max_body)
RETURNING max_inbox, max_body
"""
FOREIGN_KEYS: Final = "UPDATE _onceward_file_info SET foreign_keys = ?"
LEVEL: Final = "UPDATE _onceward_file_info SET durability = ?"
LOST_WAL: Final = "UPDATE _onceward_file_info SET wal_lost_at = max(coalesce(wal_lost_at, 0), ?)"
BACKED_UP: Final = """
UPDATE _onceward_file_info SET backed_up_at = max(coalesce(backed_up_at, 0), ?)
"""
MAX_BYTES: Final = """
UPDATE _onceward_file_info SET max_file_bytes = ?1 WHERE max_file_bytes IS NOT ?1
"""
PAUSE: Final = "UPDATE _onceward_file_info SET paused_at = coalesce(paused_at, ?)"
RESUME: Final = """
UPDATE _onceward_file_info SET paused_at = NULL
 WHERE paused_at IS NOT NULL AND superseded_by IS NULL
"""
SUPERSEDED: Final = "SELECT superseded_by FROM _onceward_file_info WHERE superseded_by IS NOT NULL"
PRUNED: Final = """
UPDATE _onceward_file_info SET outbox_pruned_at = max(coalesce(outbox_pruned_at, 0), ?)
"""
PAUSED: Final = "SELECT paused_at IS NOT NULL FROM _onceward_file_info"
TICK: Final = "UPDATE _onceward_file_info SET clock_at = max(clock_at, ?)"
# SQLite writes nothing for a row that stays as it is, but always the page of a header that is set;
# a host's own mark stays.
MARK: Final = "PRAGMA application_id"


class Reach(NamedTuple):
    """How far a file has come; none of it ever decreases, unless the file is restored."""

    opened: int
    """Number of its openings."""
    sent_upto_seq: int
    received_upto_seq: int

    def reaches(self, other: Reach) -> bool:
        """Return whether it has come as far as *other* in every respect."""
        return all(mine >= theirs for mine, theirs in zip(self, other, strict=True))


class Identity(NamedTuple):
    """Facts that an opening read or wrote."""

    agent: str
    file_id: str
    durability: Durability
    clock_at: Millis
    max_inbox: int
    max_body: int
    foreign_keys: bool
    takeover: str | None
    reach: Reach


def check_owner(tx: StoreTransaction, wanted: str | None, *, migrated: bool) -> None:
    """
    Refuse an opening before the file is changed; *migrated*: whether it has our tables.

    Raises:
        WrongAgent: the file is another agent's.
        StoreUnusable: the file does not belong to an agent yet, and no name was given.

    """
    owner = tx.rows(IDENTITY) if migrated or migrations.is_agents(tx.rows) else []
    if owner:
        refuse_other(owner[0][0], wanted)
    if not owner and wanted is None:
        raise StoreUnusable(f"the file does not belong to an agent yet: {Hint.OPEN_WITH_AGENT}")


def refuse_other(owner: str, wanted: str | None) -> None:
    """Raise WrongAgent if the file belongs to another agent than the wanted one."""
    if wanted is not None and owner != wanted:
        msg = f"the file belongs to agent {owner!r}, not {wanted!r}: open it under its own name"
        raise WrongAgent(msg)


def identify(tx: StoreTransaction, wanted: str | None, settings: Settings) -> Identity:
    """Store the agent of a new file or check that of an old one, and write the open barrier."""
    found = tx.rows(IDENTITY)
    if not found:
        given = (settings.max_pending, settings.max_inbox, settings.max_body)
        tx.run(INSERT, (wanted, new_token(), settings.durability, *given, tx.now))
        migrations.stamp(tx, tx.now)
        found = tx.rows(IDENTITY)
    [(agent, file_id, stored, boot)] = found
    refuse_other(agent, wanted)
    explicit = settings.model_fields_set
    durability = settings.durability if wanted is not None and "durability" in explicit else stored
    now_boot = file_checks.boot_id()
    if stored == "fast" and boot not in {"", now_boot}:
        tx.run(RENEW_ALL)
    checks = settings.foreign_keys if wanted is not None and "foreign_keys" in explicit else None
    [(clock_at, max_inbox, max_body, checks, takeover, *reach)] = tx.rows(
        BARRIER, (tx.now, now_boot, durability, *explicit_limits(settings), checks)
    )
    limits_now = clock_at, max_inbox, max_body, bool(checks), takeover
    return Identity(agent, file_id, durability, *limits_now, Reach(*reach))


def greet_peers(tx: StoreTransaction) -> int:
    """
    Greet all peers, because this file was restored, moved or copied; return how many.

    They push again what it has lost, and it learns whether they have more from it than it knows.
    """
    tx.run(KNOW_SENDERS)
    count = tx.run(GREET, (f"{RESTORED}{new_token()[:24]}",))
    tx.run(LOST_AFTER)
    return count


def take_lost_after(tx: StoreTransaction, peer: str) -> str | None:
    """
    Return the last message to a peer that a restored file knows, empty if it knows none.

    Return None if the file was not restored, and at each later call.
    """
    for (known,) in tx.rows(FIND_LOST_AFTER, (peer,)):
        tx.run(ASKED, (peer,))
        return str(known)
    return None


def max_body(tx: StoreTransaction) -> int:
    """Return the size of the largest body that the inbox accepts, in bytes."""
    return int(tx.rows(MAX_BODY)[0][0])


def greet_back(tx: StoreTransaction, parcel: Parcel) -> None:
    """Greet a peer whose file was restored, and that has greeted us: it tells what it has lost."""
    if parcel.is_from_restored:
        tx.run(GREET_BACK, (str(parcel.greeting).replace(RESTORED, ANSWER), parcel.sender))


def drop_greeting(tx: StoreTransaction, fence: Mapping[str, Any]) -> None:
    """Greet a leased peer no more, because no greeting can reach it."""
    tx.run(DROP_GREETING, fence)


def supersede(tx: StoreTransaction, takeover: str) -> bool:
    """Stop using this file permanently: another machine has taken over; False if known."""
    if not tx.run(SUPERSEDE, (takeover, tx.now)):
        return False
    _, at, machine, *_ = Takeover.parse(takeover)
    fields = {"machine": machine, "since": iso(at)}
    tx.after_commit(partial(log.write, "error", f"stopped: {Hint.TAKEN_OVER}", fields))
    return True


def note_takeover(tx: StoreTransaction, peer: str, takeover: str) -> None:
    """Store that a peer's file comes from a takeover, and where the agent is now."""
    url = Takeover.parse(takeover).url
    scheme = None if url is None else url.partition(":")[0] + ":"
    named = {"takeover": takeover, "url": url, "scheme": scheme, "name": peer}
    tx.run(NOTE_TAKEOVER, named)


def takeovers(con: apsw.Connection) -> tuple[str | None, str | None]:
    """Return the takeover that a file comes from, and the one after which it is not used."""
    [(own, superseded_by)] = con.execute(TAKEOVERS).fetchall()
    return own, superseded_by  # type: ignore[return-value]  # columns of TAKEOVERS


def stamp(con: apsw.Connection, own: str | None, superseded_by: str | None) -> None:
    """Store both in a copy that no process uses yet; a takeover also ends its pause."""
    con.execute(STAMP, (own, superseded_by))


def set_limits(tx: StoreTransaction, settings: Settings) -> tuple[int, int]:
    """Store the given limits; return the maximum messages and the maximum bytes of an inbox."""
    [(max_inbox, max_body)] = tx.rows(LIMITS, explicit_limits(settings))
    return int(max_inbox), int(max_body)


def set_durability(tx: StoreTransaction, durability: Durability) -> None:
    """Store the durability class of the file."""
    tx.run(LEVEL, (durability,))


def set_foreign_keys(tx: StoreTransaction, *, checked: bool) -> None:
    """Store whether foreign keys of the application's tables are enforced."""
    tx.run(FOREIGN_KEYS, (checked,))


def note_lost_wal(tx: StoreTransaction, at: Millis) -> None:
    """Store when this process noticed that commits were lost with a deleted WAL."""
    tx.run(LOST_WAL, (at,))


def note_backup(tx: StoreTransaction, at: Millis) -> None:
    """Store that a backup or a replica has every commit before this moment."""
    tx.run(BACKED_UP, (at,))


def set_max_bytes(tx: StoreTransaction, most: int | None) -> bool:
    """Set or remove the size limit of the file; return whether that changed it."""
    return tx.run(MAX_BYTES, (most,)) > 0


def pause(tx: StoreTransaction) -> None:
    """Pause the file for all processes; it stays paused across restarts."""
    tx.run(PAUSE, (tx.now,))


def resume(tx: StoreTransaction) -> bool:
    """
    Resume the file for all processes; return whether it was paused.

    Raises:
        TakenOver: another machine has taken over the agent.

    """
    if tx.rows(SUPERSEDED):
        raise TakenOver(Hint.TAKEN_OVER)
    return tx.run(RESUME) > 0


def is_paused(read: Rows) -> bool:
    """Return whether the file is paused."""
    return bool(read(PAUSED, None)[0][0])


def persist_clock(tx: StoreTransaction) -> int:
    """
    Store the file's time; return how many rows were changed.

    It changes the row even if the file has already seen a later time.
    """
    changed = tx.run(TICK, (tx.now,))
    [(mark,)] = tx.rows(MARK)
    tx.rows(f"{MARK} = {mark}")
    return changed


def persist_progress(tx: StoreTransaction, time: MonotonicFileClock) -> int:
    """
    Store a time that is much later than the file's stored one; return how many rows were changed.

    A clock may be set back and its process die: for the next process, times that were written while
    the clock was ahead (leases, backoffs) must not be a day away.
    """
    changed = tx.run(TICK, (tx.now,))
    tx.on_durable = partial(time.mark_persisted, tx.now)
    return changed


def explicit_limits(settings: Settings) -> tuple[int | None, ...]:
    """Return the explicitly set limits; None for those that the file keeps."""
    given = settings.model_fields_set
    return tuple(
        getattr(settings, name) if name in given else None
        for name in ("max_pending", "max_inbox", "max_body")
    )


def note_pruned(tx: StoreTransaction, before: Millis) -> None:
    """Record that messages that ended *before* may be missing, so receipts of them are expected."""
    tx.run(PRUNED, (before,))
