"""``onceward cancel``: end messages before they take effect, wherever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from onceward import Postbox
from onceward.message.record import Cancellation
from onceward.ops.cli.command import emit, picked
from onceward.ops.cli.durations import MaybeSpan
from onceward.ops.cli.exit_codes import CONFLICT, DONE, PARTLY, NothingThere, Usage
from onceward.ops.cli.options import OfType, Quiet, said
from onceward.ops.cli.output import note
from onceward.ops.cli.readonly import views
from onceward.ops.cli.stdin import confirm
from onceward.ops.cli.target import CONVERSATION, Conversation, open_box
from onceward.ops.cli.why import files_of, found_in
from onceward.ops.views.messages import message_ids, sent_message

COLUMNS: Final = ("id", "outcome", "state")
Ids = Annotated[str, said("Ids of messages, sent or received, or unique prefixes of ids.")]
Peer = Annotated[str | None, said("All messages that this agent sent to that one.")]
Sender = Annotated[
    str | None, said("All messages that this agent received from that one.", name="--from")
]
Key = Annotated[str | None, said("All messages with this idempotency key.")]
Reason = Annotated[str, said("Stored with the message, and reported to its sender.")]
Yes = Annotated[bool, Quiet, said("Do not ask before bulk work.")]


def cancel(
    *ids: Ids,
    to: Peer = None,
    sender: Sender = None,
    type: OfType = None,
    key: Key = None,
    reason: Reason = "",
    wait: Annotated[MaybeSpan, said("Wait this long for a recipient's answer.")] = None,
    yes: Yes = False,
    where: Conversation = CONVERSATION,
) -> int:
    """
    Cancel messages by id or by filter, and print the outcome of each.

    A message in this file ends at once, even while its handler runs: the handler's writes roll
    back. After a message has left, only its recipient can cancel it: it is asked, and --wait
    delivers the request and waits for the answer. Without --db, --agent and their variables ids are
    searched in all files of the home; a message ends in its recipient's file, if that has it.

    Columns: id, outcome (cancelled, asked, too_late), state. If all were too late, the exit code is
    5; if some were, it is 6.

    Example: onceward cancel 0199f0c2 --reason 'wrong amount' --wait 5s

    Example: onceward cancel --to billing --type invoice.created --yes
    """
    chosen = {"to": to, "sender": sender, "type": type, "session": where.session, "key": key}
    which = {name: value for name, value in chosen.items() if value is not None}
    if bool(ids) == bool(which):
        msg = "which messages? Give ids, or --to, --from, --type, --session or --key, not both"
        raise Usage(msg)
    if ids:
        return _tell(_by_id(ids, reason, wait, where), where)
    with open_box(where.path()) as box:
        if not yes:
            named = ", ".join(f"{name} {value}" for name, value in which.items())
            confirm(f"cancel all messages that have not ended with {named}", "say --yes")
        return _tell(_in_bulk(box, which, reason), where)


def _by_id(
    ids: tuple[str, ...], reason: str, wait: float | None, where: Conversation
) -> list[Cancellation]:
    files = files_of(where) or [where.path()]
    places = dict(_place(files, each) for each in ids)
    ended: dict[str, Cancellation] = {}
    for path in dict.fromkeys(places.values()):
        here = [message_id for message_id in places if places[message_id] == path]
        ended |= {each.id: each for each in _in_file(path, here, reason, wait)}
    return [ended[message_id] for message_id in places]


def _place(files: list[Path], prefix: str) -> tuple[str, Path]:
    """Return a message's whole id and its file: its recipient's, if that has it."""
    path, message_id = found_in(files, prefix)
    with views(path) as found:
        sent = sent_message(found, message_id)
    beside = path if sent is None else path.with_name(f"{sent.recipient}.db")
    if beside in files:
        with views(beside) as found:
            path = beside if message_ids(found, message_id) else path
    return message_id, path


def _in_file(path: Path, whole: list[str], reason: str, wait: float | None) -> list[Cancellation]:
    """Cancel messages of one file; with *wait*, deliver the requests and wait for the answers."""
    with open_box(path) as box:
        found = [box.cancel(each, reason=reason) for each in whole]
        if wait and any(each.outcome == "asked" for each in found):
            box.run_until_idle()  # the requests leave now, whether or not a relay runs
            found = [
                box.cancel(each.id, reason=reason, timeout=wait)
                if each.outcome == "asked" else each
                for each in found
            ]  # fmt: skip
    _note_asked([each.id for each in found if each.outcome == "asked"], box.agent, wait)
    return found


def _note_asked(asked: list[str], agent: str, wait: float | None) -> None:
    """Report on stderr what messages wait for whose recipients were asked."""
    if asked and wait:
        note(f"{len(asked)} not answered: a process of the recipient answers; cancel again later")
    elif asked:
        note(f"{len(asked)} asked: a relay or open postbox of {agent} delivers that; see --wait")


def _in_bulk(box: Postbox, which: dict[str, Any], reason: str) -> list[Cancellation]:
    found = box.cancel_all(**which, reason=reason)
    ended = [
        *(Cancellation(each, "cancelled", "cancelled") for each in found.cancelled),
        *(Cancellation(each, "asked", "sent") for each in found.asked),
        *(Cancellation(each, "too_late", "ended") for each in found.too_late),
    ]
    if not ended:
        raise NothingThere("no unended message matches")
    return ended


def _tell(found: list[Cancellation], where: Conversation) -> int:
    emit([picked(each, COLUMNS) for each in found], COLUMNS, where)
    late = sum(each.outcome == "too_late" for each in found)
    if not late:
        return DONE
    return CONFLICT if late == len(found) else PARTLY
