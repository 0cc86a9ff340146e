"""
Everything that can go wrong, as one tree.

    OncewardError
    ├── InvalidArgument            a value is not what the call takes; nothing was done
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
    │   ├── Unreachable              nobody there; try later
    │   └── Refused                  the peer will never take this
    ├── NoMailbox                  no such mailbox, or not any more
    ├── DuplicateMailbox           created by somebody else already
    ├── LeaseLost                  somebody else owns the message now; our writes were rolled back
    │   └── RunAborted               the run was ended from outside; its messages are somebody else's
    ├── AnswerTimeout              no reply in time; the ticket stays valid
    └── RequestFailed              the peer gave the request up

Each class says in ``retryable`` whether the same call may succeed later
without anybody changing anything, and its message says what to do.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn


class OncewardError(Exception):
    """Root of the tree; catch it to catch everything of ours, and read its message for the cure."""

    retryable: ClassVar[bool] = False


class InvalidArgument(OncewardError, ValueError):
    """A value is not what the call takes; nothing was done: correct what the message names."""


class StoreError(OncewardError):
    """The file could not do what was asked; see the subclass for what to do."""


class Busy(StoreError):
    """Others held the file for the whole deadline; nothing was written, so simply try again."""

    retryable = True


class OutcomeUnknown(StoreError):
    """
    COMMIT raised or was cut off: the transaction may have happened.

    Ask ``postbox.resolve(id)`` for the ids in ``message_ids``, or send again
    with the same id or key: that is always safe.
    """

    retryable = True

    def __init__(self, message: str, message_ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message_ids = message_ids


class StoreCapacity(StoreError):
    """Disk, quota or page limit is full; nothing was written: free space, then try again."""

    retryable = True


class StoreCorrupt(StoreError):
    """The file is damaged or is no SQLite database; it was left untouched: restore or recover a copy."""


class StoreFault(StoreError):
    """The disk reported an error before COMMIT; nothing was written: check the disk, then try again."""

    retryable = True


class StoreUnusable(StoreError):
    """The file may not be opened like this; the message names the cure."""


class SqliteTooOld(StoreUnusable):
    """The SQLite library has known WAL bugs: upgrade apsw to a build of 3.51.3 or newer."""


class NetworkFilesystem(StoreUnusable):
    """Locks do not hold on this file system: move the file, or pass ``network_filesystem=True`` at your own risk."""


class ForeignHandle(StoreUnusable):
    """Another SQLite library or open() holds this file in this process: close it first, it would drop our locks."""


class ReadOnlyStore(StoreUnusable):
    """The file or its folder cannot be written: fix the permissions, or use the read-only views."""


class SchemaTooNew(StoreUnusable):
    """A newer onceward wrote this file: upgrade onceward."""


class SchemaMismatch(StoreUnusable):
    """A table of ours exists with another shape: rename the host's table, or use a file of its own."""


class WrongAgent(StoreUnusable):
    """The file belongs to another agent: open it under its own name, or choose another file."""


class StoreClosed(StoreError):
    """The postbox was closed: open it again."""


class ForkedProcess(StoreClosed):
    """The file was open when the process forked: start children by spawn, or fork before opening."""


class SendError(OncewardError):
    """The message was refused before anything was written; its id may be used again."""


class InvalidMessage(SendError, InvalidArgument):
    """A value of the message breaks its rule: correct the field that the message names."""


class TooLarge(InvalidMessage):
    """The body exceeds ``max_body`` bytes of UTF-8: send a reference, or raise the limit on both sides."""


class TopicError(InvalidMessage):
    """A topic or pattern is malformed, reserved, or none of a closed set: use one that the message names."""


class ValidationFailed(InvalidMessage):
    """A field breaks a rule of its channel, nothing was written: see ``field``, ``reason`` and ``value_length``."""

    def __init__(self, field: str, reason: str, value_length: int = 0) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason, self.value_length = field, reason, value_length


def refuse(field: str, reason: str, value_length: int = 0) -> NoReturn:
    """Raise ValidationFailed for a field that breaks a rule."""
    raise ValidationFailed(field, reason, value_length)


class UnknownRecipient(SendError, LookupError):
    """Nobody of that name is known: register a peer, create the agent's file, or pass ``hold_unknown=True``."""


class Conflict(SendError):
    """The same id or key was used with another body: choose another key, or send the same body."""


class QueueFull(SendError):
    """``max_pending`` messages wait already; nothing was written: wait for the dispatcher, then try again."""

    retryable = True


class StoreFull(QueueFull):
    """The file holds as many active messages as it may; nothing was written: let some be settled, or raise the limit."""


class RateLimited(SendError):
    """Messages are sent faster than the rate allows; nothing was written: wait ``retry_after`` seconds, then try again."""

    retryable = True

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ChannelError(SendError):
    """A channel does not take what was asked of it, nothing was changed; see the subclass."""


class UnknownChannel(ChannelError, LookupError):
    """There is no channel of that name in the home: create it first."""


class DuplicateChannel(ChannelError):
    """A channel of that name is there already: take it with ``ensure``, or choose another name."""


class ChannelRefused(ChannelError):
    """The channel's state does not allow it: resume it, or ask its owner."""

    retryable = True


class NotParticipant(ChannelError):
    """The agent takes no part in the channel, or its role does not allow it: join first, or ask the owner."""


class Paused(SendError, RuntimeError):
    """The kill-switch is on: call ``resume()`` or unset ONCEWARD_DISABLED; nothing was lost."""

    retryable = True


class DeliveryError(OncewardError):
    """A transport could not hand a parcel over; see the subclass."""


class Unreachable(DeliveryError):
    """Nobody answered: the dispatcher tries again by itself."""

    retryable = True


class Refused(DeliveryError):
    """The peer will never take this parcel: look at the reason, then replay or discard the dead letters."""


class LeaseLost(OncewardError):
    """The lease ran out and somebody else owns the message: our writes were rolled back; do nothing."""


class RunAborted(LeaseLost):
    """The run was ended from outside, or its lease ran out: nothing more of it can be committed; return at once."""


class NoMailbox(OncewardError, LookupError):
    """No mailbox has this name or id, or it has expired: create it, or ask its owner; an id that was never there looks the same."""

    def __init__(
        self, message: str = "no such mailbox: it was never created, or it has expired"
    ) -> None:
        super().__init__(message)


class DuplicateMailbox(OncewardError):
    """A mailbox of this name is there already; nothing was changed: use ``ensure``, which takes what is there."""


class AnswerTimeout(OncewardError, TimeoutError):
    """No reply within the timeout: ask ``result(ticket)`` again later, a late reply is kept."""

    retryable = True


class RequestFailed(OncewardError):
    """The peer gave the request up: read the reason, then send a corrected request."""


class HandlerSignal(Exception):
    """What a handler raises to say how its message ends; never leaves the worker."""


class Retry(HandlerSignal):
    """Raise in a handler: try this message again after *after* seconds, by policy when None."""

    def __init__(
        self, reason: str = "retry asked by handler", *, after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.after = after


class Reject(HandlerSignal):
    """Raise in a handler: this message can never be handled; it becomes a dead letter with *reason*."""

    def __init__(self, reason: str = "rejected by handler") -> None:
        super().__init__(reason)


class Drop(HandlerSignal):
    """Raise in a handler: end the message without effects and without a dead letter; counted as dropped."""
