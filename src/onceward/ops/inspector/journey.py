"""Collect the journey of one message from the files of its two agents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from onceward.message.clock import Millis
from onceward.message.handler_work import StepInfo, Transition
from onceward.message.vocabulary import AWAITS
from onceward.ops.views.messages import (
    FoundMessage,
    StoredMessage,
)

Tone = Literal["plain", "good", "bad", "wait"]
ENDINGS: Final[dict[str, tuple[str, Tone]]] = {
    "acked": ("receipt", "good"),
    "failed": ("failed", "bad"),
    "cancelled": ("cancelled", "plain"),
    "dropped": ("dropped", "plain"),
    "processed": ("handled", "good"),
    "expired": ("expired", "plain"),
}
"""Word and tone for each final state of a row."""
STEP_TONES: Final[dict[str, Tone]] = {
    "done": "plain",
    "waiting": "wait",
    "retrying": "wait",
    "given_up": "bad",
    "failed": "bad",
}
"""Tone by the state of a step."""
STEP_WAITS: Final = {"waiting": "until then", "retrying": "is tried again then"}
LATER: Final = 1 << 62
ORDER: Final = (
    "committed", "replayed", "packed", "push tried", "accepted", "stored there", "asked again",
    "tried", "processed", "handled", "dropped", "expired", "dead letter", "failed", "receipt",
)  # fmt: skip
"""Order of steps of one millisecond."""


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a message, or a condition that it waits for (``at`` is None)."""

    at: Millis | None
    what: str
    agent: str
    """The agent whose file reports it."""
    detail: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Phase:
    """A place of the message, with its begin and end."""

    name: str
    begin_at: Millis
    end_at: Millis | None
    """None while it is still there."""


def steps(sender: FoundMessage, recipient: FoundMessage) -> list[Step]:
    """Return the steps in order of time; pending ones are last."""
    found = [*_of_sender(sender), *_of_recipient(recipient)]
    for files in (sender, recipient) if sender is not recipient else (sender,):
        found += [*_lives(files), *(step for dead in files.dead for step in _of_death(dead))]
    return sorted(dict.fromkeys(found), key=_place)


def _lives(found: FoundMessage) -> Iterator[Step]:
    """Yield earlier failures whose dead letter no longer exists, and the replays."""
    one = found.any
    if one is None:
        return
    kept = {(dead.dead_at, dead.reason) for dead in found.dead}
    died: set[bool] = set()
    for each in found.transitions:
        sent = each.box == "outbox"
        name = one.sender if sent else one.recipient
        if each.to_state == "dead":
            died.add(sent)
            if (each.at, each.reason) not in kept:
                yield Step(each.at, "dead letter", name, each.reason or "", "bad")
        elif each.from_state is None and sent in died:
            yield Step(each.at, "replayed", name, "was a dead letter", "wait")
    for row in (*filter(None, (found.sent,)), *found.received):
        if row.replays and (row is found.sent) not in died:
            name = row.sender if row is found.sent else row.recipient
            times = f"{row.replays} times, " if row.replays > 1 else ""
            told = f"{times}was a dead letter; the time is known only if transitions are recorded"
            yield Step(row.at, "replayed", name, told, "wait")


def _place(step: Step) -> tuple[Millis, int]:
    word = step.what.partition(",")[0]
    rank = ORDER.index(word) if word in ORDER else len(ORDER)
    return (LATER if step.at is None else step.at), rank


