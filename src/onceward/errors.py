"""
Define every error of the package, as one tree.

    OncewardError
    ├── InvalidArgument            a value is not what the call takes; nothing was done
    │   └── MissingExtra             a library is not installed; a ModuleNotFoundError, too
    ├── StoreError                 the file
    │   ├── Busy                     nothing written; try again
    │   ├── OutcomeUnknown           COMMIT raised; ask resolve(id), or send again with the same id
    │   ├── StoreCapacity            disk or quota full; nothing written
    │   ├── StoreCorrupt             damaged or not a database; kept as it is
    │   ├── StoreFault               the disk reported an error; nothing was written
    │   ├── StoreUnusable            this file may not be opened like this
    │   │   ├── SqliteTooOld · NetworkFilesystem · ForeignHandle · ReadOnlyStore
    │   │   ├── SchemaTooNew · SchemaMismatch · WrongAgent
    │   └── StoreClosed              closed, or inherited through fork
    │       └── ForkedProcess
    ├── SendError                  nothing was written; the id may be used again
    │   ├── InvalidMessage           an InvalidArgument, too; so are the next three
    │   │   └── TooLarge · TopicError · ValidationFailed
    │   ├── UnknownRecipient · Conflict · Paused
    │   ├── QueueFull                a limit of messages is reached; wait until some are settled
    │   │   └── StoreFull              the limit of the whole file
    │   ├── RateLimited              sent too fast; retry_after says when to come again
    │   ├── ChannelError             the channel does not take it
    │   │   ├── UnknownChannel · DuplicateChannel · ChannelRefused · NotParticipant
    ├── DeliveryError              raised by transports
    │   ├── Unreachable              the peer does not answer; try later
    │   ├── PushFailed               the peer was reached and failed; an attempt of each message
    │   ├── OutOfDescriptors         this process can open no further file; the peer is well
    │   ├── ParcelTooLarge           the way takes no parcel of this size; a smaller one passes
    │   ├── Refused                  the peer will never take this
    │   └── InvalidParcel            bytes that are no parcel or answer; an InvalidArgument, too
    ├── NoKey                      no key is shared with that peer
    │   └── UnsafeKey                its file is readable by others, or holds something else
    ├── NoMailbox                  no such mailbox, or not any more
    ├── DuplicateMailbox           a mailbox of that name exists
    ├── LeaseLost                  another worker owns the message; our writes were rolled back
    │   └── RunAborted               the run was ended from outside; its messages go to another
    ├── AnswerTimeout              no reply in time; a late one is kept
    ├── RequestFailed              the request ended without a reply
    │   └── RequestCancelled         it was cancelled before it took effect
    ├── StepFailed                 a step failed for good, and that is stored
    ├── StepsFull                  the steps of a message take all that they may
    └── StreamFull                 the output of a message takes all that it may

Each class says in ``retryable`` whether the same call may succeed later
without any change elsewhere, and its message says what to do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, NoReturn


class OncewardError(Exception):
    """Root of the tree: catches every error of the package; its message names the cure."""

    retryable: ClassVar[bool] = False


class InvalidArgument(OncewardError, ValueError):
    """A value is not what the call takes; nothing was done: correct what the message names."""


class MissingExtra(InvalidArgument, ModuleNotFoundError):
    """A library of an extra is not installed: install the extra that the message names."""

    def __init__(self, message: str = "", name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class StoreError(OncewardError):
    """The file could not do what was asked; see the subclass for what to do."""


class Busy(StoreError):
    """Other writers held the file until the deadline; nothing was written: try again."""

    retryable = True


class OutcomeUnknown(StoreError):
    """
    COMMIT raised or was cut off: the transaction may have happened.

    Ask ``postbox.resolve(id)`` for the ids in ``message_ids``, or send again
    with the same id or key: that is always safe. ``message_id`` is the first of
    them, ``reason`` what COMMIT raised.
    """

    retryable = True

    def __init__(
        self, message: str, message_ids: tuple[str, ...] = (), *, reason: str = ""
    ) -> None:
        super().__init__(message)
        self.message_ids, self.reason = message_ids, reason
        self.message_id: str | None = message_ids[0] if message_ids else None


class StoreCapacity(StoreError):
    """Disk, quota or page limit is full; nothing was written: free space, then try again."""

    retryable = True


class StoreCorrupt(StoreError):
    """The file is damaged or no SQLite database; it is unchanged: restore or recover a copy."""


class StoreFault(StoreError):
    """The disk failed before COMMIT; nothing was written: check the disk, then try again."""

    retryable = True


class StoreUnusable(StoreError):
    """The file may not be opened like this; the message names the cure."""


class SqliteTooOld(StoreUnusable):
    """The SQLite library has known WAL bugs: upgrade apsw to a build of 3.51.3 or newer."""


class NetworkFilesystem(StoreUnusable):
    """
    Locks do not hold on this file system: move the file to a local disk.

    ``network_filesystem=True`` opens it all the same, at your own risk.
    """


class ForeignHandle(StoreUnusable):
    """
    Another SQLite library or open() of this process holds the file: close it first.

    Closing it later would drop our locks. The standard library's ``sqlite3.connect``
    raises it for a file that is open as a postbox.
    """


class ReadOnlyStore(StoreUnusable):
    """The file or its folder cannot be written: fix the permissions, or use the read-only views."""


class SchemaTooNew(StoreUnusable):
    """A newer onceward wrote this file: upgrade onceward."""


class SchemaMismatch(StoreUnusable):
    """A table of our name has another shape: rename it, or give onceward a file of its own."""


class WrongAgent(StoreUnusable):
    """The file belongs to another agent: open it under its own name, or choose another file."""


class StoreClosed(StoreError):
    """The postbox was closed: open it again."""


class ForkedProcess(StoreClosed):
    """The file was open when the process forked: start children by spawn, or fork first."""


class SendError(OncewardError):
    """The message was refused before anything was written; its id may be used again."""


class InvalidMessage(SendError, InvalidArgument):
    """A value of the message breaks its rule: correct the field that the message names."""


class TooLarge(InvalidMessage):
    """The body exceeds ``max_body`` bytes of UTF-8: send a reference, or raise both limits."""


class TopicError(InvalidMessage):
    """A topic or pattern is malformed, reserved or unknown: use one that the message names."""


class ValidationFailed(InvalidMessage):
    """
    A field breaks a rule of its channel; nothing was written: correct ``field``.

    ``reason`` says why, ``value_length`` is the length of what was given.
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


