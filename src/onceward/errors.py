"""
Define every error of the package, as one tree.

    OncewardError
    ├── InvalidArgument            the call does not accept a value; nothing was done
    │   └── MissingExtra             a library is not installed; also a ModuleNotFoundError
    ├── StoreError                 the file
    │   ├── Busy                     nothing written; try again
    │   ├── OutcomeUnknown           COMMIT raised; ask state(id), or send again with the same id
    │   ├── DiskFull                 disk or quota full; nothing written
    │   ├── StoreCorrupt             damaged or not a database; kept as it is
    │   ├── StoreFault               the disk reported an error; nothing was written
    │   ├── StoreUnusable            the file must not be opened in this way
    │   │   ├── SqliteTooOld · NetworkFilesystem · ForeignHandle · ReadOnlyStore
    │   │   ├── SchemaTooNew · SchemaMismatch · WrongAgent
    │   └── StoreClosed              closed, or inherited through fork
    │       └── ForkedProcess
    ├── SendError                  nothing was written; the id may be used again
    │   ├── InvalidMessage           also an InvalidArgument; so are the next five
    │   │   └── TooLarge · BodyLost · TopicError · ValidationFailed · InvalidVersion
    │   ├── UnknownRecipient · AmbiguousRecipient · Paused
    │   │   └── TakenOver              another machine has taken over the agent
    │   ├── Conflict                 the id, key or name belongs to another one
    │   │   └── DuplicateMailbox · DuplicateChannel, also a ChannelError
    │   ├── ChannelError             the channel refused it
    │   │   └── UnknownChannel · ChannelRefused · NotParticipant
    ├── LimitReached               a limit is reached; nothing was written
    │   ├── OutboxLimit · FileLimit  also a SendError: wait until some messages end
    │   ├── RateLimited              also a SendError; retry_after says when to try again
    │   └── StepLimit · StreamLimit  the steps or the output of one message
    ├── DeliveryError              raised by transports
    │   ├── Unreachable              the peer does not answer; try later
    │   ├── PushFailed               the peer was reached and failed; counts as an attempt
    │   ├── OutOfDescriptors         this process cannot open more files; the peer is fine
    │   ├── ParcelTooLarge           the route takes only smaller parcels
    │   ├── Refused                  the peer will never take this
    │   └── InvalidParcel            not a parcel or an answer; also an InvalidArgument
    │       └── UnsupportedVersion     of a newer onceward; also Unreachable: its messages wait
    ├── UnknownKey                 no key is shared with that peer
    │   └── UnsafeKey                its file is readable by others, or holds something else
    ├── WrongHome                  another home answers at a url
    ├── UnknownMailbox             no such mailbox, or it has expired
    ├── LeaseLost                  another worker owns the message; our writes were rolled back
    │   └── RunLost                  the run was ended from outside; another run gets its messages
    ├── AnswerTimeout              no reply in time; a late reply is kept
    ├── RequestFailed              the request ended without a reply
    │   └── RequestCancelled         it was cancelled before it took effect
    └── StepFailed                 a step failed permanently; the failure is stored

Each class says in ``retryable`` whether the same call may succeed later without another change; its
message says what to do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, NoReturn, cast


class OncewardError(Exception):
    """Base class of every error of the package; its message says what to do."""

    retryable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle and copy it, with its attributes."""
        _, *rest = cast("tuple[Any, ...]", super().__reduce__())
        return _made_again, (type(self), *rest[:1]), *rest[1:]


