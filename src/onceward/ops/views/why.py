"""Explain in one sentence why a message, a lane, a session, a peer or an agent waits."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Final, NamedTuple

from onceward.file.file_checks import LEFT_GLOB, is_gone
from onceward.file.in_flight import has_died
from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.message.handler_work import StepInfo
from onceward.message.names import DEFAULT_SESSION
from onceward.message.times import in_one_unit
from onceward.ops.views import directory, lists, messages, overview, pools, waiting
from onceward.ops.views.asking import Source, values
from onceward.ops.views.handler_limits import HandlerLimit, handler_limits
from onceward.ops.views.messages import FoundMessage, StoredMessage, message
from onceward.ops.views.surroundings import causes
from onceward.ops.views.vocabulary import Level

SOME: Final = 10
"""Maximum reasons of one kind."""
SHOWN: Final = 13
"""Characters of an id in a sentence."""
WORK: Final = "onceward work MODULE:AGENT"
"""The command that starts a worker; no file knows the module in which its agent is declared."""
RECEIVE: Final = "call receive, or start a worker: "
"""The cure for an agent of which the file does not show that it has handlers."""
HAD_WORKERS: Final = """
SELECT EXISTS (SELECT 1 FROM onceward_steps WHERE seq >= 0)
    OR EXISTS (SELECT 1 FROM onceward_failed_attempts WHERE seq >= 0)
"""
"""Handlers leave steps and failed attempts behind; readers leave neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why something waits or how it ended, in one sentence."""

    reason: str
    """The reason's name: one of a closed set, for grouping and for programs."""
    parts: tuple[str | Millis, ...]
    """The sentence; a moment is shown as a duration from now, ``in`` a past one as ``now``."""
    level: Level = "wait"
    until_at: Millis | None = None
    """The moment at which it changes by itself, if that is known."""
    since_at: Millis | None = None
    """The moment since which it is so, if the file knows it."""
    cure: str | None = None
    """The command or call that fixes it, if there is one."""
    of: str | None = None
    """The name of its subject: a peer, session, schedule or dead letter."""

    def text(self, now: Millis) -> str:
        """Return the sentence at a moment."""
        told = ""
        for each in self.parts:
            if isinstance(each, str):
                told += each
            elif told.endswith(" in ") and each <= now:
                told = f"{told.removesuffix('in ')}now"
            else:
                told += in_one_unit(abs(each - now))
        return told


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


TAB: Final = "\t"
WAITS: Final = """
SELECT b.waits_for, b.waits_until_at,
       (SELECT l.group_name FROM onceward_lanes AS l
         WHERE l.lane = b.lane AND l.sender IN (b.sender, '') AND l.head_seq = b.seq)
  FROM onceward_inbox AS b
 WHERE b.id = :id AND b.sender = :sender
"""
# A session with runs has one lane for all senders, apart from its arrival lanes.
LANE: Final = f"""
SELECT {columns(LaneOf)} FROM onceward_lanes
 WHERE lane = :lane AND priority = :priority AND (sender = :sender OR sender IS NULL OR sender = '')
 ORDER BY state = 'empty', head_id IS NOT :id, sender IS NOT NULL LIMIT 1
"""
OPEN_STEP: Final = f"""
SELECT {columns(StepInfo)} FROM onceward_steps
 WHERE message_id = :id AND sender = :sender AND state IN ('waiting', 'retrying')
 ORDER BY seq LIMIT 1
"""
# Messages behind a failed head are due when the head is.
HEAD: Final = """
SELECT id FROM onceward_outbox
 WHERE due_at = :due AND recipient = :recipient AND lane = :lane AND priority = :priority
   AND seq < :seq AND attempts > 0
 ORDER BY seq LIMIT 1
"""
INBOX_ROW: Final = f"""
SELECT {messages.COLUMNS["inbox"]} FROM onceward_inbox WHERE sender = :sender AND id = :id
"""
# No index leads to held messages; a limit or a pause that holds new ones also holds the newest.
HELD: Final = """
SELECT held_by, count(*), min(created_at), min(sender)
  FROM (SELECT * FROM onceward_outbox ORDER BY seq DESC LIMIT 1000) AS newest
 WHERE state = 'pending' AND held_by IS NOT NULL
 GROUP BY held_by ORDER BY 3 LIMIT 10
"""
DELAYED: Final = f"""
SELECT {messages.COLUMNS["outbox"]} FROM onceward_outbox
 WHERE due_at > :now AND state = 'pending' ORDER BY due_at LIMIT 1
"""
PAUSED_SESSIONS: Final = f"""
SELECT session FROM onceward_session_queues
 WHERE session > '' AND state = 'paused' ORDER BY session LIMIT {SOME}
"""
AWAITED: Final = f"""
SELECT message_id, name, awaits, due_at, count(*) OVER (),
       (SELECT session FROM onceward_inbox AS b WHERE b.id = s.message_id AND b.sender = s.sender)
  FROM (SELECT * FROM onceward_steps WHERE state = 'waiting' AND awaits IS NOT NULL
         ORDER BY seq LIMIT {overview.MANY}) AS s
 ORDER BY seq LIMIT 1
"""
PEER: Final = f"SELECT {columns(lists.Peer)} FROM onceward_peers WHERE name = :name"


