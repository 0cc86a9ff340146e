"""Say in one sentence why a message, a lane, a session, a peer or an agent is where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from onceward.file.columns import columns
from onceward.message.clock import Millis
from onceward.message.times import UNITS
from onceward.ops.views import lists, messages, overview, waiting
from onceward.ops.views.messages import FoundMessage, StoredDeath, StoredMessage, message
from onceward.ops.views.reader import Source, values

Level = Literal["act", "wait", "ok"]
"""Urgency: a person acts now, waits, or has nothing to do."""
SHOWN: Final = 13
"""Characters of an id in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why something is where it is, in one sentence."""

    reason: str
    """The reason's name: one of a closed set, for grouping and for programs."""
    text: str
    """The sentence, with moments told from now."""
    level: Level = "wait"
    until_at: Millis | None = None
    """The moment at which it changes by itself, if that is known."""
    cure: str | None = None
    """The command that mends it, if one does."""


@dataclass(frozen=True, slots=True)
class LaneOf:
    """The lane of a message of the inbox."""

    sender: str | None
    lane: str
    state: str
    head_id: str | None
    due_at: Millis | None
    owner: str | None
    awaits: str | None
    asked_at: Millis | None


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step that waits: for a moment, a message, or its next attempt."""

    name: str
    state: str
    attempts: int
    awaits: str | None
    due_at: Millis | None
    error: str | None


# A session with runs has one lane for all senders, beside the lanes from which it takes messages.
LANE: Final = f"""
SELECT {columns(LaneOf)} FROM onceward_lanes
 WHERE lane = :lane AND priority = :priority AND (sender = :sender OR sender IS NULL)
 ORDER BY state = 'empty', head_id IS NOT :id, sender IS NOT NULL LIMIT 1
"""
OPEN_STEP: Final = f"""
SELECT {columns(OpenStep)} FROM onceward_steps
 WHERE message_id = :id AND sender = :sender AND state IN ('waiting', 'retrying')
 ORDER BY seq LIMIT 1
"""
# Messages that are parked behind a head that failed alone are due when it is.
HEAD: Final = """
SELECT id FROM onceward_outbox
 WHERE due_at = :due AND recipient = :recipient AND lane = :lane AND priority = :priority
   AND seq < :seq AND attempts > 0
 ORDER BY seq LIMIT 1
"""
INBOX_ROW: Final = f"""
SELECT {messages.COLUMNS["inbox"]} FROM onceward_inbox WHERE sender = :sender AND id = :id
"""
PEER: Final = f"SELECT {columns(lists.Peer)} FROM onceward_peers WHERE name = :name"
QUEUE: Final = (
    f"SELECT {columns(lists.SessionQueue)} FROM onceward_session_queues WHERE session = :session"
)


# -- a message ----------------------------------------------------------------------------


def message_why(
    sender: Source | None, recipient: Source | None, message_id: str, now: Millis
) -> Why | None:
    """
    Return why a message is where it is; None where neither file has it.

    Args:
        sender: The file of the agent that sent it; None where it cannot be read.
        recipient: The file of the agent that it is for; None where it cannot be read.
        message_id: The whole id.
        now: The moment from which spans are told.

    """
    there = None if recipient is None else message(recipient, message_id, window=0)
    if recipient is not None and there and (found := _received(recipient, there, now)):
        return found
    here = None if sender is None else message(sender, message_id, window=0)
    return _sent(sender, here, now) if sender is not None and here else None


def _received(source: Source, found: FoundMessage, now: Millis) -> Why | None:
    """Return what the recipient's file says; None where it never had the message."""
    if (dead := found.died_here) is not None:
        return _dead(dead, dead.recipient, now)
    for row in found.received:
        if row.ended_at is not None:
            return _ended(row, row.recipient, now)
        return _first(_IN_INBOX, source, row, now)
    for record in found.processed:
        text = f"{record.recipient} {_ending(record.state)} it {_ago(record.ended_at, now)}"
        return Why(reason=record.state, text=text, level="ok")
    return None


