"""``onceward dead``: messages that ended badly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from cyclopts import Parameter

from onceward import Postbox
from onceward.cli import queries
from onceward.cli.choice import Choice, Outcome, by_id, confirm, in_bulk
from onceward.cli.codes import DONE, Usage
from onceward.cli.look import views, whole_id
from onceward.cli.paint import dated, document, show_one
from onceward.cli.paint import show as show_rows
from onceward.cli.place import Conversation, Quiet, Where, open_box
from onceward.cli.show import without_nothing
from onceward.cli.spans import MaybeSpan

WHERE = Where()
CONVERSATION = Conversation()
CHOICE = Choice()
COLUMNS: Final = ("id", "origin", "sender", "recipient", "type", "reason", "attempts", "dead_at", "last_error")
BATCH: Final = 200
Ids = Annotated[str, Parameter(allow_leading_hyphen=True)]


def ls(*, reason: str | None = None, peer: str | None = None, limit: int = 100, where: Conversation = CONVERSATION) -> int:
    """
    List dead letters, oldest first.

    Columns: id, origin, sender, recipient, type, reason, attempts, dead, last_error.

    Args:
        reason: Only those that died for this reason: max_retries_exceeded, expired, rejected, unhandled, ...
        peer: Only those to or from this agent.
        limit: At most so many lines.
        where: Whose file, which session.

    """
    with views(where.path()) as found:
        rows = found.ask(queries.DEAD, reason=reason, peer=peer, session=where.session, before=None, limit=limit)
    show_rows(rows, COLUMNS, where.style)
    return DONE


def show(id: str, /, *, where: Where = WHERE) -> int:  # noqa: A002 - the wire's word
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


def replay(*ids: Ids, as_new: Annotated[bool, Quiet] = False, choice: Choice = CHOICE, where: Conversation = CONVERSATION) -> int:
    """
    Put dead letters back on their way and print their ids.

    With its own id a message takes effect once, also if it had been processed after all. Some done, some not is exit code 6.

    Args:
        ids: Ids of dead letters, or unique beginnings; a dash reads them from stdin.
        as_new: Send the body of an outgoing one under a new id, which is printed instead.
        choice: Which, in bulk.
        where: Whose file, which session.

    """

    def work(box: Postbox, chosen: list[str], outcome: Outcome) -> None:
        for message_id in chosen:
            outcome.attempt(message_id, lambda i=message_id: box.dead_letters.replay(i, as_new=as_new))  # type: ignore[misc]

    return _settle("replay", ids, choice, where, work)


def discard(*ids: Ids, choice: Choice = CHOICE, where: Conversation = CONVERSATION) -> int:
    """
    Forget dead letters and print their ids; what is forgotten cannot be replayed.

    Args:
        ids: Ids of dead letters, or unique beginnings; a dash reads them from stdin.
        choice: Which, in bulk.
        where: Whose file, which session.

    """
    return _settle("discard", ids, choice, where, _forget)


def purge(*, older_than: MaybeSpan = None, choice: Choice = CHOICE, where: Conversation = CONVERSATION) -> int:
    """
    Forget the dead letters that died long ago, and print their ids.

    Args:
        older_than: Only those that died longer ago than this span.
        choice: Which, in bulk.
        where: Whose file, which session.

    """
    if older_than is None and not choice.in_bulk:
        msg = "which dead letters? Give --older-than SPAN, --reason, --peer or --all"
        raise Usage(msg)
    path = where.path()
    with views(path) as found:
        chosen = in_bulk(found, choice, where.session, older_than)
    confirm("purge", chosen, choice)
    return _carry_out(chosen, Outcome(), choice, where, _forget)


Work = Callable[[Postbox, list[str], Outcome], None]


def _settle(verb: str, ids: tuple[str, ...], choice: Choice, where: Conversation, work: Work) -> int:
    if bool(ids) == choice.in_bulk:
        msg = f"which dead letters? Give ids to {verb}, or --all, --reason or --peer, not both"
        raise Usage(msg)
    with views(where.path()) as found:
        chosen, outcome = by_id(found, ids) if ids else (in_bulk(found, choice, where.session), Outcome())
    if not ids:
        confirm(verb, chosen, choice)
    return _carry_out(chosen, outcome, choice, where, work)


def _carry_out(chosen: list[str], outcome: Outcome, choice: Choice, where: Conversation, work: Work) -> int:
    if choice.dry_run:
        outcome.done.extend(chosen)
    elif chosen:
        with open_box(where.path()) as box:
            work(box, chosen, outcome)
    return outcome.tell(choice, where)


def _forget(box: Postbox, chosen: list[str], outcome: Outcome) -> None:
    for batch in (chosen[at : at + BATCH] for at in range(0, len(chosen), BATCH)):
        with box.begin():
            gone = [message_id for message_id in batch if box.dead_letters.discard(message_id)]
        outcome.done.extend(gone)
