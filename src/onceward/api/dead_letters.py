"""List, replay and discard dead letters."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from onceward.core.end import replays
from onceward.core.handle.attempt import find_handler
from onceward.core.handle.signatures import Handler
from onceward.core.rows import dead_letters
from onceward.core.rows.dead_letters import DeadLetter
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send.add import Outbox
from onceward.errors import InvalidArgument, InvalidMessage, OncewardError
from onceward.file.database import Database
from onceward.file.directory import DirectoryCache
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import LARGEST, checks_arguments
from onceward.message.body import BYTES, VERSIONED, Payload, decode, encode
from onceward.message.clock import Millis
from onceward.message.error_text import error_text
from onceward.message.frame import Frame
from onceward.message.names import quoted, refuse_options
from onceward.message.options import MessageOptions
from onceward.message.times import GivenRate, Span, millis
from onceward.message.vocabulary import REASONS

if TYPE_CHECKING:
    from onceward.message.times import Rate

SLICE: Final = 100
"""Dead letters replayed in one commit."""
ALL: Final = LARGEST
ANY: Final = dict.fromkeys(("reason", "origin", "peer", "session", "type"))


class DeadLetterFilter(TypedDict, total=False):
    """Filters of dead letters; all given ones must match."""

    reason: str | None
    """Why they died."""
    peer: str | None
    """From or to this agent."""
    topic: str | None
    """A topic, or a pattern of topics."""
    session: str | None
    """Of this conversation."""
    type: str | None
    """Of this message type."""
    origin: Literal["outbox", "inbox", "queue"] | None
    """``outbox``, ``inbox`` or ``queue``."""
    older_than: Span | None
    """Dead for more than this many seconds."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Outcome of replaying dead letters in bulk."""

    done: list[str]
    """Ids of the messages that were put back on their way."""
    failed: list[tuple[str, OncewardError]]
    """Ids of those that stayed dead letters, and why."""


