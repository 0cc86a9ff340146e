"""
Send tasks to other agents, and report the end of each one to the session that dispatched it.

The id of the task is its dispatch id: however it ends at its recipient, in a run, a handler or by
hand, the commit that ends it sends one ``worker_result``.
"""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send.add import Outbox
from onceward.errors import Conflict, InvalidMessage, TooLarge
from onceward.file.transaction import StoreTransaction
from onceward.message.frame import Frame
from onceward.message.ids import new_token
from onceward.message.options import MessageOptions, given_headers
from onceward.message.queue_modes import CALLER, WORKER_RESULT
from onceward.message.vocabulary import Dead, Done, Settlement

NAMES_CALLER: Final = f'"{CALLER}"'
"""Text in the frame of every dispatched task; a body may also have it."""


class HandledMessage(Protocol):
    """A message that a handler is handling, as its requests and its caller need it."""

    @property
    def seq(self) -> int:
        """Return its sequence in the inbox."""

    @property
    def sender(self) -> str:
        """Return the agent that sent it."""

    @property
    def id(self) -> str:
        """Return its id."""

    @property
    def session(self) -> str:
        """Return its conversation."""

    @property
    def frame(self) -> str:
        """Return its frame's text."""

    @property
    def intact(self) -> bool:
        """Return whether the frame is unchanged since it was accepted."""


class EndedRun(Protocol):
    """The run in which a task ended, as reported to its caller."""

    @property
    def id(self) -> str:
        """Return the id of the run."""

    @property
    def partial(self) -> str | None:
        """Return the partial result of the run, as JSON."""


def task(
    outbox: Outbox,
    caller: str,
    to: str,
    body: object,
    *,
    session: str | None,
    options: MessageOptions,
) -> OutgoingMessage:
    """
    Return a task for another agent, in a separate session; its id is the dispatch id.

    However the task ends there, one ``worker_result`` returns to the session *caller*.
    """
    spawned = f"{to}-{_session_token(to, options)}" if session is None else session
    headers: dict[str, Any] = {**given_headers(options), CALLER: caller}
    return outbox.compose(spawned, to, body, {**options, "headers": headers})


def _session_token(to: str, named: MessageOptions) -> str:
    """Return the name of a task's session; the same key or id gives the same one."""
    chosen = named.get("message_id")
    chosen = named.get("key") if chosen is None else chosen
    if chosen is None and (ids := named.get("ids")) is not None:
        chosen = ids(to, CALLER)
    if chosen is None:
        return new_token()[:12]
    return sha256(f"{to}\0{chosen}".encode(errors="surrogatepass")).hexdigest()[:12]


def task_of(handled: HandledMessage) -> Frame | None:
    """Return a message as a dispatched task; None if it is not one."""
    if NAMES_CALLER not in handled.frame or not handled.intact:
        return None
    try:
        frame = Frame.parse(handled.frame)
    except InvalidMessage:
        return None
    return frame if isinstance(frame.headers.get(CALLER), str) else None


def tell(
    tx: StoreTransaction,
    outbox: Outbox,
    handled: HandledMessage,
    end: TaskOutcome,
    run: EndedRun | None = None,
) -> None:
    """Send the caller of a dispatched task its result; skip other messages."""
    frame = task_of(handled)
    if frame is None:
        return
    try:
        message = _result(outbox, frame, end, run)
    except InvalidMessage:  # it names no agent to send the result to
        return
    with suppress(Conflict):  # already sent: a replayed dead letter ends a second time
        outbox.add(tx, message)


def _result(
    outbox: Outbox, frame: Frame, end: TaskOutcome, run: EndedRun | None
) -> OutgoingMessage:
    caller = str(frame.headers[CALLER])
    body: dict[str, Any] = {
        "dispatch_id": frame.id,
        "session": frame.session,
        "outcome": end.outcome,
        "error": end.error,
    }
    body["run_id"] = None if run is None else run.id
    told = {
        "result": _plain(end.result),
        "partial": _plain(None if run is None else run.partial),
    }
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
    outbox.composer.allow_recipient(to)
    try:
        return outbox.compose(caller, to, body | told, options)
    except TooLarge:
        return outbox.compose(
            caller, to, body | {"result": None, "partial": None, "truncated": True}, options
        )


def _plain(text: str | None) -> Any:
    return None if text is None else json.loads(text)


class TaskOutcome(NamedTuple):
    """The end of a task, as reported to its caller."""

    outcome: str
    """done, failed, aborted, dropped, expired, cancelled, refused or undelivered."""
    error: str | None = None
    result: str | None = None


def outcome_of(settlement: Settlement, result: str | None = None) -> TaskOutcome:
    """Return the outcome of a settlement for the caller of a task."""
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