class Conflict(SendError):
    """
    The id or key stands for another message: choose another, or send the same message.

    ``message_id`` is the message that it stands for, ``key`` the key where that is
    what collided, ``differs`` names what differs: body, session, priority …;
    ``reason`` says where it stands.
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


class QueueFull(SendError):
    """``max_pending`` messages wait; nothing was written: try again after some are delivered."""

    retryable = True


class StoreFull(QueueFull):
    """
    The file holds its limit of active messages; nothing was written.

    Try again once some are settled, or raise the limit.
    """


class RateLimited(SendError):
    """
    Messages exceed the rate limit; nothing was written: retry in ``retry_after`` seconds.

    ``sender`` is the agent that sends too fast, ``limit`` its messages per second.
    """

    retryable = True

    def __init__(
        self, message: str, *, retry_after: float, sender: str = "", limit: float = 0.0
    ) -> None:
        super().__init__(message)
        self.retry_after, self.sender, self.limit = retry_after, sender, limit


class ChannelError(SendError):
    """A channel does not take what was asked of it, nothing was changed; see the subclass."""


class UnknownChannel(ChannelError, LookupError):
    """There is no channel of that name in the home: create it first."""


class DuplicateChannel(ChannelError):
    """A channel of that name exists: ``ensure`` returns it, or choose another name."""


class ChannelRefused(ChannelError):
    """The channel's state does not allow it: resume it, or ask its owner."""

    retryable = True


class NotParticipant(ChannelError):
    """The agent is not a member, or its role forbids it: join the channel, or ask its owner."""


class Paused(SendError, RuntimeError):
    """The agent is paused: call ``file.resume()`` or unset ONCEWARD_DISABLED; nothing was lost."""

    retryable = True


class DeliveryError(OncewardError):
    """A transport could not hand a parcel over; see the subclass."""