# -- a message ----------------------------------------------------------------------------


def message_why(
    sender: Source | None, recipient: Source | None, message_id: str, now: Millis
) -> Why | None:
    """
    Return why a message waits or how it ended; None if neither file has it.

    Args:
        sender: The file of its sender; None if it cannot be read.
        recipient: The file of its recipient; None if it cannot be read.
        message_id: The whole id.
        now: The current moment.

    """
    there = None if recipient is None else message(recipient, message_id, window=0)
    if recipient is not None and there and (found := _received(recipient, there, now)):
        return found
    here = None if sender is None else message(sender, message_id, window=0)
    return _sent(sender, here, now) if sender is not None and here else None


def _received(source: Source, found: FoundMessage, now: Millis) -> Why | None:
    """Return the reason from the recipient's file; None if it never had the message."""
    if (dead := found.died_here) is not None:
        return _dead(dead, dead.recipient)
    for row in found.received:
        if row.ended_at is not None:
            return _ended(row, row.recipient, row.ended_at)
        return _first(_IN_INBOX, source, row, now)
    for record in found.processed:
        parts = (_ending(record.recipient, record.state), record.ended_at, " ago")
        return Why(reason=record.state, parts=parts, level="ok")
    return None


def _sent(source: Source, found: FoundMessage, now: Millis) -> Why | None:
    """Return the reason from the sender's file."""
    dead = next((each for each in found.dead if each.origin == "outbox"), None)
    if dead is not None:
        return _dead(dead, dead.sender)
    row = found.sent
    if row is None:
        return None
    if row.ended_at is not None:
        return _ended(row, row.recipient, row.ended_at)
    return _first(_IN_OUTBOX, source, row, now)


def _dead(dead: StoredMessage, owner: str) -> Why:
    tries = f" after {dead.attempts} attempts" if dead.attempts > 1 else ""
    told = f"{dead.reason}{_cause(dead.last_error)}"
    return Why(
        reason="dead letter",
        parts=(f"{owner} gave it up ", dead.at, f" ago{tries}: {told}"),
        level="act",
        since_at=dead.dead_at,
        cure=f"onceward {_repair(dead)} --agent {owner}",
        of=dead.id,
    )


def _repair(dead: StoredMessage) -> str:
    """Return the command that ends a dead letter; an expired one would be refused under its id."""
    if (dead.reason or "").partition(":")[0] not in {"expired", "stale"}:
        return f"dead replay {dead.id}"
    return (
        f"dead replay {dead.id} --as-new" if dead.origin == "outbox" else f"dead discard {dead.id}"
    )


def _ended(row: StoredMessage, owner: str, ended_at: Millis) -> Why:
    told = f": {row.reason}" if row.reason else ""
    here = row.box == "outbox" and row.state in {"failed", "cancelled"}
    begin = f"{row.state.capitalize()} " if here else _ending(owner, row.state)
    level: Level = "act" if row.state == "failed" else "ok"
    return Why(reason=row.state, parts=(begin, ended_at, f" ago{told}"), level=level)


def _ending(owner: str, state: str) -> str:
    """Return the beginning of a sentence about how a message ended at its recipient."""
    verb = "processed" if state == "acked" else state
    verbs = {"processed", "dropped", "cancelled"}
    return f"{owner} {verb} it " if verb in verbs else f"{state.capitalize()} at {owner} "


_Reason = Callable[[Source, StoredMessage, Millis], Why | None]


def _first(reasons: tuple[_Reason, ...], source: Source, row: StoredMessage, now: Millis) -> Why:
    return next(found for ask in reasons if (found := ask(source, row, now)) is not None)


# -- in the outbox ------------------------------------------------------------------------


def _sending(source: Source, row: StoredMessage, _: Millis) -> Why | None:
    if row.state != "sending":
        return None
    peer = peer_why(source, row.recipient)
    if peer is not None and peer.level != "ok":
        return peer
    text = f"On its way to {row.recipient}, waiting for its answer"
    return Why(reason="sending", parts=(text,))


