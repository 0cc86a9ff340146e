"""Accept a parcel once: store its frames in one transaction, and answer after the commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from onceward.core.accept import judge
from onceward.core.accept.judge import Known
from onceward.core.accept.policy import Arrives, Endings, InboxPolicy, Inspect, ParsedFrame, Told
from onceward.core.end import sent
from onceward.core.rows import claimable, inbox, lanes, peers, senders, tickets
from onceward.core.rows.inbox import InboxRow
from onceward.core.rows.lanes import OpenLane
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.run import recovery
from onceward.core.run.event_emitter import EventEmitter
from onceward.core.send import limits
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction, bump
from onceward.hooks import Hooks
from onceward.message.clock import Millis
from onceward.message.events import Duplicate, Received, Rejected
from onceward.message.frame import Frame, keep_until_handled, session_and_type
from onceward.message.ids import KEYED
from onceward.message.parcel import Answer, Parcel, ParcelFrame, Receipt, Verdict, downgrade
from onceward.message.settings import Settings
from onceward.message.vocabulary import ANSWER, QUESTION

if TYPE_CHECKING:
    from onceward.core.run.arrival import TakesArrivals

AWAITED: Final = """
SELECT id
  FROM _onceward_pending_replies
 WHERE state IN ('open', 'failed') AND recipient = ? AND id IN (SELECT value FROM json_each(?))
"""
ID: Final = attrgetter("id")
REASON: Final = attrgetter("reason")
TEXT: Final = attrgetter("text")
FRAME: Final = attrgetter("frame")
NO_ANSWER: Final = Answer(verdict="busy")  # of an incomplete result


@dataclass(slots=True)
class AcceptResult:
    """The changes of a parcel in the recipient's file, and the answer to it."""

    answer: Answer = NO_ANSWER
    receipts: dict[str, Receipt] = field(default_factory=dict)
    """The receipt of each frame, by message id."""
    received: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    rejected: list[tuple[str, str]] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    """Those of the duplicates that have other contents than the message that came first."""
    answered: list[str] = field(default_factory=list)
    moved: sent.Moved = field(default_factory=sent.Moved)