def _sent(source: Source, found: FoundMessage, now: Millis) -> Why | None:
    """Return what the sender's file says."""
    dead = next((each for each in found.dead if each.origin == "outbox"), None)
    if dead is not None:
        return _dead(dead, dead.sender, now)
    row = found.sent
    if row is None:
        return None
    if row.ended_at is not None:
        return _ended(row, row.recipient, now)
    return _first(_IN_OUTBOX, source, row, now)


def _dead(dead: StoredDeath, owner: str, now: Millis) -> Why:
    tries = f" after {dead.attempts} attempts" if dead.attempts > 1 else ""
    told = f"{dead.reason}{_cause(dead.last_error)}"
    return Why(
        reason="dead letter",
        text=f"{owner} gave it up {_ago(dead.dead_at, now)}{tries}: {told}",
        level="act",
        cure=f"onceward dead replay {dead.id} --agent {owner}",
    )


def _ended(row: StoredMessage, owner: str, now: Millis) -> Why:
    told = f": {row.reason}" if row.reason else ""
    text = f"{owner} {_ending(row.state)} it {_ago(row.ended_at or now, now)}{told}"
    if row.state in {"failed", "cancelled", "expired"} and row.box == "outbox":
        text = f"{row.state.capitalize()} {_ago(row.ended_at or now, now)}{told}"
    failed = row.state == "failed"
    return Why(reason=row.state, text=text, level="act" if failed else "ok")


def _ending(state: str) -> str:
    verbs = {"acked": "processed", "processed": "processed", "dropped": "dropped"}
    return verbs.get(state, f"ended ({state})")


_Reason = Callable[[Source, StoredMessage, Millis], Why | None]


def _first(reasons: tuple[_Reason, ...], source: Source, row: StoredMessage, now: Millis) -> Why:
    return next(found for ask in reasons if (found := ask(source, row, now)) is not None)


# -- in the outbox ------------------------------------------------------------------------