def _of_sender(found: FoundMessage) -> Iterator[Step]:
    row = found.sent
    if row is None:
        return
    name = row.sender
    key = f", key {row.key}" if row.key else ""
    topic = f", topic {row.topic}" if row.topic else ""
    yield Step(row.at, "committed", name, f"session {row.session}{topic}{key}")
    yield from _sending_again(found.transitions, name)
    stored_at = next(
        (each.at for each in found.transitions if each.to_state == "sent"), row.sent_at
    )
    if stored_at is not None:
        yield Step(stored_at, "stored there", name, f"{row.recipient} answered that it has it")
    for each in found.acknowledgments:
        yield Step(each.at, each.status.replace("_", " "), name, f"says {each.participant}")
    if row.ended_at is not None:
        what, tone = ENDINGS.get(row.state, (row.state, "plain"))
        told = "the sender knows that it was handled" if row.state == "acked" else row.reason or ""
        yield Step(row.ended_at, what, name, told, tone)
    else:
        yield from _waiting_to_leave(row)


def _sending_again(transitions: tuple[Transition, ...], name: str) -> Iterator[Step]:
    asked: list[Millis] = []
    for step in transitions:
        if step.box != "outbox" or step.from_state is None:
            continue
        if step.from_state == step.to_state:
            yield Step(step.at, "push tried", name, step.reason or "no answer", "bad")
        elif step.to_state == "pending" and step.from_state == "sent":
            asked.append(step.at)
        elif step.to_state == "pending":
            yield Step(step.at, "replayed", name, f"was {step.from_state}", "wait")
    if asked:
        times = f", {len(asked)} times" if len(asked) > 1 else ""
        yield Step(asked[-1], "asked again", name, f"no receipt had arrived{times}", "wait")


def _waiting_to_leave(row: StoredMessage) -> Iterator[Step]:
    name = row.sender
    if row.state == "sending":
        yield Step(None, "packed", name, f"in the parcel on its way to {row.recipient}", "wait")
    elif row.held_by:
        yield Step(None, "held", name, row.held_by, "wait")
    elif row.state == "pending" and row.due_at is not None:
        yield Step(row.due_at, "not before", name, row.reason or "delayed", "wait")
    elif row.state == "pending":
        yield Step(None, "waits to leave", name, row.reason or "in the outbox", "wait")
    elif row.state == "sent":
        yield Step(None, "receipt awaited", name, f"from {row.recipient}", "wait")


def _of_recipient(found: FoundMessage) -> Iterator[Step]:
    for row in found.received:
        yield Step(row.at, "accepted", row.recipient, f"{_place_in_inbox(row)}{row.priority}")
        tries = [*_tries(found, row.sender, row.recipient)]
        yield from tries
        yield from _of_handler(found, row.recipient)
        yield _handling(row, recorded=bool(tries))
    if found.received:
        return
    if found.died_here is not None:
        yield from _before_death(found, found.died_here)
        yield from _of_handler(found, found.died_here.recipient)
        return
    for record in found.processed:
        told = "from its dedup record; the row was pruned"
        owner = found.any.recipient if found.any else ""
        good: Tone = "good" if record.state == "processed" else "bad"
        yield Step(record.ended_at, record.state, owner, told, good)


def _place_in_inbox(row: StoredMessage) -> str:
    """Return the recipient's place of a message; a handled one no longer has a lane."""
    places = {"mailbox": row.mailbox, "channel": row.channel, "lane": row.lane}
    return next((f"{word} {name}, " for word, name in places.items() if name), "")


def _tries(found: FoundMessage, sender: str, owner: str) -> Iterator[Step]:
    """Yield the recorded attempts, each with its error; a replay restarts the count."""
    tried = [
        each for each in found.transitions
        if (each.box, each.peer) == ("inbox", sender)
        and each.from_state in {None, "pending"} and each.to_state == "pending"
    ]  # fmt: skip
    number = 0
    for each in tried:
        number = number + 1 if each.from_state else 0
        error = f"last error: {each.reason}" if each.reason else ""
        if number:
            yield Step(each.at, f"tried, attempt {number}", owner, error)


