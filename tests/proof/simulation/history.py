"""Record promises and effects of a world from its files, never from its engines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import apsw

from onceward.api.features import rules
from onceward.features.checks import invariants
from onceward.message.parcel import Answer, Parcel

Word = Literal["promised", "maybe", "denied", "cancelled"]
"""A sender's outcome: returned, unknown, raised with nothing written, or taken back."""

EFFECTS: Final = """
CREATE TABLE IF NOT EXISTS simulated_effects (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, sender TEXT NOT NULL, result TEXT
)
"""
RULES: Final = rules()
EFFECT: Final = "INSERT INTO simulated_effects (id, sender) VALUES (?, ?)"
EFFECT_OF: Final = "INSERT INTO simulated_effects (id, sender, result) VALUES (?, ?, ?)"
REPEATED: Final = "SELECT result FROM simulated_effects GROUP BY 1 HAVING count(result) > 1"
"""Results of handlers, by what was handled and their place, that took effect under two ids."""
SEEN: Final = "SELECT seq, id, sender FROM simulated_effects WHERE seq > ? ORDER BY seq"
TRACES: Final = """
SELECT 'dead letter here' FROM _onceward_dead_letters WHERE id = ?1
UNION ALL SELECT state FROM _onceward_outbox WHERE id = ?1 AND state IN ('cancelled', 'failed')
UNION ALL SELECT state
  FROM _onceward_inbox
 WHERE id = ?1 AND state IN ('dropped', 'expired', 'cancelled')
UNION ALL SELECT outcome
  FROM _onceward_processed_messages
 WHERE message_id = ?1 AND outcome <> 'processed'
UNION ALL SELECT 'the reply to a request' FROM _onceward_pending_replies WHERE reply_id = ?1
"""
OPEN: Final = """
SELECT 'outbox ' || id || ' ' || state FROM _onceward_outbox WHERE state IN ('pending', 'sent')
UNION ALL SELECT 'inbox ' || id FROM _onceward_inbox WHERE state = 'pending'
UNION ALL SELECT 'lane ' || name FROM _onceward_lanes WHERE owner IS NOT NULL
"""
ACKED: Final = "SELECT id, recipient FROM _onceward_outbox WHERE state = 'acked'"
CANCELLED: Final = "SELECT 1 FROM _onceward_outbox WHERE id = ? AND state = 'cancelled'"
STORED: Final = """
SELECT 1 FROM _onceward_inbox WHERE sender = ?1 AND id = ?2
UNION ALL SELECT 1 FROM _onceward_processed_messages WHERE sender = ?1 AND message_id = ?2
UNION ALL SELECT 1 FROM _onceward_dead_letters WHERE origin = 'inbox' AND peer = ?1 AND id = ?2
UNION ALL SELECT 1 FROM _onceward_sender_streams WHERE sender = ?1 AND horizon_id >= ?2
"""
TOLD: Final = """
SELECT seq, sender, message_id FROM _onceward_processed_messages AS p WHERE seq > ?
   AND NOT EXISTS (SELECT 1 FROM _onceward_receipts AS r, json_each(r.receipts) AS j
                    WHERE r.peer = p.sender AND j.value ->> 0 = p.message_id)
   AND NOT EXISTS (SELECT 1 FROM _onceward_pending_replies AS r WHERE r.reply_id = p.message_id)
   AND (EXISTS (SELECT 1 FROM _onceward_inbox AS b
                 WHERE b.sender = p.sender AND b.id = p.message_id)
        OR EXISTS (SELECT 1 FROM _onceward_dead_letters AS d
                    WHERE d.origin = 'inbox' AND d.peer = p.sender AND d.id = p.message_id))
 ORDER BY seq
"""
"""Messages that a worker or reader has ended, without a receipt that waits."""
LAST_MARK: Final = "SELECT coalesce(max(seq), 0) FROM _onceward_processed_messages"
UNJUDGED: Final = -1
"""A file that was put back: receipts of what ended before may have been delivered, or pruned."""
HALVES: Final = """
SELECT o.id, o.state FROM _onceward_outbox AS o
 WHERE o.recipient = ?1 AND o.state IN ('sent', 'acked')
   AND NOT EXISTS (
       SELECT 1 FROM _onceward_inbox AS b WHERE b.sender = ?1 AND b.id = o.id
       UNION ALL SELECT 1 FROM _onceward_processed_messages AS p
                  WHERE p.sender = ?1 AND p.message_id = o.id
       UNION ALL SELECT 1 FROM _onceward_dead_letters AS d
                  WHERE d.origin = 'inbox' AND d.peer = ?1 AND d.id = o.id
       UNION ALL SELECT 1 FROM _onceward_sender_streams AS s
                  WHERE s.sender = ?1 AND s.horizon_id >= o.id)
"""
"""Messages to the agent itself that its outbox counts as stored and its inbox does not know."""


