"""Dispatched tasks and the ``worker_result`` that their caller gets."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

from onceward.core.handle.inbox import LeasedMessage
from onceward.core.send.outbox import OutgoingMessage
from onceward.core.send.sender import Sender
from onceward.errors import Conflict, InvalidMessage, TooLarge
from onceward.file.transaction import StoreTransaction
from onceward.message.frame import Frame
from onceward.message.ids import new_token
from onceward.message.queue_modes import CALLER, WORKER_RESULT
from onceward.message.send_options import MessageOptions, SendOptions, parse_options
from onceward.message.states import Dead, Done, Settlement

NAMES_CALLER: Final = f'"{CALLER}"'
"""Text of the frame of every dispatched task; a body may have it, too."""


class EndedRun(Protocol):
    """The run that a task ended in, as far as its caller is told of it."""

    @property
    def id(self) -> str:
        """Return the id of the run."""

    @property
    def partial(self) -> str | None:
        """Return what the run had done so far, as JSON."""


def task(
    sender: Sender, caller: str, to: str, body: object, *, session: str | None, options: SendOptions
) -> OutgoingMessage:
    """
    Return a task for another agent, in a session of its own; its id is the dispatch id.

    However the task ends there, a ``worker_result`` comes back into the session *caller*, once.
    """
    named = parse_options(options)
    spawned = session or f"{to}-{_session_token(to, named)}"
    headers: dict[str, Any] = dict(named.get("headers") or {}) | {CALLER: caller}
    return sender.compose(spawned, to, body, {**named, "headers": headers})


def _session_token(to: str, named: MessageOptions) -> str:
    """Return the name of a task's session; the same key or id gives the same one."""
    chosen = named.get("message_id") or named.get("key")
    return sha256(f"{to}\0{chosen}".encode()).hexdigest()[:12] if chosen else new_token()[:12]


def task_of(leased: LeasedMessage) -> Frame | None:
    """Return the dispatched task that a message is, None for all others."""
    if NAMES_CALLER not in leased.frame or not leased.intact:
        return None
    try:
        frame = Frame.parse(leased.frame)
    except InvalidMessage:
        return None
    return frame if isinstance(frame.headers.get(CALLER), str) else None


def tell(
    tx: StoreTransaction,
    sender: Sender,
    leased: LeasedMessage,
    end: TaskOutcome,
    run: EndedRun | None = None,
) -> None:
    """Send the caller of a dispatched task its result; do nothing for other messages."""
    frame = task_of(leased)
    if frame is None:
        return
    try:
        message = _result(sender, frame, end, run)
    except InvalidMessage:  # it names no agent that could be told
        return
    with suppress(Conflict):  # told before: a replayed dead letter ends a second time
        sender.add(tx, message)


def _result(
    sender: Sender, frame: Frame, end: TaskOutcome, run: EndedRun | None
) -> OutgoingMessage:
    caller = str(frame.headers[CALLER])
    body: dict[str, Any] = {
        "dispatch_id": frame.id,
        "session": frame.session,
        "outcome": end.outcome,
        "error": end.error,
    }
    body["run_id"] = None if run is None else run.id
    told = {"result": _plain(end.result), "partial": _plain(None if run is None else run.partial)}
    options = MessageOptions(
        type=WORKER_RESULT,
        key=f"{WORKER_RESULT}:{frame.id}",
        in_reply_to=frame.id,
        causation_id=frame.id,
        hops=frame.hops + 1,
        correlation_id=frame.correlationid,
        headers={"dispatchid": frame.id, "spawnedsession": frame.session},
    )
    to = frame.replyto or frame.sender
    sender.allow_recipient(to)
    try:
        return sender.compose(caller, to, body | told, options)
    except TooLarge:
        return sender.compose(
            caller, to, body | {"result": None, "partial": None, "truncated": True}, options
        )


def _plain(text: str | None) -> Any:
    return None if text is None else json.loads(text)


class TaskOutcome(NamedTuple):
    """How a task ended, as its caller is told."""

    outcome: str
    """done, failed, aborted, dropped, expired, refused or undelivered."""
    error: str | None = None
    result: str | None = None


def outcome_of(settlement: Settlement, result: str | None = None) -> TaskOutcome:
    """Return what a settlement means for the caller of a task."""
    match settlement:
        case Dead(reason="overflow", error=error):
            return TaskOutcome("refused", error)
        case Dead(reason=reason, error=error):
            return TaskOutcome("failed", f"{reason}: {error}")
        case Done(outcome="processed"):
            return TaskOutcome("done", None, result)
        case Done(outcome=outcome):
            return TaskOutcome(outcome)
    return TaskOutcome("aborted")