def _of_handler(found: FoundMessage, owner: str) -> Iterator[Step]:
    """Yield the steps of the handler, and its output."""
    for each in found.steps:
        ordinal = f"#{each.ordinal}" if each.ordinal > 1 else ""
        yield Step(
            each.started_at if each.due_at is None else each.due_at,
            f"step {each.name}{ordinal}",
            owner,
            _told_of(each),
            "plain" if each.state == "waiting" and not each.awaits else STEP_TONES[each.state],
        )
    for stream in found.streams:
        chunks = "1 chunk" if stream.chunks == 1 else f"{stream.chunks} chunks"
        told = f"{chunks}, {stream.bytes} bytes, attempt {stream.attempt}"
        yield Step(stream.begun_at, f"stream {stream.name}", owner, told)


def _told_of(step: StepInfo) -> str:
    """Return a step's progress: seconds and attempts, or its awaited message, and its error."""
    if step.due_at is not None:
        waits = f"waits for {step.awaits}" if step.awaits else STEP_WAITS[step.state]
        told = [waits, f"attempt {step.attempts}" if step.attempts else ""]
    else:
        word = step.state.replace("_", " ")
        tries = f"{step.attempts} attempts" if step.attempts > 1 else ""
        told = [f"{word} in {step.took:.3g} s", tries]
    return ", ".join(filter(None, [*told, step.error or ""]))


def _before_death(found: FoundMessage, died: StoredMessage) -> Iterator[Step]:
    """Yield the recorded events of a message whose row became a dead letter."""
    came = ("inbox", died.sender, None, "pending")
    for each in found.transitions:
        if (each.box, each.peer, each.from_state, each.to_state) == came:
            yield Step(each.at, "accepted", died.recipient, died.priority)
            break  # a later one is a replay
    yield from _tries(found, died.sender, died.recipient)


def _handling(row: StoredMessage, *, recorded: bool) -> Step:
    """Return how the recipient's row ended, or why it waits."""
    tried = f"attempt {row.attempts}" if row.attempts else ""
    if row.ended_at is not None:
        what, tone = ENDINGS.get(row.state, (row.state, "plain"))
        told = row.reason or (tried if recorded or row.attempts > 1 else "")
        return Step(row.ended_at, what, row.recipient, told, tone)
    if row.state == "processing":
        told = ", ".join(filter(None, ("being handled", tried)))
        return Step(None, "claimed", row.recipient, told, "wait")
    if row.reason and row.reason.startswith(AWAITS):
        return Step(None, "waits for a reply", row.recipient, row.reason, "wait")
    why = row.reason or "in the inbox"
    told = f"{tried} failed: {why}" if tried and row.reason else why
    return Step(None, "waits to be handled", row.recipient, told, "wait")


def _of_death(dead: StoredMessage) -> Iterator[Step]:
    name = dead.sender if dead.origin == "outbox" else dead.recipient
    error = f": {dead.last_error}" if dead.last_error else ""
    tries = f" after {dead.attempts} attempts" if dead.attempts > 1 else ""
    yield Step(dead.dead_at, "dead letter", name, f"{dead.reason}{tries}{error}", "bad")
    if dead.late_at is not None:
        yield Step(dead.late_at, "late outcome", name, dead.late_outcome or "", "wait")


def phases(sender: FoundMessage, recipient: FoundMessage) -> list[Phase]:
    """Return the places of the message, in order."""
    row = sender.sent
    arrived = recipient.received[0] if recipient.received else None
    died = recipient.died_here
    found: list[Phase] = []
    if row is not None:
        left_at = arrived.at if arrived else row.sent_at or row.ended_at
        found.append(Phase("outbox", row.at, left_at))
    if arrived is not None:
        found.append(Phase("inbox", arrived.at, arrived.ended_at))
        if row is not None and arrived.ended_at is not None:
            found.append(Phase("receipt", arrived.ended_at, row.ended_at))
    elif died is not None and row is not None and row.sent_at is not None:
        found += [
            Phase("inbox", row.sent_at, died.at), Phase("receipt", died.at, row.ended_at)
        ]  # fmt: skip
    return [each for each in found if each.end_at is None or each.end_at >= each.begin_at]