def _stored_there(_: Source, row: StoredMessage, __: Millis) -> Why | None:
    if row.state != "sent" or row.sent_at is None:
        return None
    parts = (f"{row.recipient} stored it ", row.sent_at, " ago; it is not handled yet")
    return Why(reason="stored there", parts=parts)


def _agent_paused(source: Source, _: StoredMessage, __: Millis) -> Why | None:
    facts = overview.file_facts(source)
    return None if facts.paused_at is None else _paused(facts, facts.paused_at)


def _held(_: Source, row: StoredMessage, __: Millis) -> Why | None:
    if row.held_by is None:
        return None
    holder = _Holder(row.held_by, row.sender)
    text = f"Waits until the limit of {holder.name} has capacity for it"
    return holder.why(f"Channel {holder.name} is paused" if holder.is_channel else text)


class _Holder(NamedTuple):
    """A holder of messages of an outbox: a paused channel, or a full limit."""

    by: str
    agent: str

    @property
    def is_channel(self) -> bool:
        return self.by.startswith("channel:")

    @property
    def name(self) -> str:
        return self.by.partition(":")[2].replace(":", " ")

    def why(self, text: str) -> Why:
        """Return the reason of a message that it holds."""
        verb = f"channel resume {self.name}" if self.is_channel else f"limits set {self.name}"
        return Why(
            reason="held",
            parts=(text,),
            level="act" if self.is_channel else "wait",
            cure=f"onceward {verb} --agent {self.agent}",
            of=self.name,
        )


