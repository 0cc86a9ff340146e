"""``onceward dead``: list, replay and discard dead letters; ``onceward show`` shows one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from onceward import Postbox
from onceward.errors import InvalidArgument
from onceward.file.read_only import FileReader
from onceward.ops.cli.choice import Choice, Filter, Outcome, by_id, in_bulk
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.cutting import cut
from onceward.ops.cli.durations import MaybeRate, MaybeSpan
from onceward.ops.cli.exit_codes import NothingThere, Usage
from onceward.ops.cli.options import Limit, Quiet, said
from onceward.ops.cli.readonly import views
from onceward.ops.cli.stdin import confirm
from onceward.ops.cli.target import CONVERSATION, Conversation, open_box

FILTER = Filter()
CHOICE = Choice()
Ids = Annotated[
    str,
    said(
        "Ids of dead letters, or unique prefixes; a dash reads them from stdin.",
        allow_leading_hyphen=True,
    ),
]
OlderThan = Annotated[MaybeSpan, said("Only dead letters older than this.")]
AsNew = Annotated[bool, Quiet, said("Send outgoing bodies under new ids, and print these.")]
FromStep = Annotated[str | None, said("Call this step of its handler and later steps again.")]
WithoutSteps = Annotated[bool, Quiet, said("Call all steps of its handler again.")]
Rate = Annotated[MaybeRate, said("In bulk: maximum outgoing messages per second, or 10/m.")]
One = Callable[[Postbox, str], str]
Bulk = Callable[[Postbox, dict[str, Any]], Outcome]
COLUMNS = (
    "id", "origin", "sender", "recipient", "type", "reason", "attempts", "dead_at", "last_error",
)  # fmt: skip


@command(*COLUMNS)
def ls(
    found: FileReader,
    /,
    *,
    sought: Filter = FILTER,
    older_than: OlderThan = None,
    limit: Limit = 100,
    where: Conversation = CONVERSATION,
) -> Found:
    """
    List dead letters, newest first; onceward show prints all of one, with its frame.

    Example: onceward dead ls --reason rejected --older-than 7d
    """
    return cut(lambda most: sought.rows(found, where.session, older_than, most), limit)


def replay(
    *ids: Ids,
    as_new: AsNew = False,
    from_step: FromStep = None,
    without_steps: WithoutSteps = False,
    rate: Rate = None,
    choice: Choice = CHOICE,
    where: Conversation = CONVERSATION,
) -> int:
    """
    Replay dead letters and print their ids.

    Under its own id a message takes effect once, even if it was processed after all. If only some
    were replayed, the exit code is 6. A handler with steps continues after its stored steps.

    Example: onceward dead replay 0199f0c2

    Example: onceward dead replay --peer billing --rate 10 --yes
    """
    if (from_step is not None or without_steps) and not ids:
        raise Usage("--from-step and --without-steps work on single dead letters: give their ids")

    def one(box: Postbox, message_id: str) -> str:
        try:
            return box.dead_letters.replay(
                message_id, as_new=as_new, from_step=from_step, without_steps=without_steps
            )
        except InvalidArgument as error:
            if f"has no step {from_step}:" in str(error):
                raise NothingThere(str(error)) from error
            raise

    def bulk(box: Postbox, which: dict[str, Any]) -> Outcome:
        replays = box.dead_letters.replay_all(as_new=as_new, rate=rate, **which)
        return Outcome(replays.done, replays.failed)

    return _settle("replay", ids, choice, where, work=(one, bulk))


def discard(
    *ids: Ids,
    older_than: OlderThan = None,
    choice: Choice = CHOICE,
    where: Conversation = CONVERSATION,
) -> int:
    """
    Discard dead letters and print their ids; a discarded one cannot be replayed.

    Example: onceward dead discard --type invoice.created --dry-run

    Example: onceward dead discard --older-than 30d --yes
    """
    work = (_discard, _discard_all)
    return _settle("discard", ids, choice, where, work=work, older_than=older_than)


def _settle(
    verb: str,
    ids: tuple[str, ...],
    choice: Choice,
    where: Conversation,
    *,
    work: tuple[One, Bulk],
    older_than: float | None = None,
) -> int:
    if bool(ids) == (choice.in_bulk or older_than is not None):
        aged = "--older-than, " if verb == "discard" else ""
        options = f"--all, {aged}--reason, --peer, --topic or --origin"
        raise Usage(f"which dead letters? Give ids to {verb}, or {options}, not both")
    if not ids:
        return _in_bulk(verb, choice, where, work[1], older_than)
    with views(where.path()) as found:
        chosen, outcome = by_id(found, ids)
    if choice.dry_run:
        outcome.done.extend(chosen)
    elif chosen:
        with open_box(where.path()) as box:
            for message_id in chosen:
                outcome.attempt(message_id, lambda each: work[0](box, each))
    return outcome.tell(choice, where)


def _in_bulk(
    verb: str, choice: Choice, where: Conversation, work: Bulk, older_than: float | None = None
) -> int:
    with views(where.path()) as found:
        chosen = in_bulk(found, choice, where.session, older_than)
    if choice.dry_run:
        return Outcome(chosen).tell(choice, where)
    if not choice.yes:
        confirm(f"{verb} {len(chosen)} dead letters", "say --yes, or --dry-run to see them")
    with open_box(where.path()) as box:
        return work(box, choice.which(where.session, older_than)).tell(choice, where)


def _discard(box: Postbox, message_id: str) -> str:
    box.dead_letters.discard(message_id)
    return message_id


def _discard_all(box: Postbox, which: dict[str, Any]) -> Outcome:
    return Outcome(box.dead_letters.discard_all(**which))
