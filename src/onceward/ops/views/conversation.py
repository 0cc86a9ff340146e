"""Ask one file for the messages of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.ops.views.asking import NEVER, Source, values
from onceward.ops.views.messages import SENDERS

MOST: Final = 200
"""Maximum messages of one file on a page."""
RECENT: Final = 2_000
"""Maximum newest dead letters that are searched for a conversation, without an index."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One message of a conversation in one file."""

    id: str
    sender: str
    recipient: str
    session: str
    type: str
    state: str
    at: Millis
    ended_at: Millis | None
    cause: str | None
    """Id of the message that it answers, or in whose handler it was sent."""
    correlation_id: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of a conversation in one file."""

    sent: tuple[Spoken, ...]
    received: tuple[Spoken, ...]
    dead: tuple[Spoken, ...]

    @property
    def all(self) -> tuple[Spoken, ...]:
        """All rows of the file, including several of one message."""
        return (*self.sent, *self.received, *self.dead)


CAUSE: Final = """
CASE WHEN octet_length(frame) <= 65536 AND json_valid(frame)
     THEN coalesce(json_extract(frame, '$.inreplyto'), json_extract(frame, '$.causationid')) END"""
# The first message of a conversation has no cause, and its frame may be large: skip it.
FIRST_CAUSE: Final = f"CASE WHEN correlation_id IS NOT NULL THEN {CAUSE} END"
OWN: Final = f"""
SELECT {columns(Spoken, at="created_at", cause=FIRST_CAUSE)} FROM onceward_outbox
 WHERE id = :root
"""
SENT: Final = f"""
SELECT {columns(Spoken, at="created_at", cause=CAUSE)} FROM onceward_outbox
 WHERE correlation_id = :root
 ORDER BY seq LIMIT {MOST}
"""
RECEIVED: Final = f"""
SELECT {columns(Spoken, at="received_at", cause=CAUSE)} FROM onceward_inbox
 WHERE correlation_id = :root
 ORDER BY seq LIMIT {MOST}
"""
FIRST: Final = f"""{SENDERS}
SELECT {columns(Spoken, "b.", at="b.received_at", cause=CAUSE)}
  FROM senders AS s CROSS JOIN onceward_inbox AS b ON b.sender = s.name AND b.id = :root
"""
DEAD: Final = f"""
SELECT {columns(Spoken, state="'dead'", at="created_at", ended_at="dead_at", cause=CAUSE)}
  FROM onceward_dead_letters
 WHERE seq IN (SELECT seq
                 FROM (SELECT seq, id, correlation_id FROM onceward_dead_letters
                        WHERE seq <= :newest ORDER BY seq DESC LIMIT {RECENT})
                WHERE correlation_id = :root OR id = :root
                LIMIT {MOST})
"""


def part(source: Source, root: str) -> Part:
    """Return a file's part of the conversation that began with the message *root*."""
    sent = (*values(source, Spoken, OWN, root=root), *values(source, Spoken, SENT, root=root))
    first = values(source, Spoken, FIRST, root=root)
    received = (*first, *values(source, Spoken, RECEIVED, root=root))
    dead = values(source, Spoken, DEAD, root=root, newest=NEVER)
    return Part(tuple(dict.fromkeys(sent)), tuple(dict.fromkeys(received)), dead)
