"""Ask one file for the events of a session: messages in and out, and runs with their steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from onceward.file.read_only import FileReader
from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.ops.views import listing, lists
from onceward.ops.views.asking import Source, values
from onceward.ops.views.listing import Conditions, literal
from onceward.ops.views.messages import StoredMessage

Kind = Literal["received", "sent", "dead letter", "run", "step"]
BOXES: Final = ("inbox", "outbox", "dead")
RANK: Final = {"received": 0, "run": 1, "step": 2, "sent": 3, "dead letter": 4}
"""Order of events of the same millisecond."""


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One event of a session."""

    at: Millis
    kind: Kind
    state: str
    id: str
    """Id of the message or of the run; of a step the id of its message."""
    what: str
    """Type of the message, mode of the run, or name of the step."""
    peer: str
    """The other agent of a message; empty for runs and steps."""
    ended_at: Millis | None
    detail: str


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run."""

    message_id: str
    name: str
    state: str
    attempts: int
    started_at: Millis
    ended_at: Millis
    error: str | None


STEPS: Final = f"""
SELECT {columns(RunStep)} FROM onceward_steps
 WHERE message_id IN (SELECT j.value FROM json_each(:ids) AS j) ORDER BY seq LIMIT :limit
"""


def session_events(reader: FileReader, session: str, limit: int) -> tuple[SessionEvent, ...]:
    """Return the last events of a session, oldest first, at most *limit* of each kind."""
    wanted = Conditions(session=literal(session))
    found: list[SessionEvent] = []
    for box in BOXES:
        budget = listing.BUDGET / len(BOXES)
        rows = listing.listing(reader, box, wanted, rows=limit, budget=budget).messages
        found += map(_of_message, rows)
    found += _of_runs(reader, session, limit)
    return tuple(sorted(dict.fromkeys(found), key=lambda each: (each.at, RANK[each.kind])))


def _of_message(row: StoredMessage) -> SessionEvent:
    kinds: dict[str, Kind] = {"inbox": "received", "outbox": "sent", "dead": "dead letter"}
    peer = row.sender if row.box == "inbox" else row.recipient
    state = row.reason or "" if row.box == "dead" else row.state
    return SessionEvent(
        row.at, kinds[row.box], state, row.id, row.type, peer, row.ended_at, row.why or ""
    )


def _of_runs(source: Source, session: str, limit: int) -> Iterator[SessionEvent]:
    """Yield the runs of a session, each with the steps of its messages."""
    for run in lists.runs(source, session=session, limit=limit):
        count = "1 message" if run.messages == 1 else f"{run.messages} messages"
        detail = f"{count}{f': {run.cause}' if run.cause else ''}"
        yield SessionEvent(
            run.started_at, "run", run.state, run.id, run.mode, "", run.ended_at, detail
        )
        _, content = lists.run(source, run.id)
        steps = values(source, RunStep, STEPS, ids=content.event_ids, limit=limit)
        yield from (_of_step(step) for step in steps)


def _of_step(step: RunStep) -> SessionEvent:
    tried = f"attempt {step.attempts}" if step.attempts > 1 else ""
    detail = ": ".join(filter(None, (tried, step.error)))
    return SessionEvent(
        step.started_at, "step", step.state, step.message_id, step.name, "", step.ended_at, detail
    )
