"""Write audit entries of committed sends and damaged messages, never with bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from onceward.core.contract import Opening
from onceward.core.rows.outbox import OutgoingMessage
from onceward.features.checks.invariants import DAMAGED, Violation
from onceward.file.database import Database
from onceward.hooks import AuditLog
from onceward.message.clock import Millis, iso
from onceward.message.events import Expired, Polled
from onceward.message.frame import Frame, body_size

Write = Callable[[Iterable[Mapping[str, Any]]], None]


def begin(opening: Opening) -> None:
    """Write to the audit log of an opening: sends, polls, expiries and damaged messages."""
    deps = opening.deps
    assert deps.settings.audit is not None  # noqa: S101 - otherwise there is no log
    audit = AuditLog(deps.settings.audit)
    deps.outbox.audited = audit_sends(audit.write)
    deps.hooks.on(Polled, audit)
    deps.hooks.on(Expired, audit)
    opening.offers["audit_damage"] = partial(audit_damage, audit.write, deps.db)


def audit_sends(write: Write) -> Callable[[Sequence[OutgoingMessage], Millis], None]:
    """Return the function that writes an entry for each committed message."""

    def sent(drafts: Sequence[OutgoingMessage], at: Millis) -> None:
        write(_sent(draft, at) for draft in drafts)

    return sent


def _sent(draft: OutgoingMessage, at: Millis) -> dict[str, Any]:
    frame = Frame.parse(draft.text)
    return {
        "op": "send",
        "ts": iso(at),
        "msg_id": draft.id,
        "from": frame.sender,
        "to": draft.recipient,
        "session": draft.session,
        "topic": frame.topic,
        "mailbox": frame.mailbox,
        "body_bytes": body_size(frame),
        "externalized": draft.body is not None,
        "ttl_s": None if frame.expires_at is None else (frame.expires_at - at) / 1000,
    }


def audit_damage(write: Write, db: Database, found: Iterable[Violation]) -> None:
    """Write an entry for each message that a check found damaged."""
    write(_damage(db, each) for each in found if each.invariant in DAMAGED)


def _damage(db: Database, found: Violation) -> dict[str, Any]:
    return {
        "op": "check",
        "ts": iso(db.clock.now()),
        "agent_id": db.agent,
        "msg_id": found.offender,
        "invariant": found.invariant,
        "rule": found.rule,
    }