def _push_later(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    if row.due_at is None or row.due_at <= now:
        return None
    if row.attempts:
        return _failed("Push", row)
    named = {name: getattr(row, name) for name in ("recipient", "lane", "priority", "seq")}
    heads = source.rows(HEAD, {"due": row.due_at} | named)
    head = messages.sent_message(source, heads[0][0]) if heads else None
    if head is None:
        return _delayed(row)
    return _behind(head, _first(_IN_OUTBOX, source, head, now))


def _in_pool(source: Source, row: StoredMessage, _: Millis) -> Why | None:
    """Return why no member of its pool has a message; None if a process will give it to one."""
    for found in pools.waiting(source, row.recipient):
        if pools.is_in_doubt(source, found, row.seq):
            return _in_doubt(found, row.sender)
        reason, text = found.lacks
        if reason:
            return _lacking(reason, f"Waits: {text}", row.sender)
        if row.lane != DEFAULT_SESSION and found.in_flight:
            text = f"Waits for the member of {found.pool} that has others of lane {row.lane}"
            return Why(reason="lane elsewhere", parts=(text,))
    return None


def _lacking(reason: str, text: str, agent: str) -> Why:
    level: Level = "act" if reason == "no member" else "wait"
    return Why(reason=reason, parts=(text,), level=level, cure=f"onceward pools ls --agent {agent}")


def _in_doubt(found: pools.PoolRow, agent: str) -> Why:
    text = f"A member of {found.pool} may have it: this file was restored since it was sent"
    cure = f"onceward pools release {found.pool} --agent {agent}"
    return Why(reason="in doubt", parts=(text,), level="act", cure=cure, of=found.pool)


def _peer_waits(source: Source, row: StoredMessage, _: Millis) -> Why | None:
    found = peer_why(source, row.recipient)
    return None if found is None or found.level == "ok" else found


def _to_leave(_: Source, row: StoredMessage, __: Millis) -> Why:
    text = f"Ready to leave: it waits for a process that delivers for {row.sender}"
    return Why(reason="ready", parts=(text,), cure=f"onceward relay --agent {row.sender}")


# -- in the inbox -------------------------------------------------------------------------


def _in_hand(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    if row.state != "processing":
        return None
    lane = _lane_of(source, row)
    if lane is not None and lane.due_at is not None and lane.due_at <= now:
        parts = ("The lease of its worker ended ", lane.due_at, " ago: the next worker handles it")
        return Why(reason="lease ended", parts=parts, cure=to_take(source))
    if lane is not None and lane.owner is not None and has_died(source.path, lane.owner):
        text = "The process of its worker has ended: the next worker handles it"
        return Why(reason="lease ended", parts=(text,), cure=to_take(source))
    if lane is not None and lane.owner is not None and is_gone(lane.owner):
        lent = ("A process of another machine or container leased it; its lease ends", *_in(lane))
        return Why(reason="leased elsewhere", parts=lent, until_at=lane.due_at)
    step = _open_step(source, row)
    told = f", at its step {step.name}" if step else ""
    until = lane.due_at if lane else None
    text = f"{row.recipient} handles it now, attempt {max(1, row.attempts)}{told}"
    return Why(reason="handled", parts=(text,), level="ok", until_at=until)


def _in_mailbox(_: Source, row: StoredMessage, __: Millis) -> Why | None:
    if row.mailbox is None:
        return None
    return Why(reason="mailbox", parts=(f"In mailbox {row.mailbox} until it is read",), level="ok")


def _in_channel(_: Source, row: StoredMessage, __: Millis) -> Why | None:
    if row.channel is None or row.lane is not None:
        return None
    text = f"In channel {row.channel} until it is received"
    return Why(reason="channel", parts=(text,), level="ok")


def _in_queue(source: Source, row: StoredMessage, _: Millis) -> Why | None:
    lane = _lane_of(source, row)
    if lane is None or lane.sender is not None:
        return None
    return session_why(source, row.session)


def _behind_head(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    lane = _lane_of(source, row)
    if lane is None or lane.head_id is None or lane.head_id == row.id:
        return None
    found = values(source, StoredMessage, INBOX_ROW, id=lane.head_id, sender=row.sender)
    if not found:
        return None
    return _behind(found[0], _first(_IN_INBOX, source, found[0], now))


def _answer_awaited(source: Source, row: StoredMessage, _: Millis) -> Why | None:
    lane = _lane_of(source, row)
    if lane is None or lane.awaits is None or lane.asked_at is None:
        return None
    return replace(_asked(lane.awaits, lane.asked_at), until_at=lane.due_at)


def _at_a_step(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    step, lane = _open_step(source, row), _lane_of(source, row)
    if step is None or (lane is not None and _is_ready(lane, now)):
        return None
    until = step.due_at
    if step.state == "retrying":
        tried = f"Step {step.name} failed {_times(step.attempts)}{_cause(step.error)}"
        return Why(reason="step failed", parts=(tried, *_next(until)), until_at=until)
    if step.awaits is not None:
        end = () if until is None else ("; its timeout is in ", until)
        awaited = f"Waits for a message of type {step.awaits}"
        cure = _answer(row.recipient, step.awaits, row.session)
        return Why(reason="message awaited", parts=(awaited, *end), until_at=until, cure=cure)
    parts = ("Sleeps",) if until is None else ("Sleeps, and continues in ", until)
    return Why(reason="asleep", parts=parts, until_at=until)


def _limited(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    """Return that a message waits for its type, its handler's rate, its group, or quiet."""
    for waits, until, group in source.rows(WAITS, {"id": row.id, "sender": row.sender}):
        of_key = "" if group is None else f" for {group.partition(TAB)[2] or 'no key'}"
        if waits == "resume" and (paused := _set_for(source, row, paused=True)) is not None:
            return _type_paused(row.recipient, paused)
        if waits == "rate":
            text = f"Its handler has reached its rate{of_key}{_set_rate(source, row)}"
            parts = (text, *_called(until))
            return Why(reason="rate", parts=parts, until_at=until)
        if waits == "quiet":
            parts = ("Debounced: handled if no later message with its key comes", *_called(until))
            return Why(reason="quiet", parts=parts, until_at=until)
        if waits == "turn" and waiting.untaken(source, now) is None:
            text = f"Waits for the turn of its group, or the end of a call{of_key}"
            return Why(reason="turn", parts=(text,))
    return None


def _set_for(source: Source, row: StoredMessage, *, paused: bool) -> HandlerLimit | None:
    """Return what is set in the file for a message: a pause, or a rate."""
    for each in handler_limits(source):
        given = each.paused_at if paused else each.per_second
        if given is not None and each.fits(row.type, row.topic):
            return each
    return None


def _set_rate(source: Source, row: StoredMessage) -> str:
    found = _set_for(source, row, paused=False)
    return "" if found is None else f", which is set to {found.set_limits} ({_declared(found)})"


def _declared(limit: HandlerLimit) -> str:
    return f"declared: {limit.declared}"


def _type_paused(agent: str, limit: HandlerLimit) -> Why:
    return Why(
        reason="type paused",
        parts=(f"{limit.name} was paused ", limit.paused_at or 0, " ago: its messages wait"),
        level="act",
        since_at=limit.paused_at,
        cure=f"onceward resume --type {shlex.quote(limit.name)} --agent {agent}",
        of=limit.name,
    )


def _handle_later(source: Source, row: StoredMessage, now: Millis) -> Why | None:
    lane = _lane_of(source, row)
    if lane is None or lane.due_at is None or lane.due_at <= now:
        return None
    later = replace(row, due_at=lane.due_at)
    if row.attempts or not row.reason:
        return _failed("Handler", later) if row.attempts else _delayed(later)
    alone = f"Its batch failed{_cause(row.reason)}, so it is handled alone"
    return Why(reason="retry", parts=(alone, *_next(lane.due_at)), until_at=lane.due_at)


def _answer(agent: str, awaits: str, session: str) -> str:
    """Return the command that sends the message for which a handler waits."""
    return f"onceward send {agent} BODY --type {awaits} --session {session} --agent {agent}"


def _in(lane: LaneOf) -> tuple[str | Millis, ...]:
    return () if lane.due_at is None else (" in ", lane.due_at)


def _is_ready(lane: LaneOf, now: Millis) -> bool:
    """Return whether what its head waited for has come: a moment, a message, a reply."""
    return lane.owner is None and (lane.due_at is None or lane.due_at <= now)


def _to_be_handled(source: Source, row: StoredMessage, now: Millis) -> Why:
    tried = f"; it failed {_times(row.attempts)}{_cause(row.reason)}" if row.attempts else ""
    waits = f"it waits for a free worker of {row.recipient}"
    if waiting.untaken(source, now) is not None:
        waits = f"no worker of {row.recipient} takes messages"
    return Why(reason="ready", parts=(f"Next in its lane: {waits}{tried}",), cure=to_take(source))


def to_take(source: Source, file: str = "") -> str:
    """Return the command or call by which messages of an inbox are taken; of *file*, if given."""
    [(had_workers,)] = source.rows(HAD_WORKERS)
    work = WORK.replace(" MODULE", f" {file} MODULE") if file else WORK
    return work if had_workers else f"{RECEIVE}{work}"


def _kept_out(source: Source, _row: StoredMessage, _now: Millis) -> Why | None:
    return next(_outside(source), None)


_IN_OUTBOX: Final[tuple[_Reason, ...]] = (
    _kept_out, _sending, _stored_there, _agent_paused, _held, _push_later, _in_pool, _peer_waits,
    _to_leave,
)  # fmt: skip
"""Reasons of an unsettled message, in the order in which they are checked."""
_IN_INBOX: Final[tuple[_Reason, ...]] = (
    _kept_out, _in_hand, _in_mailbox, _in_channel, _agent_paused, _in_queue, _behind_head,
    _answer_awaited, _at_a_step, _limited, _handle_later, _to_be_handled,
)  # fmt: skip


def _lane_of(source: Source, row: StoredMessage) -> LaneOf | None:
    named = {name: getattr(row, name) for name in ("lane", "priority", "sender", "id")}
    return next(iter(values(source, LaneOf, LANE, **named)), None)


def _open_step(source: Source, row: StoredMessage) -> StepInfo | None:
    return next(iter(values(source, StepInfo, OPEN_STEP, id=row.id, sender=row.sender)), None)


def _behind(head: StoredMessage, why: Why) -> Why:
    first, *others = why.parts
    begin = f"Waits behind {head.id[:SHOWN]}… in its lane. That one: {_lower(str(first))}"
    return replace(why, reason="behind", parts=(begin, *others))


def _failed(what: str, row: StoredMessage) -> Why:
    tried = f"{what} failed {_times(row.attempts)}{_cause(row.reason)}"
    return Why(reason="retry", parts=(tried, *_next(row.due_at)), until_at=row.due_at)


def _delayed(row: StoredMessage) -> Why:
    parts = ("Delayed",) if row.due_at is None else ("Delayed: due in ", row.due_at)
    return Why(reason="delayed", parts=parts, until_at=row.due_at)


def _asked(agent: str, asked_at: Millis, more: str = "") -> Why:
    parts = (f"Waits for an answer of {agent}, asked ", asked_at, f" ago{more}")
    return Why(reason="answer", parts=parts, since_at=asked_at)


# -- a peer, a lane, a session, an agent --------------------------------------------------


def peer_why(source: Source, name: str) -> Why | None:
    """Return why a peer is pushed to or not; None if the file does not know it."""
    found = values(source, lists.Peer, PEER, name=name)
    if not found:
        return None
    peer = found[0]
    agent = overview.file_facts(source).agent
    tried = f"Pushes to {name} failed {_times(peer.failures)} in a row{_cause(peer.last_error)}"
    nowhere = None if _has_address(source, peer) else no_address(name, agent)
    if peer.breaker != "closed":
        return Why(
            reason="breaker open",
            parts=(f"{tried}: its circuit breaker is open", *_next(peer.due_at)),
            level="act",
            until_at=peer.due_at,
            cure=nowhere or f"onceward peers reset {name} --agent {agent}",
            of=name,
        )
    if not peer.failures and peer.last_error and fnmatchcase(peer.last_error, LEFT_GLOB):
        text = f"Messages and receipts for {name} are to be fetched: {peer.last_error}"
        return Why(
            reason="left to its process",
            parts=(text,),
            level="act",
            cure=f"onceward relay --agent {name}",
            of=name,
        )
    if peer.failures:
        return Why(
            reason="peer failing",
            parts=(tried, *_next(peer.due_at)),
            level="act" if peer.failing else "wait",
            until_at=peer.due_at,
            cure=nowhere or f"onceward peers ls --agent {agent}",
            of=name,
        )
    seen = () if peer.seen_at is None else ("; it answered ", peer.seen_at, " ago")
    return Why(reason="reachable", parts=(f"{name} takes messages", *seen), level="ok")


def _has_address(source: Source, peer: lists.Peer) -> bool:
    """Return whether a peer has a url, a file in the home, or another home that serves it."""
    if peer.url or source.path.with_name(f"{peer.name}.db").exists():
        return True
    return directory.is_elsewhere(source.path, peer.name)


def no_address(name: str, agent: str) -> str:
    """Return the cure for a peer that has neither a url nor a file."""
    return f"onceward peers add {name} URL --agent {agent}, or onceward init {name} in its home"


def lane_why(source: Source, lane: lists.Lane, now: Millis) -> Why:
    """Return why a lane of the inbox waits: the reason of its oldest message."""
    if lane.sender is None and lane.session is not None:
        return session_why(source, lane.session)
    named = {"id": lane.head_id, "sender": lane.sender}
    for head in values(source, StoredMessage, INBOX_ROW, **named):
        return _first(_IN_INBOX, source, head, now)
    return Why(reason="empty", parts=("No message waits in this lane",), level="ok")


def session_why(source: Source, session: str) -> Why:
    """Return why a session with runs waits."""
    queue, agent = lists.session_queue(source, session), overview.file_facts(source).agent
    if queue is None:
        return Why(reason="no runs", parts=(f"Session {session} has no runs",), level="ok")
    behind = f"{many(queue.waiting, 'message')} in its queue"
    if queue.state == "paused" and queue.paused_at is not None:
        return Why(
            reason="session paused",
            parts=(f"Session {session} was paused ", queue.paused_at, f" ago; {behind}"),
            level="act",
            since_at=queue.paused_at,
            cure=f"onceward runs resume {session} --agent {agent}",
            of=session,
        )
    if queue.state == "running":
        text = f"Run {(queue.run or '')[:SHOWN]}… of session {session} is running; {behind}"
        return Why(reason="running", parts=(text,), level="ok")
    if queue.state == "waiting" and queue.due_at is not None:
        parts = (f"The next run of session {session} begins in ", queue.due_at, f"; {behind}")
        return Why(reason="debounce", parts=parts, until_at=queue.due_at)
    if queue.state == "ready":
        text = f"Session {session} waits for a free worker; {behind}"
        return Why(reason="ready", parts=(text,), cure=WORK)
    return Why(reason="empty", parts=(f"No message waits for session {session}",), level="ok")


def agent_whys(
    source: Source, now: Millis, numbers: overview.Overview | None = None
) -> tuple[Why, ...]:
    """
    Return the reasons that hold messages of an agent back, the most urgent first; at least one.

    Args:
        source: The agent's file.
        now: Current time; what is due by then.
        numbers: Its overview, if already read.

    """
    found = numbers or overview.overview(source)
    every = tuple(_of_agent(source, found, now)) or (_calm(source, found, now),)
    return tuple(sorted(every, key=lambda each: ("act", "wait", "ok").index(each.level)))


def _of_agent(source: Source, found: overview.Overview, now: Millis) -> Iterator[Why]:
    agent = found.file.agent
    yield from _outside(source)
    if found.file.paused_at is not None:
        yield _paused(found.file, found.file.paused_at)
    else:
        paused = [each for each in handler_limits(source) if each.paused_at is not None]
        yield from (_type_paused(agent, each) for each in paused)
        yield from _untaken(source, found, now)
        yield from _undelivered(source, found, now)
        yield from _held_back(source, found)
        yield from _pools(source, found)
    yield from _of_peers(source)
    if found.dead_letters:
        text = f"{many(found.dead_letters, 'dead letter')} of {agent} to replay or discard"
        cure = f"onceward dead ls --agent {agent}"
        yield Why(reason="dead letters", parts=(text,), level="act", cure=cure)
    if found.lanes.failed:
        yield from _failed_lanes(source, agent, found.lanes.failed, now)
    sessions = source.rows(PAUSED_SESSIONS) if found.pause_oldest_at is not None else []
    yield from (session_why(source, session) for (session,) in sessions)
    yield from _schedules(source, agent)
    yield from _awaited(source, agent)
    for asked in waiting.questions(source, None, 1):
        more = f" (and {asked.lanes - 1} more)" if asked.lanes > 1 else ""
        cure = f"onceward show {asked.request_id} --agent {agent}"
        yield replace(_asked(asked.awaits, asked.asked_at, more), cure=cure)


def _outside(source: Source) -> Iterator[Why]:
    """Yield what keeps the agent from working outside of its file."""
    for each in causes(source.path):
        text = f"{each.text[0].upper()}{each.text[1:]}"
        yield Why(reason=each.reason, parts=(text,), level="act", cure=each.cure)


def _of_peers(source: Source) -> Iterator[Why]:
    """Yield the reasons of peers that failed last, or that must fetch their messages."""
    worst = lists.worst_peers(source, overview.PEERS)
    failed = takewhile(lambda peer: peer.failing or peer.failures > 0, worst)
    for peer in (*failed, *lists.left_peers(source)):
        if (why := peer_why(source, peer.name)) is not None:
            yield why


def _untaken(source: Source, found: overview.Overview, now: Millis) -> Iterator[Why]:
    """Yield that ready messages wait and no worker takes one."""
    if found.incoming and (since_at := waiting.untaken(source, now)) is not None:
        begin = f"No worker takes the messages of {found.file.agent}; the oldest has waited for "
        parts, cure = (begin, since_at), to_take(source)
        yield Why(reason="untaken", parts=parts, since_at=since_at, cure=cure)


def _undelivered(source: Source, found: overview.Overview, now: Millis) -> Iterator[Why]:
    """Yield that messages are due, their peer did not fail, and no process delivers them."""
    since_at, agent = waiting.leaving(source, found, now).stays(now), found.file.agent
    if since_at is None:
        return
    begin = f"No process delivers the messages of {agent}; the oldest has waited for "
    cure = f"onceward relay --agent {agent}"
    yield Why(reason="undelivered", parts=(begin, since_at), since_at=since_at, cure=cure)


def _held_back(source: Source, found: overview.Overview) -> Iterator[Why]:
    """Yield which paused channels and full limits hold messages."""
    if not found.outgoing:
        return
    for by, count, since_at, agent in source.rows(HELD):
        holder = _Holder(by, agent)
        what = f"Channel {holder.name} is paused"
        full = f"The limit of {holder.name} is full"
        waits = f"{many(count, 'message')} of {agent} wait{'s' * (count == 1)}"
        text = f"{what if holder.is_channel else full}: {waits}"
        yield replace(holder.why(text), since_at=since_at)


def _pools(source: Source, found: overview.Overview) -> Iterator[Why]:
    """Yield the pools whose messages no member can take, or that a restore left in doubt."""
    for each in pools.waiting(source) if found.outgoing else ():
        agent = found.file.agent
        waits = f"{many(each.waiting, 'message')} of {agent} wait{'s' * (each.waiting == 1)}"
        reason, text = each.lacks
        if each.in_doubt:
            yield _in_doubt(each, agent)
        elif reason:
            why = _lacking(reason, f"{waits}: {text}", agent)
            yield replace(why, since_at=each.waiting_since_at, of=each.pool)
    for member in pools.stopped(source):
        has = f"{member.agent} has {many(member.in_flight, 'message')} of the pool {member.pool}"
        text, cure = f"{has}, and no process works for it", f"onceward work --agent {member.agent}"
        yield Why(reason="member stopped", parts=(text,), level="act", cure=cure, of=member.pool)


def _awaited(source: Source, agent: str) -> Iterator[Why]:
    """Yield that handlers wait for a message, such as the approval of a person."""
    for message_id, step, awaits, due_at, count, session in source.rows(AWAITED):
        more = f" (and {count - 1} more)" if count > 1 else ""
        text = f"{message_id[:SHOWN]}… waits for a message of type {awaits}, at its step {step}"
        yield Why(
            reason="message awaited",
            parts=(f"{text}{more}", *(() if due_at is None else ("; its timeout is in ", due_at))),
            until_at=due_at,
            cure=_answer(agent, awaits, session),
        )


def _failed_lanes(source: Source, agent: str, count: int, now: Millis) -> Iterator[Why]:
    """Yield the reason of lanes that failed, with the message that failed most often."""
    worst = lists.failed_lane(source)
    if worst is None:
        return
    until = worst.due_at if worst.state == "waiting" else None
    failed = f"{(worst.head_id or '')[:SHOWN]}… failed {_times(worst.attempts)}"
    begin = f"{many(count, 'lane')} of {agent} failed and will be retried: {failed}"
    late = until is not None and until <= now
    yield Why(
        reason="retry",
        parts=(f"{begin}{_cause(worst.reason)}", *(() if late else _next(until))),
        until_at=None if late else until,
        cure=f"onceward show {worst.head_id} --agent {agent}",
    )


def _schedules(source: Source, agent: str) -> Iterator[Why]:
    """Yield the reasons of schedules that cannot send, or that the code no longer declares."""
    for each in lists.schedules(source):
        name = each.name
        if each.failing:
            text = f"Schedule {name} cannot send{_cause(each.last_error)}"
            cure = f"onceward schedules ls --agent {agent}"
            yield Why(reason="schedule failing", parts=(text,), level="act", cure=cure, of=name)
        elif each.withdrawn:
            text = f"Schedule {name} is paused: the code of {agent} no longer declares it"
            cure = f"onceward schedules remove {name} --agent {agent}"
            yield Why(reason="schedule withdrawn", parts=(text,), cure=cure, of=name)


def _calm(source: Source, found: overview.Overview, now: Millis) -> Why:
    """Return what messages wait for where nothing is wrong: a worker's end, or a moment."""
    waits, agent = found.outgoing + found.incoming, found.file.agent
    if not waits:
        return Why(reason="idle", parts=(f"No message of {agent} waits",), level="ok")
    for why in _later(source, agent, now):
        if not found.lanes.leased or why.reason == "leased elsewhere":
            return why
    begin = f"{many(waits, 'message')} of {agent} in hand"
    since_at = found.oldest_at
    since = () if since_at is None else (", the oldest for ", since_at)
    return Why(reason="busy", parts=(begin, *since), level="ok", since_at=since_at)


def _later(source: Source, agent: str, now: Millis) -> Iterator[Why]:
    """Yield the reasons of messages that wait for a moment, the next ones first."""
    for lane in lists.next_lanes(source, 1):
        if lane.due_at is not None and lane.due_at > now:
            yield _of_message(lane.head_id, agent, lane_why(source, lane, now))
    for row in values(source, StoredMessage, DELAYED, now=now):
        yield _of_message(row.id, agent, _first(_IN_OUTBOX, source, row, now))


def _of_message(message_id: str | None, agent: str, why: Why) -> Why:
    """Return the reason of a message as one of its agent."""
    if message_id is None:
        return why
    first, *others = why.parts
    parts = (f"{message_id[:SHOWN]}… of {agent}: {_lower(str(first))}", *others)
    show = f"onceward show {message_id} --agent {agent}" if why.reason == "retry" else why.cure
    return replace(why, parts=parts, cure=show)


def _paused(facts: overview.FileFacts, paused_at: Millis) -> Why:
    agent, first, cure = facts.agent, "was paused", f"onceward resume --agent {facts.agent}"
    if facts.superseded_by is not None:  # resume is refused
        first, cure = "was taken over by another machine", f"onceward doctor --agent {agent}"
    return Why(
        reason="paused",
        parts=(f"{agent} {first} ", paused_at, " ago: it handles and sends no message"),
        level="act",
        since_at=paused_at,
        cure=cure,
    )


# -- words --------------------------------------------------------------------------------


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def many(count: int, what: str) -> str:
    """Return a number of things in words: 1 message, 2 messages."""
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"


def _cause(error: str | None) -> str:
    return f" ({error})" if error else ""


BEGINS: Final = frozenset({
    "Push", "Handler", "Waits", "Ready", "Next", "Delayed", "On", "Step", "Sleeps", "The", "Its",
})  # fmt: skip
"""Words that begin a sentence, and are not names."""


def _lower(text: str) -> str:
    head = text.partition(" ")[0].rstrip(",:")
    return f"{text[0].lower()}{text[1:]}" if head in BEGINS else text


def _called(until: Millis | None) -> tuple[str | Millis, ...]:
    return () if until is None else ("; called in ", until)


def _next(until: Millis | None) -> tuple[str | Millis, ...]:
    return () if until is None else ("; next try in ", until)