class Unreachable(DeliveryError):
    """The peer did not answer: the dispatcher tries again by itself."""

    retryable = True


class PushFailed(DeliveryError):
    """
    The peer was reached and could not take the parcel: the dispatcher tries again by itself.

    It counts against the budget of the parcel's messages, as no other error of a push does.
    """

    retryable = True


class OutOfDescriptors(DeliveryError):
    """
    The process can open no further file: raise its limit (``ulimit -n``), or close files.

    A parcel that met it is pushed again shortly: it is not a failure of the peer.
    """

    retryable = True


class ParcelTooLarge(DeliveryError):
    """
    The way to the peer takes parcels of at most ``limit`` bytes: smaller ones are packed by itself.

    A transport raises it; receipts and envelope count.
    """

    retryable = True

    def __init__(self, message: str, *, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


class Refused(DeliveryError):
    """The peer will never take this parcel: read the reason, replay or discard dead letters."""


class InvalidParcel(DeliveryError, InvalidArgument):
    """The bytes are not a parcel or an answer of this version, or a value of it cannot travel."""


class NoKey(OncewardError, LookupError):
    """
    No key is shared with this peer: make one (``keys new``), or add the peer's (``keys add``).

    ``peer`` is its name.
    """

    def __init__(self, message: str, *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


class UnsafeKey(NoKey):
    """The file of a key is not used: correct its mode or its content, as the message says."""


class LeaseLost(OncewardError):
    """The lease ran out, another worker owns the message; writes were rolled back: do nothing."""


class RunAborted(LeaseLost):
    """The run was ended or its lease ran out; it can commit nothing more: return at once."""


class NoMailbox(OncewardError, LookupError):
    """
    No mailbox has this name or id, or it has expired: create it, or ask its owner.

    An id that never existed and one that expired are not told apart.
    """

    def __init__(
        self, message: str = "no such mailbox: it was never created, or it has expired"
    ) -> None:
        super().__init__(message)


class DuplicateMailbox(OncewardError):
    """A mailbox of this name exists; nothing was changed: ``ensure`` returns the existing one."""


class AnswerTimeout(OncewardError, TimeoutError):
    """
    No reply within the timeout: ask ``result(message_id)`` again later, a late reply is kept.

    ``message_id`` is the request, ``reason`` the state in which it is.
    """

    retryable = True

    def __init__(self, message: str, *, message_id: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.message_id, self.reason = message_id, reason


class RequestFailed(OncewardError):
    """
    The request ended without a reply: read ``reason``, then send a corrected request.

    ``message_id`` is the request; should a reply come all the same,
    ``result(message_id)`` returns it.
    """

    def __init__(self, message: str, *, message_id: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.message_id, self.reason = message_id, reason


class RequestCancelled(RequestFailed):
    """The request was cancelled before it took effect: ask again only if it is wanted again."""


class StepFailed(OncewardError):
    """
    A step failed for good, and each call of the handler gets this: go on without its result.

    ``step`` is its name, ``error`` the last error of its function, ``message_id`` the message.
    """

    def __init__(
        self, message: str, *, message_id: str | None = None, step: str = "", error: str = ""
    ) -> None:
        super().__init__(message)
        self.message_id, self.step, self.error = message_id, step, error


class StepsFull(OncewardError):
    """
    The steps of one message take all that they may: split the work, or raise the limit.

    ``max_steps`` and ``max_step_bytes`` are the limits; ``message_id`` is the message.
    """

    def __init__(self, message: str, *, message_id: str | None = None) -> None:
        super().__init__(message)
        self.message_id = message_id


class StreamFull(OncewardError):
    """
    The output of one message takes all that it may: put out less, or raise the limit.

    ``max_stream_chunks`` and ``max_stream_bytes`` are the limits; ``message_id`` is the message.
    """

    def __init__(self, message: str, *, message_id: str | None = None) -> None:
        super().__init__(message)
        self.message_id = message_id


class HandlerSignal(Exception):
    """Base of what a handler raises to end its message; never leaves the worker."""


class Retry(HandlerSignal):
    """Raise in a handler: try again after *after* (seconds, timedelta, 2h), by policy if None."""

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
    """Raise in a handler: end the message as dropped, without effects or a dead letter."""
