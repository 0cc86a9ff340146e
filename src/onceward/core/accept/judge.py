"""
Judge a parcel: its place in its sender's stream, and each frame, without the file.

A parcel is accepted, a duplicate, or a fork. Next number and matching predecessor are accepted;
the same number with the same last id is a duplicate; a first parcel opens a new epoch if this file
holds what that builds on. All else is a fork, which the sender answers with a new epoch.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Final, NamedTuple, NoReturn

from pydantic_core import to_json

from onceward.core.accept.policy import InboxPolicy, ParsedFrame
from onceward.core.rows import senders
from onceward.errors import InvalidMessage, Refused
from onceward.file.identity import greet_back
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.frame import EDITS, Frame, body_size
from onceward.message.ids import AHEAD, KEYED, OWN_ID, time_prefix
from onceward.message.names import agent_name, byte_length, quoted
from onceward.message.parcel import (
    NETWORK_RULE,
    STRENGTH,
    Answer,
    InboundRule,
    Parcel,
    ParcelFrame,
    Verdict,
    generation_of,
    refuse_damaged,
)
from onceward.message.vocabulary import QUESTION, reason_text

ID: Final = attrgetter("id")
REASON: Final = attrgetter("reason")
TEXT: Final = attrgetter("text")


KNOWN: Final = f"""
SELECT id, state, outcome, reason, digest
  FROM (SELECT j.value AS id, b.state, b.reason,
               CASE WHEN instr(b.frame, '"{EDITS}"') = 0 THEN lower(hex(b.digest)) END AS digest,
               (SELECT outcome
                  FROM _onceward_processed_messages
                 WHERE sender = :sender AND message_id = j.value) AS outcome
          FROM json_each(:ids) AS j
          LEFT JOIN _onceward_inbox AS b ON b.sender = :sender AND b.id = j.value)
 WHERE state IS NOT NULL OR outcome IS NOT NULL
"""
STREAM_LIMITS_AND_KNOWN: Final = f"""
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)
       - (SELECT value FROM _onceward_counters WHERE name = 'ended'),
       EXISTS (SELECT 1 FROM _onceward_rate_limits WHERE name = 'accept'),
       (SELECT inbound_rule FROM _onceward_peers WHERE name = :sender),
       (SELECT takeover FROM _onceward_peers WHERE name = :sender), takeover, superseded_by,
       (SELECT json_group_array(json_array(id, state, outcome, reason, digest)) FROM ({KNOWN})),
       s.epoch, s.number, s.last_id, s.horizon_id, s.base_epoch, s.base_number
  FROM _onceward_file_info LEFT JOIN _onceward_sender_streams AS s ON s.sender = :sender
"""
TAKEOVERS: Final = """
SELECT (SELECT takeover FROM _onceward_peers WHERE name = ?), takeover, superseded_by
  FROM _onceward_file_info
"""
NONE_KNOWN: Final = "[]"


class KnownMessage(NamedTuple):
    """The known outcome of a message that came before."""

    id: str
    state: str | None
    """State of its row; None if the row is pruned."""
    outcome: str | None
    """Outcome in its dedup record; None if there is none."""
    reason: str | None
    digest: str | None
    """Digest of its frame as it came, in hexadecimal; None if that is pruned or edited."""


Known = dict[str, KnownMessage]
"""Messages that came before, by their ids."""


class StreamPosition(NamedTuple):
    """The position of a sender's stream, and the position before its epoch."""

    epoch: str = ""
    number: int = 0
    last_id: str = ""
    horizon_id: str = ""
    base_epoch: str = ""
    base_number: int = 0

    @property
    def position(self) -> tuple[str, int]:
        """Epoch and number of the last accepted parcel."""
        return self.epoch, self.number

    @property
    def base(self) -> tuple[str, int]:
        """Epoch and number at which its epoch began: as the sender reported them, or after that."""
        return self.base_epoch, self.base_number

    def precedes(self, epoch: str) -> bool:
        """Return whether *epoch* may be later: a parcel of an earlier epoch is a late copy."""
        generation = generation_of(epoch)
        return generation == 0 or generation > generation_of(self.epoch)

    def known_to(self, parcel: Parcel) -> bool:
        """Return whether the sender's file knows every parcel that was accepted from it."""
        return parcel.base_position == self.position or self.last_id in parcel.unsettled

    def reached(self, base: tuple[str, int] | None) -> tuple[str, int]:
        """Return the position at which a new epoch begins here: its *base*, or after it."""
        epoch, number = base or ("", 0)
        numbers = (known for other, known in (self.position, self.base) if other == epoch)
        return epoch, max([number, *numbers])

    def holds(self, relies_on: tuple[str, int] | None) -> bool:
        """Return whether this file has reached the position that a new epoch builds on."""
        return relies_on is None or any(
            epoch == relies_on[0] and number >= relies_on[1]
            for epoch, number in (self.position, self.base)
        )


