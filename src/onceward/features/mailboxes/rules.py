"""State what holds between a mailbox's readers and the messages that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onceward.core.contract import FileRule

RULES: Final = {
    "M2": FileRule(
        "a message that a reader holds is before the reader's position",
        """
        SELECT r.mailbox || '/' || r.name || ' row ' || h.seq FROM _onceward_mailbox_leases AS h
          LEFT JOIN _onceward_mailbox_readers AS r ON r.reader_id = h.reader_id
         WHERE r.reader_id IS NULL
            OR h.seq > CASE h.rank WHEN 0 THEN r.critical WHEN 1 THEN r.urgent WHEN 2 THEN r.normal
                                   WHEN 3 THEN r.low ELSE r.background END
        """,
    ),
}


def rules() -> Mapping[str, FileRule]:
    """Return what must hold for readers of mailboxes."""
    return RULES
