"""``onceward schedules``: messages that are sent repeatedly, at given times."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

from onceward import Postbox
from onceward.file.environment import env_or_project
from onceward.message.vocabulary import Missed, Overlap
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.durations import MaybeDate, MaybeSpan
from onceward.ops.cli.exit_codes import NothingThere
from onceward.ops.cli.options import said
from onceward.ops.cli.output import note
from onceward.ops.cli.send import parsed
from onceward.ops.cli.target import CONVERSATION, Conversation

COLUMNS: Final = (
    "name", "cron", "timezone", "every", "overlap", "recipient", "origin", "next_at", "paused_at",
    "sent", "last_at", "last_error", "skipped", "skipped_at",
)  # fmt: skip
MINUTE: Final = 60_000
NEXT: Final = 5
Name = Annotated[str, said("The schedule.")]


@command(*COLUMNS)
def ls(box: Postbox, /) -> Found:
    """
    List the schedules, by name.

    A schedule with the origin withdrawn was declared by the agent's code, is no longer declared,
    and is therefore paused. A line on stderr says how far the file's time is ahead of the wall
    clock, which the dates follow.

    Example: onceward schedules ls
    """
    if (ahead := box.file.health().clock_ahead) > MINUTE:
        note(f"the file's time is {ahead // 1000} s ahead of the wall clock: see onceward doctor")
    return map(asdict, box.schedules.list())


@command("name", "next_at")
def add(
    box: Postbox,
    name: Name,
    body: Annotated[str | None, said("JSON, or plain text; default a tick.")] = None,
    /,
    *,
    cron: Annotated[str | None, said("Five fields: minute, hour, day, month, weekday.")] = None,
    every: MaybeSpan = None,
    timezone: Annotated[str | None, said("Time zone of --cron; default UTC.")] = None,
    to: Annotated[str | None, said("The recipient; default this agent.")] = None,
    type: Annotated[str | None, said("Wire name of the type of its messages.")] = None,
    missed: Missed = "one",
    overlap: Overlap = "queue",
    start_at: MaybeDate = None,
    where: Conversation = CONVERSATION,
) -> Found:
    """
    Send a message at the times of a cron expression, or after each interval.

    A schedule of the same name is replaced. Messages are sent while work, relay, serve or a program
    has the file open.

    Example: onceward schedules add nightly --cron '0 3 * * *' --timezone Europe/Zurich

    Args:
        every: The interval.
        missed: Policy for missed times: one message for all, all messages, or skip them.
        overlap: Policy while the last message is unfinished: send, or skip this time.
        start_at: The earliest time.

    """
    given = {} if body is None else {"body": parsed(body)}
    made = box.schedules.add(
        name,
        cron=cron,
        every=every,
        timezone=timezone,
        to=to,
        session=where.session or env_or_project("session"),
        missed=missed,
        overlap=overlap,
        start_at=start_at,
        type=type,
        **given,
    )
    return {"name": made.name, "next_at": made.next_at}


@command("name", "next_at")
def edit(
    box: Postbox,
    name: Name,
    body: Annotated[str | None, said("JSON, or plain text; default: unchanged.")] = None,
    /,
    *,
    cron: Annotated[str | None, said("Five fields: minute, hour, day, month, weekday.")] = None,
    every: MaybeSpan = None,
    timezone: Annotated[str | None, said("Time zone of the cron expression.")] = None,
    to: Annotated[str | None, said("The recipient.")] = None,
    type: Annotated[str | None, said("Wire name of the type of its messages.")] = None,
    missed: Missed | None = None,
    overlap: Overlap | None = None,
) -> Found:
    """
    Change parts of a schedule; what is not given stays, and so does a pause.

    A schedule that the agent's code declares is changed in the code.

    Example: onceward schedules edit nightly --cron '30 4 * * *'

    Args:
        every: The interval.
        missed: Policy for missed times: one message for all, all messages, or skip them.
        overlap: Policy while the last message is unfinished: send, or skip this time.

    """
    _known(box, name)
    given = {} if body is None else {"body": parsed(body)}
    made = box.schedules.edit(
        name,
        cron=cron,
        every=every,
        timezone=timezone,
        to=to,
        missed=missed,
        overlap=overlap,
        type=type,
        **given,
    )
    return {"name": made.name, "next_at": made.next_at}


@command("at", "local")
def dates(
    box: Postbox, name: Name, /, *, limit: Annotated[int, said("Number of dates.")] = NEXT
) -> Found:
    """
    List the next dates of a schedule, also in its time zone.

    Example: onceward schedules dates nightly
    """
    _known(box, name)
    found = box.schedules.get(name)
    if found is None or found.paused_at is not None:
        return []
    return [
        {"at": at, "local": found.local(at).isoformat(" ")} for at in found.dates(max(1, limit))
    ]


@command()
def remove(box: Postbox, name: Name, /) -> None:
    """
    Remove a schedule; messages that it has sent stay.

    Example: onceward schedules remove nightly
    """
    _found(box.schedules.remove(name), name)


@command()
def pause(box: Postbox, name: Name, /) -> None:
    """
    Send no messages of a schedule until it is resumed.

    Example: onceward schedules pause nightly
    """
    _known(box, name)
    box.schedules.pause(name)


@command()
def resume(box: Postbox, name: Name, /) -> None:
    """
    Continue with a schedule's next time; times during the pause are skipped.

    Example: onceward schedules resume nightly
    """
    _known(box, name)
    box.schedules.resume(name)


@command("id")
def run(box: Postbox, name: Name, /) -> Found:
    """
    Send a schedule's message now, in addition to its times.

    Example: onceward schedules run nightly
    """
    _known(box, name)
    return {"id": box.schedules.run_now(name)}


def _known(box: Postbox, name: str) -> None:
    _found(box.schedules.get(name) is not None, name)


def _found(there: bool, name: str) -> None:  # noqa: FBT001 - an answer, not an option
    if not there:
        raise NothingThere(f"there is no schedule {name}")