def _made_again(kind: type[OncewardError], args: tuple[object, ...]) -> OncewardError:
    """Return an error whose attributes are set afterwards; ``__init__`` may want other values."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class InvalidArgument(OncewardError, ValueError):
    """The call does not accept a value; nothing was done: correct it as the message says."""


class MissingExtra(InvalidArgument, ModuleNotFoundError):
    """A library is not installed: install the extra that the message names."""

    def __init__(self, message: str = "", name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class StoreError(OncewardError):
    """An operation on the file failed; the subclass says what to do."""


class Busy(StoreError):
    """Other writers held the file or changed its schema; nothing was written: try again."""

    retryable = True


class OutcomeUnknown(StoreError):
    """
    COMMIT raised or was interrupted: the transaction may have been committed.

    Ask ``postbox.state(id)`` for the ids in ``message_ids``, or send again
    with the same id or key: that is always safe. ``message_id`` is the first of
    them, ``reason`` is the error of COMMIT.
    """

    retryable = True

    def __init__(
        self, message: str, message_ids: tuple[str, ...] = (), *, reason: str = ""
    ) -> None:
        super().__init__(message)
        self.message_ids, self.reason = message_ids, reason
        self.message_id: str | None = message_ids[0] if message_ids else None


class DiskFull(StoreError):
    """The disk or the quota is full; nothing was written: free space, then try again."""

    retryable = True


class StoreCorrupt(StoreError):
    """The file is damaged or not an SQLite database; it is unchanged: restore or recover a copy."""


class StoreFault(StoreError):
    """
    The disk, or a store of bodies, failed before COMMIT; nothing was written.

    Check it, then try again.
    """

    retryable = True


class StoreUnusable(StoreError):
    """The file must not be opened in this way; the message says what to do."""


class SqliteTooOld(StoreUnusable):
    """The SQLite library has known WAL bugs: upgrade apsw to a build of 3.51.3 or newer."""


class NetworkFilesystem(StoreUnusable):
    """
    Locks do not hold on this file system: move the file to a local disk.

    ``network_filesystem=True`` opens it anyway, at your own risk.
    """


class ForeignHandle(StoreUnusable):
    """
    Another library or open call of this process holds the file: close it first.

    Closing that handle later would drop the locks of the postbox. The standard library's
    ``sqlite3.connect`` raises this error for a file that is open as a postbox.
    """


class ReadOnlyStore(StoreUnusable):
    """The file or its folder cannot be written: fix the permissions, or use the read-only views."""


class SchemaTooNew(StoreUnusable):
    """A newer onceward wrote this file: upgrade onceward."""


class SchemaMismatch(StoreUnusable):
    """A table with a name of onceward has other columns: rename it, or use another file."""


class WrongAgent(StoreUnusable):
    """The file belongs to another agent: open it under that name, or choose another file."""


class StoreClosed(StoreError):
    """The postbox was closed: open it again."""


class ForkedProcess(StoreClosed):
    """
    The file was open when the process forked: spawn child processes, or fork before opening.

    Or a thread of the parent was inside SQLite at the fork, so that the child can open no file.
    """


class SendError(OncewardError):
    """The message was refused before anything was written; its id may be used again."""


class InvalidMessage(SendError, InvalidArgument):
    """A value of the message breaks its rule: correct the field that the message names."""


class TooLarge(InvalidMessage):
    """The body exceeds ``max_body`` bytes of UTF-8: send a reference, or raise both limits."""


class BodyLost(InvalidMessage):
    """The file of a body is missing or changed: restore it, then replay the dead letter."""


class TopicError(InvalidMessage):
    """A topic or pattern is malformed, reserved or unknown: use one that the message names."""


class InvalidVersion(InvalidMessage):
    """
    A body has another version than its class, and cannot be brought to it.

    ``newer``: a program with a newer class can read it. Otherwise mend the function that failed.
    """

    def __init__(self, message: str = "", *, newer: bool = False) -> None:
        super().__init__(message)
        self.newer = newer


class ValidationFailed(InvalidMessage):
    """
    A field breaks a rule of its channel; nothing was written: correct ``field``.

    ``reason`` says why, ``value_length`` is the length of the given value.
    """

    def __init__(self, field: str, reason: str, value_length: int = 0) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason, self.value_length = field, reason, value_length


def refuse(field: str, reason: str, value_length: int = 0) -> NoReturn:
    """Raise ValidationFailed for a field that breaks a rule."""
    raise ValidationFailed(field, reason, value_length)


class UnknownRecipient(SendError, LookupError):
    """
    No agent of that name is known: register a peer or create the agent's file.

    With ``hold_unknown=True`` the message waits for one instead.
    """


class AmbiguousRecipient(SendError):
    """
    Several known homes serve an agent of that name: nothing was stored, choose one.

    ``onceward peers add NAME URL`` chooses the home at a url. ``homes`` are their names.
    """

    def __init__(self, message: str, *, homes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.homes = homes


class Conflict(SendError):
    """
    The id, key or name belongs to another one: choose another, or send the same message.

    ``message_id`` is the id of that message, ``key`` the key if the key collided, ``differs`` names
    the fields that differ: body, session, priority …; ``reason`` says in which table that message
    is.
    """

    def __init__(
        self,
        message: str,
        *,
        message_id: str | None = None,
        key: str | None = None,
        differs: tuple[str, ...] = (),
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.message_id, self.key, self.differs = message_id, key, differs
        self.reason = reason


class DuplicateMailbox(Conflict):
    """A mailbox of this name exists; nothing was changed: use it, or choose another name."""


class LimitReached(OncewardError):
    """A limit is reached; nothing was written: wait, use less, or raise the limit it names."""


class OutboxLimit(SendError, LimitReached):
    """
    ``max_pending`` messages wait, or as many as a limit allows; nothing was written.

    Try again after some are delivered.
    """

    retryable = True


class FileLimit(SendError, LimitReached):
    """
    The file has reached its limit of active messages or of bytes; nothing was written.

    Try again after some have ended, or raise the limit.
    """

    retryable = True


class RateLimited(SendError, LimitReached):
    """
    Messages exceed the rate limit; nothing was written: retry in ``retry_after`` seconds.

    ``sender`` is the agent that sends too fast, ``limit`` is in messages per second.
    """

    retryable = True

    def __init__(
        self, message: str, *, retry_after: float, sender: str = "", limit: float = 0.0
    ) -> None:
        super().__init__(message)
        self.retry_after, self.sender, self.limit = retry_after, sender, limit


class ChannelError(SendError):
    """A channel refused an operation; nothing was changed; the subclass says why."""


class UnknownChannel(ChannelError, LookupError):
    """There is no channel of that name in the home: create it first."""


class DuplicateChannel(ChannelError, Conflict):
    """A channel of that name exists; nothing was changed: use it, or choose another name."""


class ChannelRefused(ChannelError):
    """The state of the channel does not allow it: resume the channel, or ask its owner."""

    retryable = True


class NotParticipant(ChannelError):
    """The agent is not a member, or its role forbids it: join the channel, or ask its owner."""


class Paused(SendError, RuntimeError):
    """The agent is paused, or ONCEWARD_DISABLED is set; nothing is lost: resume it."""

    retryable = True


class TakenOver(Paused):
    """Another machine has taken over the agent: this file sends and handles nothing any more."""

    retryable = False


class DeliveryError(OncewardError):
    """A transport could not deliver a parcel; the subclass says why."""


class Unreachable(DeliveryError):
    """The peer did not answer: the dispatcher tries again."""

    retryable = True


class PushFailed(DeliveryError):
    """
    The peer was reached and could not take the parcel: the dispatcher tries again.

    It counts as an attempt of each message in the parcel; no other error of a push does.
    """

    retryable = True


class OutOfDescriptors(DeliveryError):
    """
    The process cannot open more files: raise its limit (``ulimit -n``), or close files.

    The parcel is pushed again shortly; it does not count as a failure of the peer.
    """

    retryable = True


class ParcelTooLarge(DeliveryError):
    """
    The route takes parcels of at most ``limit`` bytes: the dispatcher packs smaller ones.

    Raised by a transport; receipts and envelope count towards the size.
    """

    retryable = True

    def __init__(self, message: str, *, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


class Refused(DeliveryError):
    """The peer will never accept this parcel: read the reason, replay or discard dead letters."""


class InvalidParcel(DeliveryError, InvalidArgument):
    """The bytes are not a parcel or an answer of this version, or a value cannot be encoded."""


class UnsupportedVersion(InvalidParcel, Unreachable):
    """
    One side needs more than the other one's onceward can read: upgrade the side that it names.

    Nothing is lost: the messages wait in the sender's file. ``needs`` is the release or the wire
    version that is needed.
    """

    retryable = True

    def __init__(self, message: str, *, needs: str = "") -> None:
        super().__init__(message)
        self.needs = needs


class UnknownKey(OncewardError, LookupError):
    """
    No key is shared with this peer: create one (``keys new``), or add the peer's (``keys add``).

    ``peer`` is its name.
    """

    def __init__(self, message: str, *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


class UnsafeKey(UnknownKey):
    """A key file was refused: correct its mode or its content, as the message says."""


class WrongHome(OncewardError):
    """A home with another key answers at this url: compare the fingerprints of both operators."""


class LeaseLost(OncewardError):
    """The lease ended and another worker owns the message; writes were rolled back: do nothing."""


class RunLost(LeaseLost):
    """The run was ended or its lease ran out; it cannot commit: return at once."""


class UnknownMailbox(OncewardError, LookupError):
    """
    No mailbox has this name or id, or it has expired: create it, or ask its owner.

    An id that never existed and an id that expired cannot be distinguished.
    """

    def __init__(
        self, message: str = "no such mailbox: it was never created, or it has expired"
    ) -> None:
        super().__init__(message)


class AnswerTimeout(OncewardError, TimeoutError):
    """
    No reply within the timeout: ask for it again later, a late reply is kept.

    Call ``result(message_id)`` for that.

    ``message_id`` is the id of the request, ``reason`` its state.
    """

    retryable = True

    def __init__(self, message: str, *, message_id: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.message_id, self.reason = message_id, reason


class RequestFailed(OncewardError):
    """
    The request ended without a reply: read ``reason``, then send a corrected request.

    ``message_id`` is the id of the request; if a reply arrives later, ``result(message_id)``
    returns it.
    """

    def __init__(self, message: str, *, message_id: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.message_id, self.reason = message_id, reason


class RequestCancelled(RequestFailed):
    """The request was cancelled before it took effect: ask again only if you want it again."""


class StepFailed(OncewardError):
    """
    A step failed permanently; each call of the handler gets this: go on without its result.

    ``step`` is its name, ``error`` the last error of its function, ``message_id`` the message.
    """

    def __init__(
        self, message: str, *, message_id: str | None = None, step: str = "", error: str = ""
    ) -> None:
        super().__init__(message)
        self.message_id, self.step, self.error = message_id, step, error


class StepLimit(LimitReached):
    """
    The steps of one message reached their limit: split the work, or raise the limit.

    ``max_steps`` and ``max_step_bytes`` are the limits; ``message_id`` is the message.
    """

    def __init__(self, message: str, *, message_id: str | None = None) -> None:
        super().__init__(message)
        self.message_id = message_id


class StreamLimit(LimitReached):
    """
    The output of one message reached its limit: write less, or raise the limit.

    ``max_stream_chunks`` and ``max_stream_bytes`` are the limits; ``message_id`` is the message.
    """

    def __init__(self, message: str, *, message_id: str | None = None) -> None:
        super().__init__(message)
        self.message_id = message_id


class HandlerSignal(Exception):
    """Base of what a handler raises to end its message; never leaves the worker."""


class Retry(HandlerSignal):
    """Raise in a handler: try again after *after* (seconds, timedelta, 2h; None: by policy)."""

    def __init__(
        self,
        reason: str = "retry asked by handler",
        *,
        after: float | timedelta | str | None = None,
    ) -> None:
        super().__init__(reason)
        self.after = after


class Reject(HandlerSignal):
    """Raise in a handler: the message becomes a dead letter with *reason*, without a retry."""

    def __init__(self, reason: str = "rejected by handler") -> None:
        super().__init__(reason)


class Drop(HandlerSignal):
    """Raise in a handler: end the message as dropped, without effects and without a dead letter."""