@dataclass(frozen=True, slots=True)
class Push:
    """One parcel on the network: its fault, and the answer, if any."""

    parcel: Parcel
    fate: str
    answer: Answer | None


@dataclass(slots=True)
class Sent:
    """One send, as its caller saw it."""

    id: str
    sender: str
    recipient: str
    lane: tuple[str, str]
    place: int
    word: Word
    ordered: bool = True
    """Whether its place in the lane is promised: not after a delay, a replay or a restored file."""
    mortal: bool = False
    """Whether it has a time to live: a file that was rolled back does not get it again."""
    excused: str = ""
    """Why its loss would be no violation."""
    asked: bool = False
    """Whether its recipient was asked to cancel it."""


@dataclass(slots=True)
class File:
    """One agent's file, watched through a connection of our own."""

    agent: str
    path: Path
    connection: apsw.Connection | None = None
    version: int | None = None
    upto: int = 0
    marks_upto: int = 0
    effects: dict[str, int] = field(default_factory=dict)
    """Place of the first effect by message id."""

    def ask(self, sql: str, bindings: Any = ()) -> list[tuple[Any, ...]]:
        """Return all rows of one query."""
        if self.connection is None:
            self.connection = apsw.Connection(str(self.path))
        return list(self.connection.execute(sql, bindings).fetchall())

    def changed(self) -> bool:
        """Return whether the file was written since the last call."""
        # apsw's data_version() tells only of commits before the last read.
        before, self.version = self.version, int(self.ask("PRAGMA data_version")[0][0])
        return before != self.version

    def close(self) -> None:
        """Let go of the file, which may be replaced now."""
        if self.connection is not None:
            self.connection.close()
        self.connection, self.version = None, None