class Receiver:
    """
    Accepts parcels for one agent, from this machine or, with *network*, from others.

    *handled*: workers of this process handle the messages, without reading the frames again.
    """

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        hooks: Hooks | None = None,
        features: Sequence[Arrives] = (),
        inspect: Inspect | None = None,
        network: bool = False,
        handled: bool = False,
    ) -> None:
        self._db, self._hooks = db, Hooks() if hooks is None else hooks
        self._inspect, self._network, self._handled = inspect, network, handled
        self._emitter = EventEmitter(self._hooks, db.agent)
        self._notify_in = partial(db.notifier.notify, "in")
        self._notify_arrival = db.notifier.notify_arrival
        self._notify_out = partial(db.notifier.notify, "out")
        self._settings = settings
        self._takes = Arrives.takes_by_kind(features, settings)
        self._stored = {kind: tell for each in features for kind, tell in each.stored.items()}
        let_go = [each.ends for each in features if each.ends is not None]
        self.endings = Endings(self._emitter, let_go)
        self.room: Callable[[], int] | None = None  # how many more messages its pools take
        self.workers: TakesArrivals | None = None
        """The workers of this process, which may handle a message as it is stored."""

    @property
    def _policy(self) -> InboxPolicy:
        """Policy of the inbox; the file's own limits apply to every writing process."""
        db = self._db
        return InboxPolicy(
            agent=db.agent,
            durability=db.durability,
            takeover=db.takeover,
            max_body=db.max_body,
            max_inbox=db.max_inbox,
            accept_weaker=self._settings.accept_weaker,
            max_hops=self._settings.max_hops,
            network=self._network,
            takes=self._takes,
            stored=self._tell_stored,
        )

    def _tell_stored(self, tx: StoreTransaction, sender: str, told: Told) -> None:
        for kind in told.keys() & self._stored.keys():
            self._stored[kind](self.endings, tx, sender, told[kind])

    def accept(self, parcel: Parcel) -> Answer:
        """
        Store a parcel once and answer for each of its frames.

        Raises:
            Refused: the parcel's names are wrong, or it is for another inbox; nothing was stored.
            StoreError: the file failed; nothing was stored, and the parcel may be pushed again.

        """
        policy = self._policy
        frames = judge.parse_frames(parcel, policy)
        answer = None
        if self.workers is not None and self.workers.may_take and len(frames) == 1:
            answer = self._handle_now(self.workers, parcel, policy, frames)
        if answer is None:
            for frame in map(FRAME, frames):
                if frame is not None and self._inspect and (frame.mailbox or frame.channel):
                    frames = self._inspect(frames)
                    break
            work = partial(self._accept, parcel=parcel, policy=policy, frames=frames)
            if parcel.frames or parcel.greeting or self._db.writer.joins:
                answer = self._db.write_outside(work).answer
            else:  # receipts are asked for again
                answer = self._db.write(work, synced=False).answer
        if self.room is not None and any(each and each.pool for each in map(FRAME, frames)):
            return replace(answer, room=self.room())
        return answer

    def _handle_now(
        self,
        workers: TakesArrivals,
        parcel: Parcel,
        policy: InboxPolicy,
        frames: list[ParsedFrame],
    ) -> Answer | None:
        """Handle a plain message as it is stored; return None if that was not possible."""
        from onceward.core.accept import short_way  # noqa: PLC0415 - with workers only

        if not short_way.is_plain(parcel, frames) or self._hooks.wanted(Received):
            return None  # a hook on Received is called before the handler
        self._keep(frames)
        row = partial(_row, parcel.sender, done=False)
        arrival = short_way.PlainArrival(parcel, policy, frames[0], row)
        answer = workers.take(arrival)
        if answer is None and arrival.begun:
            frames[:] = judge.parse_frames(parcel, policy)  # a handler may have changed the body
        return answer

    def _accept(
        self, tx: StoreTransaction, parcel: Parcel, policy: InboxPolicy, frames: list[ParsedFrame]
    ) -> AcceptResult:
        result = accept(tx, parcel, policy, frames)
        if self._handled and result.received:
            self._keep(frames)
        if self._hooks._hooks:
            self._emitter.moved(tx, parcel.sender, result.moved)
            self._emit(tx, parcel.sender, result)
            self._tell_rejected(tx, parcel, result)
        if result.received:
            tx.wakeups[self._notify_arrival] = None
        elif result.moved.ended:
            tx.wakeups[self._notify_in] = None
        if result.answered or result.duplicates or parcel.greeting:
            tx.wakeups[self._notify_out] = None
        return result

    def take_own(self, tx: StoreTransaction, frames: Sequence[ParcelFrame]) -> list[str] | None:
        """
        Store new messages of the agent to itself; return the ids that are already done.

        Return None, with nothing stored, if a frame must be refused.
        """
        policy, agent = self._policy, self._db.agent
        parsed = [judge.parse_frame(each, agent, policy) for each in frames]
        if self._inspect and any(f and (f.mailbox or f.channel) for f in map(FRAME, parsed)):
            parsed = self._inspect(parsed)
        if any(each.problem for each in parsed):
            return None
        result = AcceptResult(received=list(map(ID, frames)))
        result.answered = _store(tx, agent, parsed, policy)
        self._keep(parsed)
        if self._hooks._hooks:
            self._emit(tx, agent, result)
        return result.answered

    def _keep(self, parsed: Sequence[ParsedFrame]) -> None:
        """Keep frames in memory for the workers of this process."""
        keep_until_handled(
            {each.carried.text: each.frame for each in parsed if each.frame is not None}
        )

    def _emit(self, tx: StoreTransaction, peer: str, result: AcceptResult) -> None:
        agent, at = self._db.agent, tx.now
        if self._hooks.wanted(Received):
            self._emitter.emit(
                tx,
                *(Received(agent=agent, at=at, message_id=i, peer=peer) for i in result.received),
            )
        if self._hooks.wanted(Duplicate):
            self._emitter.emit(
                tx,
                *(
                    Duplicate(agent=agent, at=at, message_id=i, peer=peer)
                    for i in result.duplicates
                ),
            )
        self._emitter.differing(tx, peer, result.differing)

    def _tell_rejected(self, tx: StoreTransaction, parcel: Parcel, result: AcceptResult) -> None:
        """Emit the refused frames with their own fields, which no row has."""
        if not result.rejected or not self._hooks.wanted(Rejected):
            return
        texts = {carried.id: carried.text for carried in parcel.frames}
        for message_id, why in result.rejected:
            session, kind = session_and_type(texts[message_id])
            rejected = Rejected(
                agent=self._db.agent, at=tx.now, message_id=message_id, peer=parcel.sender,
                session=session, type=kind, reason=why,
            )  # fmt: skip
            self._emitter.emit(tx, rejected)


