"""Write audit entries of messages that a check found damaged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onceward.core.send.auditor import Write
from onceward.features.checks.invariants import DAMAGED, Violation
from onceward.file.database import Database
from onceward.message.clock import iso


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