def _sending(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    if row.state != "sending":
        return None
    peer = peer_why(source, row.recipient, now)
    if peer is not None and peer.level != "ok":
        return peer
    text = f"On its way to {row.recipient}: the answer is awaited"
    return Why(reason="sending", text=text)


def _stored_there(_: Source, row: StoredMessage, now: Millis) -> Why | None:
    if row.state != "sent":
        return None
    text = f"{row.recipient} stored it {_ago(row.sent_at or now, now)}; it is not handled yet"
    return Why(reason="stored there", text=text)


def _agent_paused(source: Source, _: StoredMessage, now: Millis) -> Why | None:
    facts = overview.file_facts(source)
    return None if facts.paused_at is None else _paused(facts, now)


def _held(_: Source, row: StoredMessage, __: Millis) -> Why | None:
    if row.held_by is None:
        return None
    kind, _colon, name = row.held_by.partition(":")
    if kind == "channel":
        cure = f"onceward channel resume {name} --agent {row.sender}"
        return Why(reason="held", text=f"Channel {name} is paused", level="act", cure=cure)
    text = f"Waits until the limit of {name.replace(':', ' ')} has capacity for it"
    return Why(reason="held", text=text)


def _push_later(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    if row.due_at is None or row.due_at <= now:
        return None
    if row.attempts:
        return _failed("Push", row, now)
    named = {name: getattr(row, name) for name in ("recipient", "lane", "priority", "seq")}
    heads = source.rows(HEAD, {"due": row.due_at} | named)
    if not heads:
        return _delayed(row, now)
    [head] = values(source, StoredMessage, messages.SENT, id=heads[0][0])
    return _behind(head, _first(_IN_OUTBOX, source, head, now))


def _peer_waits(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    found = peer_why(source, row.recipient, now)
    return None if found is None or found.level == "ok" else found


def _to_leave(_: Source, row: StoredMessage, __: Millis) -> Why:
    text = f"Ready to leave: it waits for a process that delivers for {row.sender}"
    return Why(reason="ready", text=text, cure=f"onceward relay --agent {row.sender}")


# -- in the inbox -------------------------------------------------------------------------


def _in_hand(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    if row.state != "processing":
        return None
    lane = _lane_of(source, row)
    if lane is not None and lane.due_at is not None and lane.due_at <= now:
        text = f"The lease of its worker ended {_ago(lane.due_at, now)}: the next worker handles it"
        return Why(reason="lease ended", text=text, cure=f"onceward work --agent {row.recipient}")
    step = _open_step(source, row)
    told = f", at its step {step.name}" if step else ""
    until = lane.due_at if lane else None
    text = f"{row.recipient} handles it now, attempt {max(1, row.attempts)}{told}"
    return Why(reason="handled", text=text, level="ok", until_at=until)


def _in_mailbox(_: Source, row: StoredMessage, __: Millis) -> Why | None:
    if row.mailbox is None:
        return None
    return Why(reason="mailbox", text=f"In mailbox {row.mailbox} until it is read", level="ok")


def _in_channel(_: Source, row: StoredMessage, __: Millis) -> Why | None:
    if row.channel is None or row.lane is not None:
        return None
    return Why(reason="channel", text=f"In channel {row.channel} until it is received", level="ok")


def _in_queue(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    lane = _lane_of(source, row)
    if lane is None or lane.sender is not None:
        return None
    return session_why(source, row.session, now)


def _behind_head(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    lane = _lane_of(source, row)
    if lane is None or lane.head_id is None or lane.head_id == row.id:
        return None
    found = values(source, StoredMessage, INBOX_ROW, id=lane.head_id, sender=row.sender)
    if not found:
        return None
    return _behind(found[0], _first(_IN_INBOX, source, found[0], now))


def _answer_awaited(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    lane = _lane_of(source, row)
    if lane is None or lane.awaits is None:
        return None
    text = f"Waits for an answer of {lane.awaits}, asked {_ago(lane.asked_at or now, now)}"
    return Why(reason="answer", text=text, until_at=lane.due_at)


def _at_a_step(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    step = _open_step(source, row)
    if step is None:
        return None
    until = step.due_at
    if step.state == "retrying":
        tried = f"Step {step.name} failed {_times(step.attempts)}{_cause(step.error)}"
        text = f"{tried}{_next(until, now)}"
        return Why(reason="step failed", text=text, until_at=until)
    if step.awaits is not None:
        text = f"Waits for a message of type {step.awaits}{_timeout(until, now)}"
        return Why(reason="message awaited", text=text, until_at=until)
    return Why(reason="asleep", text=f"Sleeps, and goes on{_at(until, now)}", until_at=until)


def _handle_later(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    lane = _lane_of(source, row)
    if lane is None or lane.due_at is None or lane.due_at <= now:
        return None
    later = replace(row, due_at=lane.due_at)
    return _failed("Handler", later, now) if row.attempts else _delayed(later, now)


def _to_be_handled(_: Source, row: StoredMessage, __: Millis) -> Why:
    tried = f"; it failed {_times(row.attempts)}{_cause(row.reason)}" if row.attempts else ""
    text = f"Next in its lane: it waits for a free worker of {row.recipient}{tried}"
    return Why(reason="ready", text=text, cure=f"onceward work --agent {row.recipient}")


_IN_OUTBOX: Final[tuple[_Reason, ...]] = (
    _sending, _stored_there, _agent_paused, _held, _push_later, _peer_waits, _to_leave,
)  # fmt: skip
"""Reasons of a message that is not settled, in the order in which they are asked."""
_IN_INBOX: Final[tuple[_Reason, ...]] = (
    _in_hand, _in_mailbox, _in_channel, _agent_paused, _in_queue, _behind_head,
    _answer_awaited, _at_a_step, _handle_later, _to_be_handled,
)  # fmt: skip


def _lane_of(source: Source, row: StoredMessage) -> LaneOf | None:
    named = {name: getattr(row, name) for name in ("lane", "priority", "sender", "id")}
    return next(iter(values(source, LaneOf, LANE, **named)), None)


def _open_step(source: Source, row: StoredMessage) -> OpenStep | None:
    return next(iter(values(source, OpenStep, OPEN_STEP, id=row.id, sender=row.sender)), None)


def _behind(head: StoredMessage, why: Why) -> Why:
    text = f"Waits behind {head.id[:SHOWN]}… in its lane. That one: {_lower(why.text)}"
    return replace(why, reason="behind", text=text)


def _failed(what: str, row: StoredMessage, now: Millis) -> Why:
    tried = f"{what} failed {_times(row.attempts)}{_cause(row.reason)}"
    return Why(reason="retry", text=f"{tried}{_next(row.due_at, now)}", until_at=row.due_at)


def _delayed(row: StoredMessage, now: Millis) -> Why:
    return Why(reason="delayed", text=f"Delayed: due{_at(row.due_at, now)}", until_at=row.due_at)


# -- a peer, a lane, a session, an agent --------------------------------------------------


def peer_why(source: Source, name: str, now: Millis) -> Why | None:
    """Return why a peer is pushed to or not; None where the file does not know it."""
    found = values(source, lists.Peer, PEER, name=name)
    if not found:
        return None
    peer = found[0]
    agent = overview.file_facts(source).agent
    tried = f"{_times(peer.failures)} in a row{_cause(peer.last_error)}"
    if peer.breaker != "closed":
        return Why(
            reason="breaker open",
            text=f"Pushes to {name} failed {tried}: its circuit breaker is open"
            f"{_next(peer.due_at, now)}",
            level="act",
            until_at=peer.due_at,
            cure=f"onceward peers reset {name} --agent {agent}",
        )
    if peer.failures:
        text = f"Pushes to {name} failed {tried}{_next(peer.due_at, now)}"
        level: Level = "act" if peer.failing else "wait"
        return Why(reason="peer failing", text=text, level=level, until_at=peer.due_at)
    seen = f"; it answered {_ago(peer.seen_at, now)}" if peer.seen_at else ""
    return Why(reason="reachable", text=f"{name} takes messages{seen}", level="ok")


def lane_why(source: Source, lane: lists.Lane, now: Millis) -> Why:
    """Return why a lane of the inbox stands: what holds its oldest message."""
    if lane.head_id is None or lane.sender is None:
        if lane.sender is None and lane.session is not None:
            return session_why(source, lane.session, now)
        return Why(reason="empty", text="No message waits in this lane", level="ok")
    found = values(source, StoredMessage, INBOX_ROW, id=lane.head_id, sender=lane.sender)
    if not found:
        return Why(reason="empty", text="No message waits in this lane", level="ok")
    return _first(_IN_INBOX, source, found[0], now)


def session_why(source: Source, session: str, now: Millis) -> Why:
    """Return why a session with runs stands."""
    found = values(source, lists.SessionQueue, QUEUE, session=session)
    if not found:
        return Why(reason="no runs", text=f"Session {session} has no runs", level="ok")
    queue = found[0]
    agent = overview.file_facts(source).agent
    waiting_ = _many(queue.waiting, "message")
    match queue.state:
        case "paused":
            return Why(
                reason="session paused",
                text=f"Session {session} was paused {_ago(queue.paused_at or now, now)};"
                f" {waiting_} in its queue",
                level="act",
                cure=f"onceward sessions resume {session} --agent {agent}",
            )
        case "running":
            text = f"Run {(queue.run or '')[:SHOWN]}… of session {session} is under way; {waiting_}"
            return Why(reason="running", text=f"{text} behind it", level="ok")
        case "waiting":
            text = f"The next run of session {session} begins{_at(queue.due_at, now)}; {waiting_}"
            return Why(reason="debounce", text=f"{text} in its queue", until_at=queue.due_at)
        case "ready":
            text = f"Session {session} waits for a free worker; {waiting_} in its queue"
            return Why(reason="ready", text=text, cure=f"onceward work --agent {agent}")
    return Why(reason="empty", text=f"No message waits for session {session}", level="ok")


def agent_whys(source: Source, now: Millis) -> tuple[Why, ...]:
    """Return what holds messages of an agent back, what to act on first; one at least."""
    found = overview.overview(source)
    every = tuple(_of_agent(source, found, now))
    ranked = sorted(every, key=lambda each: ("act", "wait", "ok").index(each.level))
    return tuple(ranked) or (_calm(found, now),)


def _of_agent(source: Source, found: overview.Overview, now: Millis) -> Iterator[Why]:
    agent = found.file.agent
    if found.file.paused_at is not None:
        yield _paused(found.file, now)
    for peer in lists.worst_peers(source, overview.PEERS):
        if not peer.failing:
            break
        if (why := peer_why(source, peer.name, now)) is not None:
            yield why
    if found.dead_letters:
        yield Why(
            reason="dead letter",
            text=f"{_many(found.dead_letters, 'dead letter')} of {agent} to replay or discard",
            level="act",
            cure=f"onceward dead ls --agent {agent}",
        )
    if found.lanes.failing:
        yield Why(
            reason="retry",
            text=f"{_many(found.lanes.failing, 'lane')} of {agent} failed, to be tried again",
            cure=f"onceward ls lanes --agent {agent}",
        )
    for schedule in lists.schedules(source):
        if schedule.failing:
            text = f"Schedule {schedule.name} cannot send{_cause(schedule.last_error)}"
            cure = f"onceward schedules ls --agent {agent}"
            yield Why(reason="schedule failing", text=text, level="act", cure=cure)
    if (asked := waiting.awaiting(source)) is not None:
        text = f"Waits for an answer of {asked.awaits}, asked {_ago(asked.asked_at, now)}"
        more = f" (and {asked.lanes - 1} more)" if asked.lanes > 1 else ""
        yield Why(reason="answer", text=f"{text}{more}")


def _calm(found: overview.Overview, now: Millis) -> Why:
    waits = found.outgoing + found.incoming
    if not waits or found.oldest_at is None:
        return Why(reason="idle", text=f"No message of {found.file.agent} waits", level="ok")
    text = f"{_many(waits, 'message')} of {found.file.agent} in hand, the oldest for"
    return Why(reason="busy", text=f"{text} {_span(now - found.oldest_at)}", level="ok")


def _paused(facts: overview.FileFacts, now: Millis) -> Why:
    since = _ago(facts.paused_at or now, now)
    text = f"{facts.agent} was paused {since}: it handles and sends nothing"
    cure = f"onceward resume --agent {facts.agent}"
    return Why(reason="paused", text=text, level="act", cure=cure)


# -- words --------------------------------------------------------------------------------


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _many(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"


def _cause(error: str | None) -> str:
    return f" ({error})" if error else ""


def _lower(text: str) -> str:
    head, _, _ = text.partition(" ")
    known = {"Push", "Handler", "Waits", "Ready", "Next", "Delayed", "On", "Step", "Sleeps", "The"}
    return f"{text[0].lower()}{text[1:]}" if head in known else text


def _span(spent: Millis) -> str:
    """Return a span in its largest unit: 35 s, 3 h."""
    seconds = max(0, spent) / 1000
    unit = next((name for name in ("w", "d", "h", "m") if seconds >= UNITS[name]), "s")
    return f"{seconds / UNITS[unit]:.0f} {unit}"


def _ago(then: Millis, now: Millis) -> str:
    return f"{_span(now - then)} ago"


def _at(until: Millis | None, now: Millis) -> str:
    return "" if until is None else f" in {_span(until - now)}"


def _next(until: Millis | None, now: Millis) -> str:
    return "" if until is None else f"; next try in {_span(until - now)}"


def _timeout(until: Millis | None, now: Millis) -> str:
    return "" if until is None else f"; its timeout is in {_span(until - now)}"