def accept(
    tx: StoreTransaction, parcel: Parcel, policy: InboxPolicy, examined: list[ParsedFrame]
) -> AcceptResult:
    """
    Store the new frames of *parcel*, and answer for each of its frames.

    Stream position, rows and outcomes are one commit: after a crash either all of it happened, or
    the same parcel comes again and nothing has changed.
    """
    found = judge.look(tx, parcel)
    if found.fence is not None:
        return AcceptResult(replace(found.fence, durability=policy.durability))
    moved = _settle(tx, parcel, policy) if parcel.receipts else sent.NOTHING_MOVED
    if not (parcel.frames or parcel.greeting):
        return AcceptResult(_answer(policy, "accepted"), moved=moved)
    verdict, stream, known = found.verdict, found.stream, found.known
    if verdict == "fork":
        bump(tx, forks=1)
        answer = _answer(policy, "fork", where=stream.position)
        base = stream.base if stream.epoch else None
        return AcceptResult(replace(answer, base_position=base), moved=moved)
    new = len(parcel.frames) - len(known)
    if verdict == "accepted" and new and found.waiting and found.waiting + new > policy.max_inbox:
        return AcceptResult(_answer(policy, "busy"), moved=moved)
    if (
        found.rated
        and verdict == "accepted"
        and new
        and (wait := limits.accept_at_rate(tx, parcel.sender, new))
    ):
        return AcceptResult(replace(_answer(policy, "busy"), retry_after=wait), moved=moved)
    if found.rule is not None or policy.network:
        examined = judge.allowed(examined, found.rule)
    kept = _accept_frames(
        tx, parcel, examined, policy,
        known=known, horizon=stream.horizon_id, judge_all=found.judge_all,
    )  # fmt: skip
    receipts = tuple(map(kept.receipts.__getitem__, map(ID, parcel.frames)))
    kept.moved, kept.answer = moved, _answer(policy, verdict, receipts)
    if verdict == "accepted" and parcel.frames:
        judge.advance(tx, stream, parcel)
    if kept.duplicates or kept.rejected:
        bump(tx, duplicates=len(kept.duplicates), refused=len(kept.rejected))
    return kept


def _settle(tx: StoreTransaction, parcel: Parcel, policy: InboxPolicy) -> sent.Moved:
    """Apply the receipts that a parcel carries to our own outbox."""
    trusted = policy.trusts(parcel.durability)
    receipts = parcel.receipts if trusted else tuple(map(downgrade, parcel.receipts))
    moved = sent.settle(tx, parcel.sender, receipts, ask_at=tx.now, stored_ends=False)
    if parcel.stream_position is not None and moved.any:
        peers.record_base(tx, parcel.sender, parcel.stream_position)
    return moved