def classify(stream: StreamPosition, parcel: Parcel) -> tuple[Verdict, bool]:
    """Return the verdict on *parcel*, and whether every frame must be judged by its id."""
    if parcel.epoch == stream.epoch:
        if parcel.number == stream.number + 1 and parcel.previous == stream.last_id:
            return "accepted", False
        if parcel.number == stream.number and parcel.last_id == stream.last_id:
            return "duplicate", True
    elif (
        parcel.number == 1
        and parcel.previous == ""
        and (not stream.epoch or stream.precedes(parcel.epoch))
        and stream.holds(parcel.base_position)
    ):
        return "accepted", bool(stream.epoch) and not stream.known_to(parcel)
    return "fork", False


class Reception(NamedTuple):
    """The verdict on a parcel, and the state of the recipient's file that decides about it."""

    verdict: Verdict
    judge_all: bool
    """Whether every frame must be judged by its id."""
    waiting: int
    """Messages that wait in the inbox."""
    rated: int
    """Whether the inbox has a rate."""
    rule: str | None
    """The rule of the names that the sender may use, if there is one."""
    known: Known
    stream: StreamPosition
    fence: Answer | None = None
    """The answer if the parcel is of or for a file that another machine has superseded."""


RECEIPTS: Final = Reception(
    verdict="accepted", judge_all=False, waiting=0, rated=0, rule=None, known={},
    stream=StreamPosition(),
)  # fmt: skip
"""The judgement on a parcel that has receipts only."""


def look(tx: StoreTransaction, parcel: Parcel) -> Reception:
    """
    Return the verdict on a parcel by its stream, the limits, and its messages that are known.

    A greeting is answered.
    """
    if not (parcel.frames or parcel.greeting):
        [takeovers] = tx.rows(TAKEOVERS, (parcel.sender,))
        return RECEIPTS._replace(fence=_fence(tx, parcel, *takeovers))
    ids = to_json(list(map(ID, parcel.frames))).decode()
    [(waiting, rated, rule, of_sender, own, ended, listed, *position)] = tx.rows(
        STREAM_LIMITS_AND_KNOWN, {"sender": parcel.sender, "ids": ids}
    )
    stream = StreamPosition() if position[0] is None else StreamPosition(*position)
    known = {} if listed == NONE_KNOWN else _known(listed)
    known_here = of_sender, own, ended
    any_takeover = known_here != (None, None, None) or parcel.takeover or parcel.known_takeover
    fence = _fence(tx, parcel, *known_here) if any_takeover else None
    if parcel.greeting and fence is None:
        _greeted(tx, parcel)
    return Reception(*classify(stream, parcel), waiting, rated, rule, known, stream, fence)


def _greeted(tx: StoreTransaction, parcel: Parcel) -> None:
    """Greet a restored peer back, and ask it what this file had sent, if it was restored, too."""
    from onceward.core.accept import lost  # noqa: PLC0415 - after a restore only

    greet_back(tx, parcel)
    lost.ask(tx, parcel)


def _fence(
    tx: StoreTransaction, parcel: Parcel, of_sender: str | None, own: str | None, ended: str | None
) -> Answer | None:
    """Return the answer to a parcel of or for a superseded file; None for any other."""
    if (of_sender, own, ended) == (parcel.takeover, parcel.known_takeover, None):
        return None
    from onceward.core.accept import fencing  # noqa: PLC0415 - after a takeover only

    return fencing.refusal(tx, parcel, of_sender, own, ended)


def _known(listed: str) -> Known:
    return {row[0]: KnownMessage(*row) for row in json.loads(listed)}


def advance(tx: StoreTransaction, stream: StreamPosition, parcel: Parcel) -> None:
    """Record that *parcel* was accepted, in the commit that stores its frames."""
    here = stream.base_epoch, stream.base_number
    relied = here if parcel.epoch == stream.epoch else stream.reached(parcel.base_position)
    position = parcel.epoch, parcel.number, parcel.last_id
    senders.save_stream(tx, parcel.sender, *position, tx.now, *relied)


ENVELOPE_MAX: Final = 64 << 10
TOO_LARGE: Final = reason_text("invalid", "data: larger than max_body")
PRUNED: Final = "its dedup record may have been pruned, so it may be a duplicate"


def parse_frames(parcel: Parcel, policy: InboxPolicy) -> list[ParsedFrame]:
    """
    Read and check a parcel's frames without the file, so that the lock is held only for writing.

    Raises:
        Refused: the sender's name is invalid, or the parcel is for another agent.
        Unreachable: a frame was damaged on the way; the same parcel must be pushed again.

    """
    if _problem_of(parcel.sender) or parcel.recipient != policy.agent:
        _refuse_names(parcel, policy.agent)
    _check_texts(parcel)
    refuse_damaged(parcel)
    return list(map(parse_frame, parcel.frames, repeat(parcel.sender), repeat(policy)))


@lru_cache(maxsize=4096)
def _problem_of(sender: str) -> str:
    """Return why a name is invalid for an agent, empty if valid; cached for repeated senders."""
    try:
        agent_name(sender)
    except InvalidMessage as error:
        return str(error)
    return ""


def _refuse_names(parcel: Parcel, agent: str) -> NoReturn:
    msg = f"parcel refused: this is the inbox of {agent}, not {quoted(parcel.recipient)}"
    if problem := _problem_of(parcel.sender):
        msg = f"parcel refused, sender: {problem}"
    raise Refused(msg)