@checks_arguments()
class DeadLetters:
    """Messages that ended badly here, of both directions."""

    def __init__(
        self,
        db: Database,
        outbox: Outbox,
        directory: DirectoryCache,
        handlers: Sequence[Handler] = (),
    ) -> None:
        self._db, self._outbox, self._directory = db, outbox, directory
        self._handlers = handlers

    def list(self, *, limit: int = 100, **which: Unpack[DeadLetterFilter]) -> list[DeadLetter]:
        """Return dead letters, newest first."""
        topic = which.pop("topic", None)
        return dead_letters.find_newest(self._db, self._conditions(which), topic, limit=limit)

    def get(self, message_id: str, *, peer: str | None = None) -> DeadLetter | None:
        """Return one dead letter or None; of several, the oldest, unless *peer* says which."""
        named = self._conditions({"peer": peer}) | {"id": message_id}
        return next(iter(dead_letters.find(self._db, named, limit=1)), None)

    def _oldest(self, which: DeadLetterFilter, limit: int) -> builtins.list[DeadLetter]:
        """Return the dead letters that a verb in bulk takes."""
        topic = which.pop("topic", None)
        return dead_letters.find(self._db, self._conditions(which), topic, limit=limit)

    def _conditions(self, which: DeadLetterFilter) -> dict[str, Any]:
        unknown = which.keys() - DeadLetterFilter.__annotations__
        if unknown:
            refuse_options("a filter of dead letters", unknown, DeadLetterFilter.__annotations__)
        if which.get("reason") not in {None, *REASONS}:
            msg = f"reason={quoted(which['reason'])} is not one of {', '.join(REASONS)}"
            raise InvalidArgument(msg)
        older_than = which.pop("older_than", None)
        before = None if older_than is None else self._before(older_than)
        return ANY | which | {"id": None, "before": before}

    def edit(self, message_id: str, body: object, *, peer: str | None = None) -> DeadLetter:
        """
        Replace the body of a received dead letter, so that a replay can succeed; return it.

        The body is checked against the handler of its type, if this postbox was opened with an
        agent that has one, and encrypted if that takes an ``EncryptedMsg``. The header
        ``bodyedits`` keeps, as JSON, each earlier body and when it was replaced, in milliseconds;
        it goes with the message. *peer* is the sender, if several have a dead letter of this id.

        Raises:
            InvalidArgument: no such dead letter was received here.
            InvalidMessage: the body does not fit; nothing was changed.
            Conflict: another process replayed, discarded or edited it just now.

        """
        dead = self.get(message_id, peer=peer)
        if dead is None:
            raise InvalidArgument(f"no dead letter {message_id}: list them first")
        if dead.origin == "outbox":
            msg = f"dead letter {message_id} was sent, not received: send a corrected message"
            raise InvalidArgument(msg)
        payload = self._checked(_of_version(encode(body), dead.frame), dead.frame)
        self._db.write(lambda tx: replays.edit(tx, dead.seq, dead.text, payload))
        return next(iter(dead_letters.of_seq(self._db, dead.seq)), dead)

    def checks(self, kind: str, topic: str | None = None) -> bool:
        """Return whether ``edit`` checks bodies of a type or topic: a handler has a model of it."""
        return self._model(kind, topic) is not None

    def _checked(self, body: Payload, frame: Frame) -> Payload:
        """Return a body that fits its handler, encrypted if the present one is."""
        from onceward.message.encrypted import EncryptedMsg, is_encrypted  # noqa: PLC0415 - rare

        value, wanted = json.loads(body.text), self._model(frame.type, frame.topic)
        binary = value if body.media == BYTES else None
        try:
            found = decode(None if binary else value, binary, wanted, body.media)
        except InvalidMessage:
            raise
        except Exception as error:  # a validator of the user's own class
            raise InvalidMessage(f"body does not fit: {error_text(error)}") from error
        if isinstance(found, EncryptedMsg):
            return encode(found)
        if is_encrypted(frame.data) and not is_encrypted(value):
            how = "open the file with the agent that handles it (--handlers module:agent)"
            raise InvalidMessage(f"the body of type {frame.type} is encrypted: {how}")
        return body

    def _model(self, kind: str, topic: str | None) -> Any:
        handler = find_handler(self._handlers, kind, topic)
        return None if handler is None else handler.body

    def replay(
        self,
        message_id: str,
        *,
        as_new: bool = False,
        peer: str | None = None,
        from_step: str | None = None,
        without_steps: bool = False,
    ) -> str:
        """
        Put a dead letter back on its way, and return its id.

        If a peer has processed a message of this id, it says so, and the message ends acked.
        *as_new* (outgoing ones only) sends its body under a new id, without its expiry; the header
        ``replayof`` names the old one. The handler of a received one keeps its stored steps:
        *from_step* (``think#2``) deletes that step and later ones, *without_steps* deletes all.

        Raises:
            InvalidArgument: no such dead letter or step is stored, or its time to live has run out:
                then use *as_new*.
            ChannelRefused: its channel was closed or removed since.

        """
        dead = self.get(message_id, peer=peer)
        if dead is None:
            raise InvalidArgument(f"no dead letter {message_id}: list them first")
        move = self._move(dead, None, as_new=as_new)
        if from_step is not None or without_steps:
            move = _without_steps(dead, from_step, move)
        new_id = self._db.write(move)
        self._notify()
        return new_id

    def replay_all(
        self,
        *,
        as_new: bool = False,
        dry_run: bool = False,
        rate: GivenRate | None = None,
        limit: int = ALL,
        **which: Unpack[DeadLetterFilter],
    ) -> ReplayResult:
        """
        Put all dead letters that match back on their way, oldest first, many in one commit.

        *rate*, ``10/m`` or a number per second, limits how fast outgoing ones leave: the wait is a
        time in each row, so it outlasts this process. *dry_run* changes nothing and returns the ids
        that would be tried. A dead letter that cannot be replayed stays.
        """
        from onceward.message.times import read_rate  # noqa: PLC0415 - rarely needed

        chosen = self._oldest(which, limit)
        most = None if rate is None else read_rate("rate", rate)
        if dry_run:
            return ReplayResult([dead.id for dead in chosen], [])
        replays = ReplayResult([], [])
        for at in range(0, len(chosen), SLICE):
            self._replay_slice(chosen[at : at + SLICE], at, replays, rate=most, as_new=as_new)
        self._notify()
        return replays

    def _replay_slice(
        self,
        chosen: Sequence[DeadLetter],
        first: int,
        replays: ReplayResult,
        *,
        rate: Rate | None,
        as_new: bool,
    ) -> None:
        moves: list[tuple[DeadLetter, Callable[[StoreTransaction], str]]] = []
        for place, dead in enumerate(chosen, start=first):
            wait = None if rate is None else _wait(rate, place)
            try:
                moves.append((dead, self._move(dead, wait, as_new=as_new)))
            except OncewardError as error:
                replays.failed.append((dead.id, error))
        try:
            replays.done.extend(self._db.write(lambda tx: [move(tx) for _, move in moves]))
        except OncewardError:  # one of them fails the commit: replay each by itself
            for dead, move in moves:
                try:
                    replays.done.append(self._db.write(move))
                except OncewardError as error:
                    replays.failed.append((dead.id, error))

    def _move(
        self, dead: DeadLetter, wait: float | None, *, as_new: bool
    ) -> Callable[[StoreTransaction], str]:
        """Return the call that moves one dead letter, to leave in *wait* seconds."""
        if as_new:
            return self._as_new(dead, wait)
        if dead.channel is not None:
            self._in_channel(dead, as_new=False)

        def move(tx: StoreTransaction) -> str:
            due_at = None if wait is None else tx.now + round(1000 * wait)
            return replays.replay(tx, dead.seq, due_at=due_at, returned=_readmit)[1]

        return move

    def _in_channel(self, dead: DeadLetter, *, as_new: bool) -> Millis:
        """Return the earliest time of a message in that channel; raise ChannelRefused."""
        from onceward.features.channels import closed  # noqa: PLC0415 - rarely needed

        return closed.check_replay(self._directory, dead.frame, as_new=as_new)

    def _as_new(self, dead: DeadLetter, wait: float | None) -> Callable[[StoreTransaction], str]:
        if dead.origin != "outbox":
            msg = f"dead letter {dead.id} was received: only sent messages can be sent as new"
            raise InvalidArgument(msg)
        frame = dead.frame
        if frame.body_error is not None:
            msg = f"dead letter {dead.id} cannot be sent as new, {frame.body_error}"
            raise InvalidArgument(msg)
        options = MessageOptions(
            type=frame.type,
            topic=frame.topic,
            priority=frame.priority_name,
            ordering_key=frame.partitionkey,
            delay=wait,
            correlation_id=frame.correlationid,
            causation_id=frame.causationid,
            hops=0 if dead.reason == "hops_exceeded" else frame.hops,
            in_reply_to=frame.inreplyto,
            reply_to=frame.replyto,
            channel=frame.channel,
            kind=frame.kind,
            mailbox=frame.mailbox,
            headers=frame.headers | {"replayof": dead.id},
        )
        draft = self._compose(dead, frame.recipient, _body(frame), options)

        def move(tx: StoreTransaction) -> str:
            if not replays.discard(tx, dead.seq):
                raise InvalidArgument(f"dead letter {dead.id} is gone: list them again")
            return self._outbox.add(tx, draft)

        return move

    def _compose(
        self, dead: DeadLetter, to: str, body: object, options: MessageOptions
    ) -> OutgoingMessage:
        since = 0 if dead.channel is None else self._in_channel(dead, as_new=True)
        if since <= self._db.now():
            return self._outbox.compose(dead.session, to, body, options)
        return self._outbox.composer.compose_at(dead.session, to, body, options, since)

    def discard(self, message_id: str, *, peer: str | None = None) -> bool:
        """Discard a dead letter, the oldest unless *peer* says which; return whether it existed."""
        dead = self.get(message_id, peer=peer)
        return dead is not None and self._db.write(lambda tx: replays.discard(tx, dead.seq))

    def discard_all(
        self, *, limit: int = ALL, **which: Unpack[DeadLetterFilter]
    ) -> builtins.list[str]:
        """Discard all dead letters that match, in one commit; return their ids, oldest first."""
        chosen = self._oldest(which, limit)
        return self._db.write(
            lambda tx: [dead.id for dead in chosen if replays.discard(tx, dead.seq)]
        )

    def _before(self, older_than: Span) -> Millis:
        return self._db.now() - millis("older_than", older_than) + 1

    def _notify(self) -> None:
        self._db.notifier.notify("out")
        self._db.notifier.notify("in")


