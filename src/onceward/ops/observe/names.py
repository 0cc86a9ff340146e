"""
Define the metrics and their sources.

Gauges and counters are read from files: they are the same from every process, survive restarts and
cost the working processes nothing. Working processes fill the histograms, because a file keeps
durations only as long as its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from onceward.message.clock import Millis
from onceward.ops.observe.snapshots import FileSnapshot
from onceward.ops.views.overview import Overview

Value = Callable[[FileSnapshot, Overview, Millis], float]
"""Returns a metric's value from a snapshot, its numbers, and the current moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetric:
    """One metric of a file, with the label ``agent``."""

    name: str
    kind: Literal["gauge", "counter"]
    about: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationMetric:
    """One histogram of durations in seconds, filled while the process works."""

    name: str
    about: str
    labels: tuple[str, ...] = ("agent",)
    buckets: tuple[float, ...]


def age(at: Millis | None, now: Millis) -> float:
    """Return how many seconds ago a moment was; 0 if there is none, or it is in the future."""
    return 0.0 if at is None else max(0.0, (now - at) / 1000)


def _gauge(name: str, about: str, value: Value) -> FileMetric:
    return FileMetric(name=f"onceward_{name}", kind="gauge", about=about, value=value)


def _total(name: str, column: str, about: str) -> FileMetric:
    return FileMetric(
        name=f"onceward_{name}_total", kind="counter", about=about, value=_stat(column)
    )


def _stat(column: str) -> Value:
    return lambda _file, found, _now: found.stats[column]


def _of(name: str) -> Value:
    get = attrgetter(name)
    return lambda _file, found, _now: get(found)


def _age(name: str) -> Value:
    get = attrgetter(name)
    return lambda _file, found, now: age(get(found), now)


GAUGES: Final = (
    _gauge("outbox_pending", "Messages that peers have not stored yet.", _of("outgoing")),
    _gauge(
        "outbox_unsettled",
        "Messages that peers have stored and whose outcome is open.",
        _stat("sent"),
    ),
    _gauge("inbox_pending", "Messages waiting to be handled.", _stat("inbox_pending")),
    _gauge("inbox_leased", "Messages being handled.", _stat("inbox_processing")),
    _gauge(
        "inbox_oldest_age_seconds",
        "Age of the oldest unhandled message.",
        _age("inbox_oldest_at"),
    ),
    _gauge("dead_letters", "Dead letters in the file.", _of("dead_letters")),
    _gauge("requests_open", "Requests waiting for a reply.", _stat("tickets_open")),
    _gauge("breakers_open", "Peers whose breaker is not closed.", _of("breakers_open")),
    _gauge(
        "peers_failing",
        "Peers that failed three times in a row, or whose breaker is not closed.",
        _of("peers_failing"),
    ),
    _gauge("lanes_leased", "Lanes that workers hold.", _of("lanes.leased")),
    _gauge(
        "lanes_failing",
        "Lanes whose oldest message was attempted more than once.",
        _of("lanes.failing"),
    ),
    _gauge(
        "lease_overdue_seconds",
        "Time since the end of the oldest lease that no worker has taken over.",
        _age("lanes.lease_ends_at"),
    ),
    _gauge("runs_open", "Runs that are open.", _of("runs_open")),
    _gauge("run_oldest_age_seconds", "Age of the oldest open run.", _age("run_oldest_at")),
    _gauge("run_queue", "Messages waiting for a run of their session.", _of("run_queue")),
    _gauge("calls_left", "Calls of aborted runs that have not returned.", _of("calls_left")),
    _gauge(
        "paused",
        "1 while the agent is paused.",
        lambda _file, found, _now: found.file.paused_at is not None,
    ),
    _gauge(
        "pause_oldest_age_seconds",
        "Age of the oldest pause: of the agent, or of a session.",
        _age("pause_oldest_at"),
    ),
    _gauge(
        "question_oldest_age_seconds",
        "Age of the oldest question that a handler waits for.",
        _age("question_oldest_at"),
    ),
    _gauge(
        "schedules_failing",
        "Schedules whose last message could not be sent.",
        _of("schedules_failing"),
    ),
    _gauge("file_bytes", "Size of the file.", lambda file, _found, _now: file.file_bytes),
    _gauge(
        "backup_age_seconds",
        "Time since all commits were in the newest noted backup; 0 if none is noted.",
        _age("file.backed_up_at"),
    ),
    _gauge("wal_bytes", "Size of the file's WAL.", lambda file, _found, _now: file.wal_bytes),
)
"""Current numbers of a file."""

COUNTERS: Final = (
    _total("messages_enqueued", "enqueued", "Messages stored in the outbox."),
    _total("messages_received", "received", "Messages stored in the inbox."),
    _total("messages_processed", "processed", "Messages that were handled."),
    _total("messages_dropped", "dropped", "Messages that a handler or a restart dropped."),
    _total("messages_expired", "expired", "Messages that expired in the inbox."),
    _total("messages_cancelled", "cancelled", "Sent messages that were cancelled."),
    _total("arrivals_cancelled", "inbox_cancelled", "Received messages that were cancelled."),
    _total("duplicates", "duplicates", "Frames that arrived again and changed nothing."),
    _total("frames_refused", "refused", "Frames that were refused on arrival."),
    _total("stream_forks", "forks", "Parcels that did not continue their stream."),
    _total("retries", "total_retries", "Repeated pushes that ask for the outcome of a message."),
    _total("dead_letters_made", "dead_total", "Messages that became dead letters."),
    _total(
        "limit_drops",
        "dropped_by_policy",
        "Messages that limits and full queues of the file dropped.",
    ),
)
"""Totals of a file since its creation; they never decrease, and pruning does not change them."""

OLDEST_BY_PEER: Final = "onceward_outbox_oldest_age_seconds"
"""Age of the oldest message for a peer, with the labels ``agent`` and ``peer``."""
READABLE: Final = "onceward_file_readable"
"""1 if the file could be read, else 0; then all other metrics of the file are missing."""

DURATIONS: Final = {
    "delivery": DurationMetric(
        name="onceward_send_to_accept_seconds",
        about="From the commit of a message to the commit that settles its acceptance.",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30, 300, 3600),
    ),
    "handling": DurationMetric(
        name="onceward_accept_to_handled_seconds",
        about="From the commit into the inbox to the commit of the handler's effects.",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30, 300, 3600),
    ),
    "handler": DurationMetric(
        name="onceward_handler_duration_seconds",
        about="How long a handler ran, by the outcome of the message.",
        labels=("agent", "outcome"),
        buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30, 300),
    ),
    "commit": DurationMetric(
        name="onceward_commit_duration_seconds",
        about="How long COMMIT took, including its sync.",
        buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
    ),
}
"""Histograms of working processes."""