def _check_texts(parcel: Parcel) -> None:
    """Raise Refused for an unknown durability, and for ids that SQL would truncate or refuse."""
    if parcel.durability not in STRENGTH:
        msg = (
            f"parcel refused, durability {quoted(parcel.durability)} is not one of {list(STRENGTH)}"
        )
        raise Refused(msg)
    ids = [parcel.epoch, parcel.previous, *map(ID, parcel.frames), *map(ID, parcel.receipts)]
    texts = [*map(TEXT, parcel.frames), *filter(None, map(REASON, parcel.receipts))]
    try:
        if "\0" in "".join(ids):
            msg = "parcel refused: an id holds a NUL"
            raise Refused(msg)
        for text in (*ids, *texts):
            if not text.isascii():
                text.encode()
    except (TypeError, UnicodeEncodeError) as error:
        msg = f"parcel refused: {error}"
        raise Refused(msg) from error


def parse_frame(carried: ParcelFrame, sender: str, policy: InboxPolicy) -> ParsedFrame:
    """Read and check one frame of a parcel from *sender*."""
    if (
        len(carried.text) > 6 * policy.max_body + ENVELOPE_MAX
    ):  # a control character takes six as JSON
        return ParsedFrame(carried, None, TOO_LARGE)
    try:
        frame = Frame.parse(carried.text)
    except InvalidMessage as error:
        return ParsedFrame(carried, None, reason_text("invalid", str(error))[:500])
    named, extra = (carried.id, sender, policy.agent), frame.__pydantic_extra__
    if (frame.id, frame.sender, frame.recipient) != named or (extra and EDITS in extra):
        return ParsedFrame(carried, None, _mismatch(frame, carried, sender))
    reply = frame.kind == QUESTION  # a question that its reply may not follow
    if frame.hops + reply > policy.max_hops:
        detail = f"{frame.hops} messages led to it; the limit is {policy.max_hops}"
        return ParsedFrame(carried, None, reason_text("hops_exceeded", detail))
    if _has_long_body(frame, carried.text, policy.max_body):
        return ParsedFrame(carried, None, TOO_LARGE)
    return ParsedFrame(carried, frame, digest=carried.digest)


def _has_long_body(frame: Frame, text: str, longest: int) -> bool:
    """Return whether a body is too long; it is never longer than its frame's *text*."""
    if 4 * len(text) <= longest or byte_length(text) <= longest:
        return False
    return body_size(frame) > longest


def _mismatch(frame: Frame, carried: ParcelFrame, sender: str) -> str:
    """Return which attribute of a frame differs from its parcel's, or is not for its sender."""
    if EDITS in frame.headers:
        return reason_text("invalid", f"{EDITS}: the file of its recipient keeps it")
    field_name = "recipient"
    if frame.id != carried.id:
        field_name = "id"
    elif frame.sender != sender:
        field_name = "source"
    return reason_text("invalid", f"{field_name}: does not match the parcel")


def allowed(examined: list[ParsedFrame], rule: str | None) -> list[ParsedFrame]:
    """Return the frames; refuse those with a name that their sender may not use."""
    known = NETWORK_RULE if rule is None else InboundRule.parse(rule)
    judged: list[ParsedFrame] = []
    for each in examined:
        named = "" if each.frame is None else known.problem(each.frame)
        if named:  # first: the refusal must not reveal what exists here
            told = reason_text("rejected", f"not allowed here: {named}")
            judged.append(each._replace(problem=told))
        else:
            judged.append(each)
    return judged


def refusal(examined: ParsedFrame, horizon: str | None, now: Millis) -> str:
    """Return why a frame is permanently refused; empty if it is not."""
    if horizon is not None and _may_be_pruned(examined, horizon):
        return reason_text("stale", PRUNED)
    if (
        examined.frame is not None
        and examined.frame.expires_at is not None
        and examined.frame.expires_at <= now
    ):
        return reason_text("expired", "its time to live ran out on the way")
    return examined.problem


def _may_be_pruned(examined: ParsedFrame, horizon: str) -> bool:
    """Return whether the dedup record of a frame may have been pruned."""
    message_id, frame = examined.carried.id, examined.frame
    if OWN_ID.fullmatch(message_id) is None or (frame is not None and frame.chosenid):
        return False
    if frame is None or not message_id.startswith(KEYED):
        return message_id <= horizon
    return frame.time is not None and time_prefix(_millis(frame.time)) <= horizon


def outlasts_pruning(frame: Frame, now: Millis) -> bool:
    """
    Return whether the dedup record of a message must be kept forever.

    Either its sender chose an id that looks like ours, or it has a key and its moment is unknown or
    ahead: the moment could be later than the horizon id when the record is pruned.
    """
    if OWN_ID.fullmatch(frame.id) is None:
        return False
    if frame.id.startswith(KEYED):
        return frame.chosenid or frame.time is None or _millis(frame.time) > now + AHEAD
    return frame.chosenid


def _millis(moment: datetime) -> Millis:
    return round(1000 * moment.timestamp())