def _wait(rate: Rate, place: int) -> float | None:
    """Return the seconds until the dead letter of that position leaves; None means at once."""
    at_once = max(rate.burst, rate.per_second)
    return None if place < at_once else place / rate.per_second


def _of_version(payload: Payload, frame: Frame) -> Payload:
    """Return plain JSON as of the version that it replaces; the body of a class has its own."""
    if payload.type != "json" or not frame.datacontenttype.startswith(VERSIONED):
        return payload
    return payload._replace(media=frame.datacontenttype)


def _body(frame: Frame) -> Any:
    """Return the body of a frame as it is sent again."""
    frame = frame.with_stored_body()
    if frame.datacontenttype == BYTES:
        return raw(frame)
    if not frame.datacontenttype.startswith(VERSIONED):
        return frame.data
    from onceward.message.versions import sent_again  # noqa: PLC0415 - rarely needed

    return sent_again(frame.data, frame.datacontenttype)


def raw(frame: Frame) -> bytes:
    """Return the bytes of a binary body."""
    import base64  # noqa: PLC0415 - binary bodies only

    return base64.b64decode(frame.data_base64 or "")


def _without_steps(
    dead: DeadLetter, from_step: str | None, move: Callable[[StoreTransaction], str]
) -> Callable[[StoreTransaction], str]:
    """Return the call that moves a dead letter and deletes its steps, in one commit."""
    if dead.origin == "outbox":
        msg = f"dead letter {dead.id} was sent: its steps are in the file of {dead.recipient}"
        raise InvalidArgument(msg)

    from onceward.features.steps.stored import forget  # noqa: PLC0415 - rarely needed

    def forget_and_move(tx: StoreTransaction) -> str:
        forget(tx, sender=dead.sender, message_id=dead.id, step=from_step)
        return move(tx)

    return forget_and_move


def _readmit(tx: StoreTransaction, sender: str, message_id: str) -> None:
    """Give a message that returns to its mailbox its key again."""
    from onceward.features.mailboxes.keys import readmit  # noqa: PLC0415 - rarely needed

    readmit(tx, sender, message_id)