class History:
    """Everything that callers and files said, and what of it cannot be true together."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = {agent: File(agent, path) for agent, path in files.items()}
        self.sent: dict[str, Sent] = {}
        self.minted: set[str] = set()
        """Every id that was ever handed out."""
        self.questions: dict[str, dict[str, Any]] = {}
        """Messages with an unknown outcome, by sender and id."""
        self.doubled: set[str] = set()
        """Whose file had a copy, or a past, that acted too."""
        self.forgetful: set[str] = set()
        """Whose past is lost, because its senders may have pruned what it would need again."""
        self.restored: set[str] = set()
        """Whose file was put back to an earlier state."""
        self.told: set[tuple[str, str, str]] = set()
        """Receipts that were delivered or refused: whose, to which peer, for which message."""
        self.offered: set[tuple[str, str, str]] = set()
        """
        Messages whose answer may have had the receipt: whose, from which peer, which message.

        If that answer was lost, its sender pushes the parcel again: at the end it must know.
        """
        self.deaths: Counter[str] = Counter()
        """How often each message has killed a process."""
        self.remembers = True
        """Whether nothing is pruned, so that no receipt is gone before it was delivered."""
        self.wrong: list[str] = []
        """Contradictions found so far."""
        self.reached: Counter[str] = Counter()
        """How often each thing worth seeing was seen."""

    def send(self, sent: Sent) -> None:
        """Note a send and what its caller was told."""
        known = self.sent.get(sent.id)
        if known is None or known.word == "denied":  # a key, which is the same id again
            self.sent[sent.id] = sent
        elif "promised" == sent.word:
            known.word = sent.word
        self.reached[f"send {sent.word}"] += 1

    def resolved(self, message_id: str, state: str, *, remembers: bool) -> None:
        """Note what the file says of a send with an unknown outcome."""
        sent = self.sent[message_id]
        if state != "absent":
            sent.word = "promised"
        elif remembers:
            sent.word = "denied"
        self.reached["resolved as absent" if state == "absent" else "resolved as there"] += 1

    def pushed(self, push: Push) -> None:
        """Note a push and its answer."""
        self.reached[f"push {push.fate}"] += 1
        answer, parcel = push.answer, push.parcel
        if push.fate == "refuse" or (answer and answer.verdict in {"accepted", "duplicate"}):
            self.told |= {(parcel.sender, parcel.recipient, one.id) for one in parcel.receipts}
        if answer is None:
            return
        self.reached[f"answer {answer.verdict}"] += 1
        if (
            answer.verdict == "fork"
            and answer.epoch == push.parcel.epoch
            and push.parcel.number > answer.number + 1
        ):
            self.reached["gap"] += 1
        for receipt in answer.receipts:
            self.reached[
                f"receipt {receipt.state} {(receipt.reason or '').partition(':')[0]}".strip()
            ] += 1
        if answer.receipts and {r.id for r in answer.receipts} - {c.id for c in push.parcel.frames}:
            self.wrong.append(
                f"answer to {push.parcel.sender} names frames that were not in its parcel"
            )

    def deadly(self, agent: str, message_id: str, attempt: int, died: int) -> None:
        """
        Note that a message is about to kill a process; one death of it may be uncounted.

        *died* is how many had died of it when this attempt began.
        """
        if agent not in self.restored and died > attempt:
            self.wrong.append(
                f"{agent}: {message_id} has killed {died} processes, and this"
                f" is its attempt {attempt}"
            )
        self.deaths[message_id] += 1
        self.reached["message killed its process"] += 1

    # -- looking ------------------------------------------------------------------------------

    def look(self, agent: str) -> None:
        """Judge one file: its invariants, and no effect twice, unsent or denied."""
        file = self.files[agent]
        if not file.changed():
            return
        found = invariants.look(file, RULES)
        self.wrong += [f"{agent} {name}: {offender}" for name, offender in found]
        for seq, message_id, _ in file.ask(SEEN, (file.upto,)):
            file.upto = seq
            if message_id in file.effects:
                self.wrong.append(f"{agent}: {message_id} took effect twice")
            file.effects[message_id] = seq
            self._known(agent, message_id)
        self._receipts(agent, file)
        self.wrong += [
            f"{agent}: {message_id} to itself is {state}, and is in one half of the file"
            for message_id, state in file.ask(HALVES, (agent,))
        ]

    def _receipts(self, agent: str, file: File) -> None:
        """Judge that no receipt is gone that was not delivered."""
        known = self.remembers and file.marks_upto != UNJUDGED
        for _, sender, message_id in file.ask(TOLD, (file.marks_upto,)) if known else ():
            if (
                sender not in {agent, *self.doubled}
                and (agent, sender, message_id) not in self.told | self.offered
            ):
                self.wrong.append(
                    f"{agent}: the receipt of {message_id} is gone, and {sender} never got it"
                )
        file.marks_upto = max(file.marks_upto, *file.ask(LAST_MARK)[0])

    def _known(self, agent: str, message_id: str) -> None:
        sent = self.sent.get(message_id)
        if sent is not None and sent.word in ("denied", "cancelled"):
            self.wrong.append(
                f"{agent}: {message_id} took effect, its sender was told it would not: {sent.word}"
            )
        if message_id not in self.minted:
            self.wrong.append(f"{agent}: {message_id} took effect and was never sent")

    def _unacknowledged(self, sender: str) -> None:
        """Judge that *sender* forgot only what its recipients know, or knew before a rollback."""
        for message_id, recipient in self.files[sender].ask(ACKED):
            sent = self.sent.get(message_id)
            excused = recipient in self.forgetful or (sent is not None and sent.excused)
            if not excused and not self.files[recipient].ask(STORED, (sender, message_id)):
                self.wrong.append(
                    f"{sender} counts {message_id} as acked, and {recipient} has never stored it"
                )

    def rolled_back(self, agent: str, place: int, *, remembers: bool) -> None:
        """Note that the file of *agent* is again what it was at *place*."""
        file = self.files[agent]
        file.close()
        file.upto, file.marks_upto, file.effects = 0, UNJUDGED, {}
        self.questions.pop(agent, None)
        self.doubled.add(agent)
        self.restored.add(agent)
        if not remembers:
            self.forgetful.add(agent)
        for sent in self.sent.values():
            if agent in {sent.sender, sent.recipient}:
                sent.ordered = False
            if sent.sender == agent and (
                sent.word == "cancelled" or (sent.word == "promised" and sent.place > place)
            ):
                sent.word = "maybe"
            if sent.recipient == agent and (sent.mortal or agent in self.forgetful):
                sent.excused = "its recipient was rolled back, and its sender has forgotten it"

    # -- the end ------------------------------------------------------------------------------

    def open_ends(self) -> list[str]:
        """Return what still waits in any file."""
        return [
            f"{agent}: {row}" for agent, file in self.files.items() for (row,) in file.ask(OPEN)
        ]

    def judge(self) -> None:
        """Judge the end: each promise has its effect or a reason, lanes in order, files sound."""
        for agent, file in self.files.items():
            self.look(agent)
            self._unacknowledged(agent)
            broken = invariants.check(file, RULES)
            self.wrong += [f"{agent} {each.invariant}: {each.offender}" for each in broken]
        self._learn_decisions()
        for sent in self.sent.values():
            if sent.word == "cancelled" and self._arrived(sent):
                self.wrong.append(f"{sent.id} from {sent.sender} took effect and was withdrawn")
            if (
                sent.word == "promised"
                and not sent.excused
                and not self._arrived(sent)
                and not self._explained(sent)
            ):
                self.wrong.append(
                    f"{sent.id} from {sent.sender} was promised, {sent.recipient} does not know it"
                )
        self._orders()

    def _learn_decisions(self) -> None:
        """Count as cancelled what its recipient has told so of, where no file was put back."""
        for sent in self.sent.values():
            whole = not {sent.sender, sent.recipient} & (self.restored | self.doubled)
            if sent.asked and whole and self.files[sent.sender].ask(CANCELLED, (sent.id,)):
                sent.word = "cancelled"
                self.reached["cancelled by its recipient"] += 1

    def _arrived(self, sent: Sent) -> bool:
        return sent.id in self.files[sent.recipient].effects

    def _explained(self, sent: Sent) -> bool:
        found = [
            row[0]
            for agent in (sent.sender, sent.recipient)
            for row in self.files[agent].ask(TRACES, (sent.id,))
        ]
        self.reached.update(f"ended as {row}" for row in found[:1])
        return bool(found)

    def _orders(self) -> None:
        last: dict[tuple[str, str, tuple[str, str]], tuple[int, int]] = {}
        for sent in sorted(self.sent.values(), key=lambda each: each.place):
            seq = self.files[sent.recipient].effects.get(sent.id)
            if seq is None or not sent.ordered:
                continue
            lane = (sent.sender, sent.recipient, sent.lane)
            before, earlier = last.get(lane, (0, 0))
            if seq < before:
                self.wrong.append(
                    f"{sent.recipient}: number {sent.place} of lane {lane}"
                    f" took effect before number {earlier}"
                )
            last[lane] = (seq, sent.place)
