"""``onceward dead``: messages that ended badly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from cyclopts import Parameter

from onceward import Postbox
from onceward.cli import queries
from onceward.cli.choice import (
    EVERYTHING,
    Choice,
    Origin,
    Outcome,
    by_id,
    confirm,
    died_before,
    in_bulk,
    of_topic,
)
from onceward.cli.durations import MaybeSpan
from onceward.cli.exit_codes import DONE, Usage
from onceward.cli.output import dated, document, show_one
from onceward.cli.output import show as show_rows
from onceward.cli.readonly import views, whole_id
from onceward.cli.show import without_nothing
from onceward.cli.target import Conversation, Quiet, Where, open_box

WHERE = Where()
CONVERSATION = Conversation()
CHOICE = Choice()
COLUMNS: Final = (
    "id",
    "origin",
    "sender",
    "recipient",
    "type",
    "reason",
    "attempts",
    "dead_at",
    "last_error",
)
Ids = Annotated[str, Parameter(allow_leading_hyphen=True)]


def ls(
    *,
    reason: str | None = None,
    peer: str | None = None,
    type: str | None = None,
    topic: str | None = None,
    origin: Origin | None = None,
    older_than: MaybeSpan = None,
    limit: int = 100,
    where: Conversation = CONVERSATION,
) -> int:
    """
    List dead letters, oldest first.

    Columns: id, origin, sender, recipient, type, reason, attempts, dead, last_error.

    Args:
        reason: Only those that died for this reason: max_retries_exceeded, expired, rejected, unhandled, ...
        peer: Only those to or from this agent.
        type: Only those of this message type.
        topic: Only those of this topic, which may be a pattern such as build.#.
        origin: Only those of this origin: outbox (we sent it), inbox (we received it), queue (it waited for a run).
        older_than: Only those that died longer ago than this span.
        limit: At most so many lines.
        where: Whose file, which session.

    """
    with views(where.path()) as found:
        named = {
            "reason": reason,
            "peer": peer,
            "origin": origin,
            "type": type,
            "session": where.session,
        }
        letters = found.ask(queries.DEAD, **named, before=died_before(older_than), limit=EVERYTHING)
    rows = [row for row in letters if of_topic(row["topic"], topic)]
    show_rows(rows[:limit] if limit >= 0 else rows, COLUMNS, where.style)
    return DONE


def show(id: str, /, *, where: Where = WHERE) -> int:
    """
    Show a dead letter whole, with its frame.

    Args:
        id: Its id, or a beginning of it that no other dead letter has.
        where: Whose file.

    """
    with views(where.path()) as found:
        message_id = whole_id(found, queries.DEAD_IDS, id)
        rows = [without_nothing(row) for row in found.ask(queries.DEAD_ONE, id=message_id)]
    if where.json:
        document({"id": message_id, "rows": [dated(row) for row in rows]})
        return DONE
    for row in rows:
        show_one(row, where.style)
    return DONE


def replay(
    *ids: Ids,
    as_new: Annotated[bool, Quiet] = False,
    rate: float | None = None,
    choice: Choice = CHOICE,
    where: Conversation = CONVERSATION,
) -> int:
    """
    Put dead letters back on their way and print their ids.

    With its own id a message takes effect once, also if it had been processed after all. Some done, some not is exit code 6.

    Args:
        ids: Ids of dead letters, or unique beginnings; a dash reads them from stdin.
        as_new: Send the body of an outgoing one under a new id, which is printed instead.
        rate: In bulk, let at most so many outgoing ones leave in a second.
        choice: Which, in bulk.
        where: Whose file, which session.

    """

    def one(box: Postbox, message_id: str) -> str:
        return box.dead_letters.replay(message_id, as_new=as_new)

    def bulk(box: Postbox, which: dict[str, Any]) -> Outcome:
        replays = box.dead_letters.replay_all(as_new=as_new, rate=rate, **which)
        return Outcome(replays.done, replays.failed)

    return _settle("replay", ids, choice, where, (one, bulk))


def discard(*ids: Ids, choice: Choice = CHOICE, where: Conversation = CONVERSATION) -> int:
    """
    Forget dead letters and print their ids; what is forgotten cannot be replayed.

    Args:
        ids: Ids of dead letters, or unique beginnings; a dash reads them from stdin.
        choice: Which, in bulk.
        where: Whose file, which session.

    """
    return _settle("discard", ids, choice, where, (_forget, _forget_all))


def purge(
    *, older_than: MaybeSpan = None, choice: Choice = CHOICE, where: Conversation = CONVERSATION
) -> int:
    """
    Forget the dead letters that died long ago, and print their ids.

    Args:
        older_than: Only those that died longer ago than this span.
        choice: Which, in bulk.
        where: Whose file, which session.

    """
    if older_than is None and not choice.in_bulk:
        msg = "which dead letters? Give --older-than SPAN, --reason, --peer, --topic, --origin or --all"
        raise Usage(msg)
    return _in_bulk("purge", choice, where, _forget_all, older_than)


One = Callable[[Postbox, str], str]
Bulk = Callable[[Postbox, dict[str, Any]], Outcome]


def _settle(
    verb: str, ids: tuple[str, ...], choice: Choice, where: Conversation, work: tuple[One, Bulk]
) -> int:
    if bool(ids) == choice.in_bulk:
        msg = f"which dead letters? Give ids to {verb}, or --all, --reason, --peer, --topic or --origin, not both"
        raise Usage(msg)
    if not ids:
        return _in_bulk(verb, choice, where, work[1])
    with views(where.path()) as found:
        chosen, outcome = by_id(found, ids)
    if choice.dry_run:
        outcome.done.extend(chosen)
    elif chosen:
        with open_box(where.path()) as box:
            for message_id in chosen:
                outcome.attempt(message_id, lambda i=message_id: work[0](box, i))  # type: ignore[misc]
    return outcome.tell(choice, where)


def _in_bulk(
    verb: str, choice: Choice, where: Conversation, work: Bulk, older_than: float | None = None
) -> int:
    with views(where.path()) as found:
        chosen = in_bulk(found, choice, where.session, older_than)
    confirm(verb, chosen, choice)
    if choice.dry_run:
        return Outcome(chosen).tell(choice, where)
    with open_box(where.path()) as box:
        return work(box, choice.which(where.session, older_than)).tell(choice, where)


def _forget(box: Postbox, message_id: str) -> str:
    box.dead_letters.discard(message_id)
    return message_id


def _forget_all(box: Postbox, which: dict[str, Any]) -> Outcome:
    return Outcome(box.dead_letters.discard_all(**which))