def _answer(
    policy: InboxPolicy,
    verdict: Verdict,
    receipts: tuple[Receipt, ...] = (),
    where: tuple[str, int] = ("", 0),
) -> Answer:
    epoch, number = where
    return Answer(
        verdict=verdict, receipts=receipts, durability=policy.durability, takeover=policy.takeover,
        epoch=epoch, number=number,
    )  # fmt: skip


def _accept_frames(
    tx: StoreTransaction,
    parcel: Parcel,
    examined: list[ParsedFrame],
    policy: InboxPolicy,
    *,
    known: Known,
    horizon: str,
    judge_all: bool,
) -> AcceptResult:
    """Store new frames; judge one that may have come before by its id, then by the horizon."""
    kept = AcceptResult()
    fresh: list[ParsedFrame] = []
    receipts = kept.receipts
    for each in examined:
        carried, frame = each.carried, each.frame
        message_id = carried.id
        doubtful = judge_all or carried.redelivered
        if (before := known.get(message_id)) is not None:
            from onceward.core.accept import again  # noqa: PLC0415 - rarely needed

            receipts[message_id] = again.present(before)
            kept.duplicates.append(message_id)
            if frame is not None and again.differs(tx, parcel.sender, carried, before):
                receipts[message_id] = again.told(receipts[message_id])
                kept.differing += again.noted(tx, parcel.sender, message_id)
        elif (doubtful or frame is None or each.problem or frame.expirytime is not None) and (
            problem := judge.refusal(each, horizon if doubtful else None, tx.now)
        ):
            receipts[message_id] = Receipt(message_id, "rejected", problem)
            kept.rejected.append((message_id, problem))
        elif message_id not in receipts:
            receipts[message_id] = Receipt(message_id, "stored")
            fresh.append(each)
            kept.received.append(message_id)
    if fresh:
        kept.answered = _store(tx, parcel.sender, fresh, policy)
    for message_id in kept.answered:
        receipts[message_id] = Receipt(message_id, "processed")
    return kept


def store_own(tx: StoreTransaction, message: OutgoingMessage, lane_id: int) -> None:
    """Store a new message of an agent to itself that no feature takes, and wake its lane."""
    of = message.headers
    inbox.insert_own(
        tx,
        of.sender, message.id, lane_id, of.session, of.type, of.topic, of.rank, of.expires_at,
        of.correlation_id, of.causation_id, message.frame, message.digest, tx.now, of.channel,
    )  # fmt: skip
    lanes.set_head(tx, lane_id)


BOXED: Final = (lanes.NO_LANE, 0, None)


def _store(
    tx: StoreTransaction, sender: str, fresh: Sequence[ParsedFrame], policy: InboxPolicy
) -> list[str]:
    """Insert new rows and wake their lanes; return the ids of answers and mailbox messages."""
    frames: list[Frame] = list(map(FRAME, fresh))
    awaited = _awaited(tx, sender, frames)
    lane_ids: dict[tuple[str, int, str], OpenLane] = {}
    rows: list[InboxRow] = []
    settled: list[tuple[str, str, str, Millis]] = []
    told: dict[str | None, list[Frame]] = {}
    answered = 0
    for each, frame in zip(fresh, frames, strict=True):
        done = frame.inreplyto in awaited and _answered(tx, frame)
        if done:
            awaited.discard(str(frame.inreplyto))
        elif frame.kind is not None:
            done = _taken(tx, sender, frame, policy, frame.kind)
        boxed = frame.mailbox is not None and not done
        lane_id, awaits, _ = BOXED if boxed else _lane(tx, sender, frame, lane_ids)
        if awaits and not done and frame.kind in {None, ANSWER}:
            done = _taken(tx, sender, frame, policy, None)
        answered += done
        if (boxed and frame.mailboxkey is not None) or (done and frame.kind is not None):
            told.setdefault(None if boxed else frame.kind, []).append(frame)
        if done or boxed:
            settled.append((sender, frame.id, frame.session, tx.now))
        rows.append(_row(sender, frame, each, lane_id, tx.now, done=done))
    inbox.insert(tx, rows)
    _note_kinds(tx, sender, frames)
    if settled:
        senders.mark_processed(tx, settled)
        bump(tx, processed=answered, ended=answered)
    lanes.set_heads(tx, list(map(itemgetter(0), lane_ids.values())))
    if any(map(itemgetter(2), lane_ids.values())):
        _count_called(tx, lane_ids.values())
    if told and policy.stored is not None:
        policy.stored(tx, sender, told)
    return list(map(itemgetter(1), settled))


