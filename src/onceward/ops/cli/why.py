"""``onceward why``: say why a message, or an agent, waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from onceward.errors import OncewardError
from onceward.file.environment import env_or_project
from onceward.message.clock import Millis, SystemClock
from onceward.ops.cli.command import emit
from onceward.ops.cli.exit_codes import DONE, NothingThere, Usage
from onceward.ops.cli.ls import without_nothing
from onceward.ops.cli.options import said
from onceward.ops.cli.output import note
from onceward.ops.cli.readonly import views
from onceward.ops.cli.target import WHERE, Where, home_files
from onceward.ops.views.beside import why_of_message
from onceward.ops.views.messages import message_ids
from onceward.ops.views.why import Why, agent_whys

COLUMNS: Final = ("level", "reason", "text", "cure")
Id = Annotated[str | None, said("The message's id, or a unique prefix of it.")]


def why(id: Id = None, /, *, where: Where = WHERE) -> int:
    """
    Say in one sentence why a message waits, and how to fix it.

    With --db, --agent or their variables the message is searched in that file, else in all files of
    the home; the files of its sender and recipient are read if they are there. Without an id all
    reasons that hold messages of the agent back are listed, the most urgent first.

    Columns without an id: level (act, wait or ok), reason, text, cure.

    Example: onceward why 0199f0c2-7d1e
    """
    now = SystemClock().now()
    if id is None:
        with views(where.path()) as found:
            return emit([_row(each, now) for each in agent_whys(found, now)], COLUMNS, where)
    path, message_id = found_in(files_of(where), id)
    answer = why_of_message(path, message_id, now, _skip)
    if answer is None:
        raise NothingThere(f"{path} had message {message_id}, which was pruned just now")
    emit({"id": message_id} | without_nothing(_row(answer, now)), (), where)
    return DONE


def _row(found: Why, now: Millis) -> dict[str, Any]:
    """Return a reason for printing."""
    return {
        "level": found.level,
        "reason": found.reason,
        "text": found.text(now),
        "since_at": found.since_at,
        "until_at": found.until_at,
        "cure": found.cure,
    }


def files_of(where: Where) -> list[Path]:
    """Return the named file, else those of the home."""
    unnamed = where.home or not (env_or_project("db") or env_or_project("agent"))
    if where.db or where.agent or not unnamed:
        return [where.path()]
    return home_files(where.home)


def found_in(files: list[Path], prefix: str) -> tuple[Path, str]:
    """
    Return a file that has a message, and its whole id.

    Raises:
        NothingThere: no file has it.
        Usage: several ids start with it.

    """
    ids = dict(ids_in(files, prefix))
    if prefix in ids:
        return ids[prefix], prefix
    if len(ids) > 1:
        first, second = list(ids)[:2]
        msg = f"several ids start with {prefix!r}, among them {first} and {second}: give more of it"
        raise Usage(msg)
    for message_id, path in ids.items():
        return path, message_id
    place = str(files[0]) if len(files) == 1 else f"the {len(files)} files of the home"
    msg = f"no id starts with {prefix!r} in {place}: see onceward ls outbox and ls inbox"
    raise NothingThere(msg)


def ids_in(files: list[Path], prefix: str) -> Iterator[tuple[str, Path]]:
    """Yield ids with this prefix, each with a file that has it; report unreadable files."""
    for path in files:
        try:
            with views(path) as found:
                for message_id in message_ids(found, prefix):
                    yield message_id, path
        except OncewardError as error:
            if len(files) == 1:
                raise
            _skip(path, error)


def _skip(path: Path, error: OncewardError) -> None:
    note(f"{path} is skipped: {error}")
