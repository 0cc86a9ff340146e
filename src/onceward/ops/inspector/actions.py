"""Define the changes that a reader with ``--write`` may make, each a call of the public library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from onceward import Postbox
from onceward.errors import InvalidArgument, OncewardError
from onceward.file.read_only import FileReader
from onceward.ops.inspector.limit_form import limit_fields, paused_type, save_limit, type_fields
from onceward.ops.inspector.schedule_form import save, schedule_fields
from onceward.ops.typed_body import typed_body
from onceward.ops.views.expected import ReplyField

MOST: Final = 1000
"""Dead letters that one action replays or discards."""
UNCHANGED: Final = "nothing changed: it was already so, or no longer exists"
FILTERS: Final = ("reason", "peer", "type", "session", "topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The objects that a reader wants to change."""

    ids: tuple[str, ...] = ()
    """Messages, runs, peers, sessions or schedules."""
    which: Mapping[str, str] = field(default_factory=dict)
    """The conditions of an action on all dead letters that meet them."""
    body: str = ""
    """The answer to a request."""
    session: str = ""
    """The session of a run."""

    @property
    def id(self) -> str:
        """Return the only id."""
        return self.ids[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an action in one file."""

    told: str
    ids: tuple[str, ...] = ()
    """The ids that it changed."""
    done: int = 1


Run = Callable[[Postbox, Given], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One kind of change."""

    title: str
    short: str
    """The label of its button on a page."""
    meaning: str
    """Its effect, as the reader confirms it."""
    run: Run
    """Makes the change and returns its outcome."""
    undo: str = ""
    """The action that undoes it; empty if there is none."""
    undone: str = "There is no undo."
    """How it is undone."""
    needs_id: bool = False
    several: bool = False
    """Whether it applies to several messages at once."""
    back: str = ""
    """Page that shows the outcome: the agent's, or that of a message or a session."""
    asks: str = ""
    """The label of its form's text; empty if it has none."""
    form: Callable[[FileReader, str], tuple[ReplyField, ...]] | None = None
    """Returns the fields of its form, for the id of its object or an empty one."""
    of_reply: bool = False
    """Whether that text answers a request, which may say which fields it expects."""
    in_bulk: bool = False
    of_session: bool = False
    """Whether its object is in a session, which the address may name for the link back."""
    destroys: bool = False

    @property
    def has_fields(self) -> bool:
        """Whether its form has fields in place of one text."""
        return self.form is not None or self.of_reply


def _each(work: Callable[[Postbox, str], Outcome]) -> Run:
    """Return a function that applies *work* to each id; a failure does not stop the others."""

    def run(box: Postbox, given: Given) -> Outcome:
        done: list[tuple[str, Outcome]] = []
        errors: list[OncewardError] = []
        for one in given.ids:
            try:
                done.append((one, work(box, one)))
            except OncewardError as error:  # it no longer exists, or has expired
                errors.append(error)
        if errors and not done:
            raise errors[0]
        changed = tuple(one for one, found in done if found.done)
        if len(given.ids) == 1:
            return Outcome(done[0][1].told, changed, len(changed))
        lost = f"; {errors[0]}" if errors else ""
        return Outcome(f"{len(changed):,} of {len(given.ids):,}{lost}", changed, len(changed))

    return run


def _pause(box: Postbox, _: Given) -> Outcome:
    box.file.pause()
    return Outcome("paused: this file sends and handles no message until it is resumed")


def _resume(box: Postbox, _: Given) -> Outcome:
    box.file.resume()
    return Outcome("resumed")


def _reset(box: Postbox, peer: str) -> Outcome:
    box.peers.reset(peer)
    return Outcome(f"the breaker of {peer} is closed: the peer is tried again at once")


def _cancel(box: Postbox, message_id: str) -> Outcome:
    found = box.cancel(message_id)
    match found.outcome:
        case "cancelled":
            return Outcome("cancelled: it takes no effect")
        case "asked":
            return Outcome("asked: it has left, and its recipient decides")
    return Outcome(f"too late: it is {found.state}", done=0)


def _answer(box: Postbox, given: Given) -> Outcome:
    found = box.receive_one(given.id)
    if found is None:
        return Outcome("not answered: a reader or handler has it, or it has ended", done=0)
    with found, box.begin():
        reply_id = found.reply(typed_body(given.body))
        found.ack()
    return Outcome(f"answered by {reply_id}")


def _replay(box: Postbox, message_id: str) -> Outcome:
    replayed = box.dead_letters.replay(message_id)
    return Outcome(f"message {replayed} waits to be sent or handled again")


def _edit(box: Postbox, given: Given) -> Outcome:
    if not given.body.strip():
        raise InvalidArgument("the corrected body is missing: write it, or null for none")
    box.dead_letters.edit(given.id, typed_body(given.body))
    return Outcome("its body is replaced: replay it now")


def _discard(box: Postbox, message_id: str) -> Outcome:
    done = box.dead_letters.discard(message_id)
    return Outcome("discarded") if done else Outcome("it no longer existed", done=0)


def _replay_all(box: Postbox, given: Given) -> Outcome:
    found = box.dead_letters.replay_all(limit=MOST, **_which(given))
    failed = f", {len(found.failed)} could not be" if found.failed else ""
    ids = tuple(found.done)
    return Outcome(f"{len(ids)} dead letters replayed{failed}", ids, len(ids))


def _discard_all(box: Postbox, given: Given) -> Outcome:
    gone = box.dead_letters.discard_all(limit=MOST, **_which(given))
    return Outcome(f"{len(gone)} dead letters discarded", done=len(gone))


def _pause_queue(box: Postbox, session: str) -> Outcome:
    box.runs.pause(session)
    return Outcome(f"session {session} is paused: an open run continues, no further one starts")


def _resume_queue(box: Postbox, session: str) -> Outcome:
    box.runs.resume(session)
    return Outcome(f"session {session} is resumed")


def _pause_schedule(box: Postbox, schedule: str) -> Outcome:
    done = box.schedules.pause(schedule)
    return Outcome("paused: it sends no messages") if done else Outcome(UNCHANGED, done=0)


def _resume_schedule(box: Postbox, schedule: str) -> Outcome:
    done = box.schedules.resume(schedule)
    return Outcome("resumed") if done else Outcome(UNCHANGED, done=0)


def _run_schedule(box: Postbox, schedule: str) -> Outcome:
    return Outcome(f"message {box.schedules.run_now(schedule)} is sent in addition to its dates")


def _add_schedule(box: Postbox, given: Given) -> Outcome:
    return Outcome(f"added; its next dates: {save(box, None, given.body)}")


def _edit_schedule(box: Postbox, given: Given) -> Outcome:
    return Outcome(f"changed; its next dates: {save(box, given.id, given.body)}")


def _limit(box: Postbox, given: Given) -> Outcome:
    name, told = save_limit(box, given.id if given.ids else None, given.body)
    return Outcome(f"{name}: {told}")


def _unlimit(box: Postbox, name: str) -> Outcome:
    done = box.limits.remove("handler", name)
    return Outcome(f"{name} runs as declared") if done else Outcome(UNCHANGED, done=0)


def _pause_type(box: Postbox, given: Given) -> Outcome:
    name = given.id if given.ids else paused_type(given.body)
    box.file.pause(type=name)
    return Outcome(f"{name} is paused: its messages wait", (name,))


def _resume_type(box: Postbox, name: str) -> Outcome:
    done = box.file.resume(type=name)
    return Outcome(f"{name} is resumed") if done else Outcome(UNCHANGED, done=0)


def _abort(box: Postbox, run: str) -> Outcome:
    done = box.runs.abort(run, "aborted in the inspector")
    return Outcome("aborted") if done else Outcome("not aborted: it was not open", done=0)


def _which(given: Given) -> Any:
    return {name: given.which[name] for name in FILTERS if given.which.get(name)}


CANCELS: Final = (
    "Undo cancels those that still wait: they end as cancelled, not as dead letters again."
)
ACTIONS: Final = {
    "pause": Action(
        title="Pause the agent", short="Pause", run=_pause,
        meaning="Every process stops sending and handling.",
        undo="resume", undone="Undo resumes it.",
    ),
    "resume": Action(
        title="Resume the agent", short="Resume", run=_resume,
        meaning="Every process sends and handles again.",
        undo="pause", undone="Undo pauses it again.",
    ),
    "reset": Action(
        title="Reset a breaker", short="Try again now", run=_each(_reset), needs_id=True,
        meaning="The peer is tried again at once.",
        undone="No undo is needed: the breaker opens again if the peer still fails.",
    ),
    "cancel": Action(
        title="Cancel a message", short="Cancel", run=_each(_cancel),
        meaning="It takes no effect if it has had none yet; its lane goes on. "
        "Only its recipient can cancel a message that has left.",
        needs_id=True, several=True, back="message", destroys=True,
    ),
    "answer": Action(
        title="Answer a request", short="Answer", run=_answer,
        meaning="The answer is sent, and the request ends, in one commit.",
        needs_id=True, back="message", asks="The answer, as JSON or plain text", of_reply=True,
    ),
    "edit": Action(
        title="Edit a dead letter", short="Edit", run=_edit,
        meaning="Its body is replaced, so that a replay can succeed. The message keeps each "
        "earlier body. No model checks the new one here: onceward dead edit --handlers does.",
        undone="There is no undo, but it can be edited again.",
        needs_id=True, back="message", asks="The corrected body, as JSON or plain text",
    ),
    "replay": Action(
        title="Replay a dead letter", short="Replay", run=_each(_replay),
        meaning="It is sent or handled again under its own id.",
        undo="cancel", undone=CANCELS, needs_id=True, several=True, back="message",
    ),
    "discard": Action(
        title="Discard a dead letter", short="Discard", run=_each(_discard),
        meaning="It is deleted and cannot be replayed.",
        needs_id=True, several=True, back="dead", destroys=True,
    ),
    "replay-all": Action(
        title="Replay dead letters", short="Replay", run=_replay_all,
        meaning=f"The oldest that match, at most {MOST:,}, are replayed.",
        undo="cancel", undone=CANCELS, back="dead", in_bulk=True,
    ),
    "discard-all": Action(
        title="Discard dead letters", short="Discard", run=_discard_all,
        meaning=f"The oldest that match, at most {MOST:,}, are discarded.",
        back="dead", in_bulk=True, destroys=True,
    ),
    "pause-queue": Action(
        title="Pause a session", short="Pause", run=_each(_pause_queue), needs_id=True,
        meaning="An open run continues; no further one starts.", back="sessions",
        undo="resume-queue", undone="Undo resumes it.",
    ),
    "resume-queue": Action(
        title="Resume a session", short="Resume", run=_each(_resume_queue), needs_id=True,
        meaning="Its next run may start.", back="sessions",
        undo="pause-queue", undone="Undo pauses it again.",
    ),
    "pause-schedule": Action(
        title="Pause a schedule", short="Pause the schedule", run=_each(_pause_schedule),
        meaning="It sends no messages.", needs_id=True, back="schedules",
        undo="resume-schedule", undone="Undo resumes it with its next date.",
    ),
    "resume-schedule": Action(
        title="Resume a schedule", short="Resume", run=_each(_resume_schedule), needs_id=True,
        meaning="It continues with its next date; dates of the pause are skipped.",
        back="schedules", undo="pause-schedule", undone="Undo pauses it again.",
    ),
    "run-schedule": Action(
        title="Run a schedule now", short="Run now", run=_each(_run_schedule), needs_id=True,
        meaning="Its message is sent now, in addition to its dates.", back="schedules",
    ),
    "add-schedule": Action(
        title="Add a schedule", short="Add a schedule", run=_add_schedule, form=schedule_fields,
        meaning="It sends a message at each of its dates, while a process has the file open.",
        asks="Its fields", undone="It can be paused, or removed by onceward schedules remove.",
    ),
    "edit-schedule": Action(
        title="Edit a schedule", short="Edit", run=_edit_schedule, form=schedule_fields,
        meaning="Sent dates and a pause stay. What an agent's code declares is changed there.",
        asks="Its fields", undone="It can be edited again.", needs_id=True, back="schedules",
    ),
    "limit-handler": Action(
        title="Limit a handler", short="Limit", run=_limit, form=limit_fields,
        meaning="It takes the place of the declared limit in all processes, until it is removed.",
        asks="Its fields", undone="It can be set again, or removed.",
    ),
    "edit-limit": Action(
        title="Change the limit of a handler", short="Change", run=_limit, form=limit_fields,
        meaning="It takes the place of the declared limit in all processes, until it is removed.",
        asks="Its fields", undone="It can be set again, or removed.", needs_id=True,
    ),
    "unlimit-handler": Action(
        title="Remove the limit of a handler", short="Remove", run=_each(_unlimit), needs_id=True,
        meaning="The limits that the code declares hold again.",
        undone="There is no undo, but it can be set again.",
    ),
    "pause-type": Action(
        title="Pause a type", short="Pause the type", run=_pause_type, form=type_fields,
        meaning="No handler is called for its messages; those behind them in their lanes wait, "
        "too.",
        asks="The type", undo="resume-type", undone="Undo resumes it.",
    ),
    "resume-type": Action(
        title="Resume a type", short="Resume", run=_each(_resume_type), needs_id=True,
        meaning="Its messages are handled again.", undone="It can be paused again.",
    ),
    "abort": Action(
        title="Abort a run", short="Abort", run=_each(_abort), needs_id=True, destroys=True,
        meaning="Later writes of its call are not kept.",
        back="sessions", of_session=True,
    ),
}  # fmt: skip
"""By their name in an address."""


def perform(path: Path, action: Action, given: Given) -> Outcome:
    """
    Make a change and return its outcome.

    Raises:
        OncewardError: nothing was changed, unless the error says otherwise.

    """
    with Postbox(path, start=False) as box:
        return action.run(box, given)