def _count_called(tx: StoreTransaction, opened: Iterable[OpenLane]) -> None:
    """Count the calls of messages that were called before they are stored now."""
    for lane_id, _, called_id in opened:
        if called_id is not None:
            recovery.count_called(tx, lane_id)


def _taken(
    tx: StoreTransaction, sender: str, frame: Frame, policy: InboxPolicy, kind: str | None
) -> bool:
    """Pass a frame to the feature of a kind; return whether it is done."""
    take = policy.takes.get(kind)
    return take is not None and take(tx, sender, frame)


def _note_kinds(tx: StoreTransaction, sender: str, frames: list[Frame]) -> None:
    """Record messages that a restart may drop, and those whose dedup record is never pruned."""
    fleeting: list[tuple[str, str]] = []
    chosen: list[tuple[str, str]] = []
    for frame in frames:
        if frame.__pydantic_extra__ and frame.ephemeral:
            fleeting.append((sender, frame.id))
        if (frame.chosenid or frame.id.startswith(KEYED)) and judge.outlasts_pruning(frame, tx.now):
            chosen.append((sender, frame.id))
    if fleeting:
        inbox.note_ephemeral(tx, fleeting)
    if chosen:
        senders.keep_chosen(tx, chosen)


def _lane(
    tx: StoreTransaction, sender: str, frame: Frame, lane_ids: dict[tuple[str, int, str], OpenLane]
) -> OpenLane:
    """
    Return the lane of a frame, and whether the file declares types that handlers wait for.

    A handler's question does not wait behind a message that itself waits for a reply: that reply
    may depend on the answer. Questions leave in the commit in which their handler begins to wait,
    so in a circle of questions one always finds the next handler waiting.
    """
    name, rank, session = frame.partitionkey or frame.session, frame.priority, frame.session
    if frame.kind == QUESTION and claimable.head_awaits(tx, sender, name, rank):
        name = f"ask:{frame.causationid or frame.id}"
    lane = (name, rank, session)
    if lane not in lane_ids:
        lane_ids[lane] = lanes.open_lane_and_ask(tx, sender, *lane[:2], session=session)
    return lane_ids[lane]


def _awaited(tx: StoreTransaction, sender: str, frames: list[Frame]) -> set[str]:
    """Return the open requests to *sender* that these frames answer."""
    asked: set[str] = set()
    for frame in frames:
        if frame.inreplyto is not None:
            asked.add(frame.inreplyto)
    if not asked:
        return asked
    return {str(i) for (i,) in tx.rows(AWAITED, (sender, json.dumps(sorted(asked))))}


def _answered(tx: StoreTransaction, frame: Frame) -> bool:
    return tickets.answer(tx, str(frame.inreplyto), frame.id)


def _row(
    sender: str,
    frame: Frame,
    each: ParsedFrame,
    lane_id: int | None,
    now: Millis,
    *,
    done: bool,
) -> InboxRow:
    return InboxRow(
        sender=sender,
        id=frame.id,
        lane_id=lane_id,
        session=frame.session,
        type=frame.type,
        topic=frame.topic,
        rank=frame.priority,
        state="processed" if done else "pending",
        expires_at=None if frame.expirytime is None else frame.expires_at,
        correlation_id=frame.correlationid,
        causation_id=frame.causationid,
        frame=each.carried.text,
        digest=each.digest,
        received_at=now,
        ended_at=now if done else None,
        channel=frame.channel,
        kind=frame.kind,
        mailbox=frame.mailbox,
    )
