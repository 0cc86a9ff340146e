"""Print messages or transitions as they happen, one JSON object per line."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from onceward import MessageRecord, Postbox
from onceward.errors import StoreUnusable
from onceward.file.file_checks import file_key
from onceward.file.read_only import FileReader
from onceward.ops.cli.exit_codes import DONE, Usage
from onceward.ops.cli.output import dated, line_of, row_of
from onceward.ops.cli.readonly import views
from onceward.ops.cli.records import print_records
from onceward.ops.views.messages import last_transition, records_transitions, transitions_after

EVERY: Final = 0.1
"""Seconds between two checks whether the file was written."""
REMEMBERED: Final = 1000
"""Printed messages that are remembered, to find the newest that still exists."""
SLICE: Final = 1000
"""Rows that are read at once."""
Newest = Callable[[int], list[MessageRecord]]
"""Returns this many of the newest messages, oldest first."""


def follow_messages(box: Postbox, newest: Newest, count: int) -> NoReturn:
    """Print the newest messages, then each new one, until an interrupt."""
    seen: deque[tuple[str, str]] = deque(maxlen=REMEMBERED)
    with views(box.file.path) as found:
        for _ in commits(found):
            records = unseen(newest, seen, count) if seen else newest(count)
            seen += [(each.sender, each.id) for each in records]
            print_records(records)
            sys.stdout.flush()
            seen = seen or deque([("", "")], maxlen=REMEMBERED)  # after this each one is new
    raise AssertionError  # commits never end


def unseen(newest: Newest, seen: deque[tuple[str, str]], count: int) -> list[MessageRecord]:
    """Return the messages after the last one in *seen*, however many arrived at once."""
    known = set(seen)
    while True:
        records = newest(count)
        marks = [at for at, each in enumerate(records, 1) if (each.sender, each.id) in known]
        if marks or len(records) < count:
            return records[max(marks, default=0) :]
        count *= 4


def print_transitions(found: FileReader, count: int, *, follow: bool) -> int:
    """
    Print the last transitions, and with *follow* each new one, until an interrupt.

    Raises:
        Usage: the file records none.

    """
    if not records_transitions(found):
        raise Usage("this file records no transitions: run this once with ONCEWARD_TRANSITIONS=1")
    after = last_transition(found) - count
    for _ in commits(found):
        while rows := transitions_after(found, after, SLICE):
            after = rows[-1].seq
            for row in rows:
                line_of(dated(row_of(row)))
        sys.stdout.flush()
        if not follow:
            break
    return DONE


def commits(found: FileReader) -> Iterator[None]:
    """
    Yield immediately, then after each commit of another connection, without end.

    Raises:
        StoreUnusable: the file was replaced or deleted; later commits cannot be seen.

    """
    before: Any = None
    key = file_key(found.path)
    while True:
        now = found.commits()
        if now != before:
            before = now
            yield
        elif file_key(found.path) != key:
            msg = f"{found.path} was replaced or deleted: follow the file that is there now"
            raise StoreUnusable(msg)
        else:
            time.sleep(EVERY)
