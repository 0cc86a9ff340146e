"""The changes that a reader with ``--write`` may make, each a call of the public library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from onceward import Postbox

MOST: Final = 1000
"""Dead letters that one action replays or discards."""
UNCHANGED: Final = "nothing changed: it is so already, or is gone"
FILTERS: Final = ("reason", "peer", "type", "session", "topic")

Given = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of change."""

    title: str
    meaning: str
    """Its effect, as the reader confirms it."""
    run: Callable[[Postbox, Given], str]
    """Makes the change and returns the outcome in words."""
    needs_id: bool = False
    back: str = ""
    """Page of the agent that shows the outcome: its own, or that of a message or a session."""
    asks: str = ""
    """The label of the text of its form; empty where it has none."""
    in_bulk: bool = False
    of_session: bool = False
    """Whether its id is of something in a session, which the address may name for the way back."""
    destroys: bool = False


def _pause(box: Postbox, _: Given) -> str:
    box.file.pause()
    return "paused: nothing is sent or handled from this file until it is resumed"


def _resume(box: Postbox, _: Given) -> str:
    box.file.resume()
    return "resumed"


def _reset(box: Postbox, given: Given) -> str:
    box.peers.reset(given["id"])
    return f"the breaker of {given['id']} is closed: it is tried again at once"


def _cancel(box: Postbox, given: Given) -> str:
    found = box.cancel(given["id"])
    match found.outcome:
        case "cancelled":
            return "cancelled: it takes no effect"
        case "asked":
            return "asked: it has left, and its recipient decides"
    return f"too late: it is {found.state}"


def _answer(box: Postbox, given: Given) -> str:
    found = box.receive(message_id=given["id"])
    if found is None:
        return "not answered: a reader or handler has it, or it has ended"
    with found, box.begin():
        reply_id = found.reply(_parsed(given.get("body", "")))
        found.ack()
    return f"answered by {reply_id}"


def _parsed(text: str) -> Any:
    """Return JSON as its value, and any other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _replay(box: Postbox, given: Given) -> str:
    return f"message {box.dead_letters.replay(given['id'])} waits to be sent or handled again"


def _discard(box: Postbox, given: Given) -> str:
    return "discarded" if box.dead_letters.discard(given["id"]) else "it was gone already"


def _replay_all(box: Postbox, given: Given) -> str:
    found = box.dead_letters.replay_all(limit=MOST, **_which(given))
    failed = f", {len(found.failed)} could not be" if found.failed else ""
    return f"{len(found.done)} dead letters replayed{failed}"


def _discard_all(box: Postbox, given: Given) -> str:
    return (
        f"{len(box.dead_letters.discard_all(limit=MOST, **_which(given)))} dead letters discarded"
    )


def _pause_queue(box: Postbox, given: Given) -> str:
    box.sessions.pause(given["id"])
    return f"session {given['id']} is paused: an open run goes on, no further one begins"


def _resume_queue(box: Postbox, given: Given) -> str:
    box.sessions.resume(given["id"])
    return f"session {given['id']} is resumed"


def _pause_schedule(box: Postbox, given: Given) -> str:
    done = box.schedules.pause(given["id"])
    return "paused: nothing is sent at its dates" if done else UNCHANGED


def _resume_schedule(box: Postbox, given: Given) -> str:
    return "resumed" if box.schedules.resume(given["id"]) else UNCHANGED


def _run_schedule(box: Postbox, given: Given) -> str:
    return f"message {box.schedules.run_now(given['id'])} is sent beside its dates"


def _abort(box: Postbox, given: Given) -> str:
    done = box.sessions.abort(given["id"], "aborted in the inspector")
    return "aborted" if done else "not aborted: it was not open"


def _which(given: Given) -> Any:
    return {name: given[name] for name in FILTERS if given.get(name)}


ACTIONS: Final = {
    "pause": Action("Pause the agent", "Every process stops to send and to handle.", _pause),
    "resume": Action("Resume the agent", "Every process goes on.", _resume),
    "reset": Action(
        "Reset a breaker", "The peer is tried again at once.", _reset, needs_id=True
    ),
    "cancel": Action(
        "Cancel a message",
        "It takes no effect, if it has had none; one that has left is its recipient's to cancel.",
        _cancel,
        needs_id=True, back="message", destroys=True,
    ),
    "answer": Action(
        "Answer a request", "The answer is sent, and the request ends, in one commit.", _answer,
        needs_id=True, back="message", asks="The answer, as JSON or plain text",
    ),
    "replay": Action(
        "Replay a dead letter", "It is sent, or handled, again under its own id.", _replay,
        needs_id=True, back="message",
    ),
    "discard": Action(
        "Discard a dead letter", "It is gone then and cannot be replayed.", _discard,
        needs_id=True, back="dead", destroys=True,
    ),
    "replay-all": Action(
        "Replay dead letters", f"The oldest that match, at most {MOST:,}, go again.", _replay_all,
        back="dead", in_bulk=True,
    ),
    "discard-all": Action(
        "Discard dead letters", f"The oldest that match, at most {MOST:,}, go.",
        _discard_all, back="dead", in_bulk=True, destroys=True,
    ),
    "pause-queue": Action(
        "Pause a session", "An open run goes on; no further one begins.", _pause_queue,
        needs_id=True, back="sessions",
    ),
    "resume-queue": Action(
        "Resume a session", "Its next run may begin.", _resume_queue,
        needs_id=True, back="sessions",
    ),
    "pause-schedule": Action(
        "Pause a schedule", "Nothing is sent at its dates.", _pause_schedule,
        needs_id=True, back="schedules",
    ),
    "resume-schedule": Action(
        "Resume a schedule", "It continues with its next date; dates of the pause are skipped.",
        _resume_schedule, needs_id=True, back="schedules",
    ),
    "run-schedule": Action(
        "Run a schedule now", "Its message is sent at once, beside its dates.", _run_schedule,
        needs_id=True, back="schedules",
    ),
    "abort": Action(
        "Abort a run", "What its call writes after this is not kept.", _abort,
        needs_id=True, back="sessions", of_session=True, destroys=True,
    ),
}  # fmt: skip
"""By the word in their address."""


def perform(path: Path, action: Action, given: Given) -> str:
    """
    Make a change and return its outcome in words.

    Raises:
        OncewardError: nothing was changed, or as the error says.

    """
    with Postbox(path, start=False) as box:
        return action.run(box, given)
