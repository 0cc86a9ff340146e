"""``onceward ship``: append changes in agents' files to a log of Parquet objects."""

from __future__ import annotations

import signal
from dataclasses import asdict
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, Final

from onceward.errors import OncewardError
from onceward.fleet import files as finding
from onceward.message.times import read_rate
from onceward.ops.cli.durations import MaybeRate, MaybeSpan, Span, SpanOption
from onceward.ops.cli.exit_codes import SIGNAL, Usage, code_of_all
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import document, note, show
from onceward.ops.cli.signals import awaited, stops
from onceward.ops.cli.target import ANSWER, Answer

if TYPE_CHECKING:
    from onceward.fleet.ship import FileShipped
    from onceward.fleet.ship.shipper import Shipper

KEEP: Final = Span(7 * 86_400)
COLUMNS: Final = ("path", "agent", "rows", "number", "history", "error")
PRUNED: Final = ("path", "agent", "rows", "kept", "error")
HISTORIES: Final = {
    "restored": "it is older than its log, or has other rows: it was restored or copied;"
    " epoch {epoch} of its log begins with all that it holds",
    "copied": "two files with its id go on: epoch {epoch} of its log goes on beside a later one",
}
Paths = Annotated[str, said("Files, folders (all their *.db) or quoted globs.")]


def ship(
    *paths: Paths,
    to: str,
    every: MaybeSpan = None,
    rate: MaybeRate = None,
    prune: Annotated[bool, Quiet] = False,
    keep: SpanOption = KEEP,
    answer: Answer = ANSWER,
) -> int:
    """
    Append changes in agents' files to a log of Parquet objects, to reconcile and archive.

    The files are only read, even while in use. Repeat a run that was killed; two at once do no
    harm. Exit code 6 if some files could not be shipped, 1 if none could.

    Columns: path, agent, rows, number, history, error; and with --prune: path, agent, rows, kept,
    error.

    Example: onceward ship '/srv/agents/**/*.db' --to s3://logs/fleet

    Example: onceward ship /srv/home --to /var/log/fleet --every 1m

    Args:
        to: A folder, or s3://BUCKET/PREFIX, gs://..., abfs://...
        every: Ship repeatedly with this pause, until an interrupt or terminate signal.
        rate: Maximum rows per second and file, or 1000/m.
        prune: Delete shipped rows from the files after reading them back from the log.
        keep: With --prune: how long ended rows stay, counted back from the file's latest moment.

    """
    if not paths:
        raise Usage("which files? Name folders, files or globs, such as '/srv/agents/**/*.db'")
    if every is not None and not every:
        raise Usage("--every must be more than 0")
    if every:
        finding.check(paths)  # files that a glob matches may appear later
    else:
        finding.of_each(paths)
    from onceward.fleet import ship as shipping  # noqa: PLC0415 - an extra
    from onceward.fleet.ship import prune as pruning  # noqa: PLC0415 - as above
    from onceward.fleet.ship.shipper import Shipper  # noqa: PLC0415 - as above

    prunes = partial(pruning.files, paths, to, keep=keep) if prune else None
    most = None if rate is None else read_rate("rate", rate).per_second
    if every:
        told: SimpleQueue[int] = SimpleQueue()
        pace = shipping.Pace(rows_per_second=most, sleep=partial(_pause, told))
        return _repeatedly(Shipper(paths, to, pace=pace), prunes, every, told)
    done = shipping.files(paths, to, pace=shipping.Pace(rows_per_second=most))
    tell(done)
    pruned = prunes() if prunes else []
    _print([asdict(each) for each in done], [asdict(each) for each in pruned], answer)
    return code_of_all([each.error for each in done] + [each.error for each in pruned])


class _Stopped(Exception):
    """A signal arrived; between two commits nothing is half done."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _pause(told: SimpleQueue[int], seconds: float) -> None:
    number = awaited(told, seconds)
    if number is not None:
        raise _Stopped(number)


def _repeatedly(shipper: Shipper, prunes: Any, every: float, told: SimpleQueue[int]) -> int:
    with stops(told):
        note(f"shipping every {every:g} s; interrupt to stop")
        try:
            while True:
                attempt(shipper)
                for each in prunes() if prunes else ():
                    if each.error:
                        note(each.error)
                _pause(told, every)
        except _Stopped as stopped:
            note(f"{signal.Signals(stopped.number).name}, stopping")
            return SIGNAL + stopped.number


def attempt(shipper: Shipper) -> None:
    """Ship once; report trouble with the log, which the next round tries again."""
    try:
        tell(shipper.once())
    except OncewardError as error:
        note(str(error))


def tell(done: list[FileShipped]) -> None:
    """Write a line about each file that was not shipped, or was found restored or copied."""
    for each in done:
        if each.error:
            note(f"not shipped: {each.error}")
        elif each.commits and each.history in HISTORIES:
            note(f"{each.path}: {HISTORIES[each.history].format(epoch=each.epoch)}")


def _print(done: list[dict[str, Any]], pruned: list[dict[str, Any]], answer: Answer) -> None:
    if answer.json:
        document({"shipped": done, "pruned": pruned})
        return
    show(done, COLUMNS, answer.style)
    if pruned:
        show(pruned, PRUNED, answer.style)
